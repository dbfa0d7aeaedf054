//! The processes that a caller may name in a lease.

use model_boss_lease::{OwnerKind, Process};

use crate::holder::Holder;
use crate::stat::{self, Stat};
use crate::{Caller, NotNamed};

/// The first process of a pid namespace.
const INIT: u32 = 1;

impl Holder {
    /// Whether the caller may name this process. It must be alive, and be the caller's own.
    pub fn may_name(&self, caller: Caller, process: &Process) -> Result<(), NotNamed> {
        let namespace = &self.owner.process.pid_ns;
        let tree = self.tree();
        let not_seen = || NotNamed::NotSeen(process.clone());
        let here = tree.number_of(process).ok_or_else(not_seen)?;
        let named = process.pid;
        let stat = Stat::of(here).ok_or_else(not_seen)?;
        if here == INIT || stat.is_kernel_thread(here) {
            return Err(NotNamed::System(named));
        }
        let of_coordinators =
            self.seen.leases.values().filter(|lease| lease.owner.kind == OwnerKind::Coordinator).collect::<Vec<_>>();
        let attached: Vec<Process> = of_coordinators.iter().flat_map(|lease| lease.family()).cloned().collect();
        let line = tree.lineage(here, &attached);
        let is_ours = |process: &Process| *process == self.owner.process || attached.contains(process);
        if line.iter().any(is_ours) {
            return Err(NotNamed::Ours(named));
        }
        match caller {
            Caller::User(0) => {}
            Caller::User(caller) => {
                let users = stat::users_of(here).ok_or_else(not_seen)?;
                if let Some(owner) = users.into_iter().find(|user| *user != caller) {
                    return Err(NotNamed::OtherUser { pid: named, owner, caller });
                }
            }
            Caller::Remote if process.pid_ns == *namespace => return Err(NotNamed::FromOutside(named)),
            Caller::Remote => {}
            Caller::Unknown => return Err(NotNamed::NoUser),
        }
        // The process that was checked is the one that was named: the number was not reused meanwhile.
        if tree.shows(process) { Ok(()) } else { Err(not_seen()) }
    }

    /// The process that has this number in a pid namespace now.
    pub(crate) fn process_in(&self, namespace: &str, pid: u32) -> Option<Process> {
        let own = &self.owner.process.pid_ns;
        let tree = self.tree();
        let here = if namespace == own { pid } else { tree.here(namespace, pid)? };
        let stat = Stat::of(here)?;
        Some(Process { pid, start_time: stat.start_time, pid_ns: namespace.to_owned() })
    }
}
