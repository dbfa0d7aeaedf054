//! Finding out which leases nobody holds any more, and which of them still have living processes.

use std::collections::BTreeSet;

use model_boss_lease::{LeaseState, Op, Outcome, OwnerKind};

use super::operate::unexpected;
use super::state::Holder;
use crate::StoreError;
use crate::contract::Leftover;
use crate::tree::ProcessTree;

impl Holder {
    /// Ends every lease that nobody holds any more and whose processes are gone. Gives those of former coordinators
    /// whose processes still live: they are ours to end, and then to settle again.
    pub fn settle(&mut self) -> Result<Vec<Leftover>, StoreError> {
        let tree = ProcessTree::of_this_host(self.owner.process.pid_ns.clone());
        let mut living = Vec::new();
        for (id, lease) in self.seen.leases.clone() {
            let mine = lease.owner.process == self.owner.process;
            let abandoned = if mine { !self.held.contains_key(&id) } else { tree.is_gone(&lease.owner.process) };
            // Let go, or not renewed for long: its processes may be gone although its holder lives.
            let in_limbo = lease.state == LeaseState::Limbo && !lease.pids.is_empty();
            if !abandoned && !in_limbo {
                continue;
            }
            let suspects: BTreeSet<_> = lease.family().chain([&lease.owner.process]).cloned().collect();
            let seen_from = tree.sees(&suspects);
            let (gone, alive): (Vec<_>, Vec<_>) = suspects.into_iter().partition(|process| tree.is_gone(process));
            let op = Op::ConfirmDead { lease: id.clone(), gone, seen_from };
            match self.apply(&|_| op.clone())? {
                Outcome::Released | Outcome::Lost => {}
                Outcome::NotShown => {
                    let owned = alive.iter().filter(|process| lease.owns(process));
                    let processes: BTreeSet<_> = owned.flat_map(|process| tree.members(process)).collect();
                    let processes = Vec::from_iter(processes);
                    if abandoned && lease.owner.kind == OwnerKind::Coordinator && !processes.is_empty() {
                        living.push(Leftover { lease: id, label: lease.owner.label.to_string(), processes });
                    }
                }
                other => return Err(unexpected("confirm dead", other)),
            }
        }
        Ok(living)
    }
}
