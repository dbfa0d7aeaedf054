//! Settlement: the search for leases without a holder, and for their processes that are still alive.

use std::collections::BTreeSet;

use model_boss_lease::{Lease, LeaseId, LeaseState, Op, Outcome, OwnerKind, Process};

use super::operate::unexpected;
use super::state::Holder;
use crate::StoreError;
use crate::contract::Leftover;
use crate::tree::ProcessTree;

impl Holder {
    /// Ends every lease without a holder whose processes have ended. Returns leases whose processes are alive and have
    /// lost every program that would have ended them. These are leases of former coordinators, and of programs whose
    /// guards died with their holder. The caller ends those processes, and then settles again.
    pub fn settle(&mut self) -> Result<Vec<Leftover>, StoreError> {
        let tree = self.tree();
        self.note_descendants(&tree);
        let mut living = Vec::new();
        for (id, lease) in self.seen.leases.clone() {
            let mine = lease.owner.process == self.owner.process;
            let abandoned = if mine { !self.held.contains_key(&id) } else { tree.is_gone(&lease.owner.process) };
            // The lease was released, or not renewed for long: its processes may have ended although its holder is
            // alive.
            let in_limbo = lease.state == LeaseState::Limbo && !lease.pids.is_empty();
            // The owner may have ended while other processes of its group are alive, such as a reader of its output.
            let ended = !mine && tree.has_ended(&lease.owner.process);
            if !abandoned && !in_limbo && !ended {
                continue;
            }
            let suspects: BTreeSet<_> = lease.family().chain([&lease.owner.process]).cloned().collect();
            let seen_from = tree.sees(&suspects);
            let known = self.below.get(&id).map(|below| below.processes.clone()).unwrap_or_default();
            let left: Vec<Process> = known.into_iter().filter(|process| tree.shows(process)).collect();
            // Descendants of an attached process belong to it, even when no other evidence remains.
            let is_gone =
                |process: &Process| tree.is_gone(process) && (left.is_empty() || !lease.pids.contains(process));
            let (gone, alive): (Vec<_>, Vec<_>) = suspects.into_iter().partition(is_gone);
            let op = Op::ConfirmDead { lease: id.clone(), gone, seen_from };
            match self.apply(&|_| op.clone())? {
                Outcome::Released | Outcome::Lost => {}
                Outcome::NotShown => {
                    let processes = match lease.owner.kind {
                        OwnerKind::Coordinator if !abandoned => BTreeSet::new(),
                        OwnerKind::Coordinator => {
                            let owned = alive.iter().filter(|process| lease.owns(process));
                            owned.flat_map(|process| tree.members(process)).chain(left).collect()
                        }
                        _ if !ended => BTreeSet::new(),
                        _ => self.left_by_guards(&tree, &id, &lease, left),
                    };
                    if !processes.is_empty() {
                        let (label, processes) = (lease.owner.label.to_string(), Vec::from_iter(processes));
                        living.push(Leftover { lease: id, label, processes });
                    }
                }
                other => return Err(unexpected("confirm dead", other)),
            }
        }
        Ok(living)
    }

    /// Processes left by guards that were killed together with their holder, and stopped guards that lost the holder
    /// who would have resumed them, with all below them. A running guard ends its processes itself, and processes
    /// without a guard must not be ended here.
    fn left_by_guards(&self, tree: &ProcessTree, id: &LeaseId, lease: &Lease, left: Vec<Process>) -> BTreeSet<Process> {
        let guarded = self.below.get(id).is_some_and(|below| below.guarded);
        let stopped = || lease.pids.iter().filter(|process| tree.is_stopped_guard(process));
        let ended = lease.pids.iter().filter(|guard| tree.has_ended(guard));
        let guards: Vec<&Process> = ended.chain(stopped()).collect();
        let known = left.into_iter().filter(|_| guarded && guards.len() == lease.pids.len());
        guards.iter().flat_map(|guard| tree.marked(guard)).chain(known).chain(stopped().cloned()).collect()
    }

    /// Records the descendants of the processes of other holders' leases while those processes are alive.
    fn note_descendants(&mut self, tree: &ProcessTree) {
        let mut below = std::mem::take(&mut self.below);
        below.retain(|id, _| self.seen.leases.contains_key(id));
        let others = self.seen.leases.iter().filter(|(_, lease)| lease.owner.process != self.owner.process);
        let mut look = None;
        for (id, lease) in others {
            let here = lease.pids.iter().filter(|root| tree.shows(root) && root.pid_ns == self.owner.process.pid_ns);
            for root in here {
                let Some(look) = look.get_or_insert_with(|| tree.snapshot()) else { break };
                let found = tree.descendants(look, root);
                let known = below.entry(id.clone()).or_default();
                known.guarded = known.guarded || found.iter().any(|process| tree.bears_mark_of(process, root));
                known.processes.retain(|process| tree.shows(process));
                let new: Vec<Process> = found.into_iter().filter(|found| !known.processes.contains(found)).collect();
                known.processes.extend(new);
            }
        }
        self.below = below;
    }
}
