//! Which processes a caller may name in a lease: its own, and none whose end would never come. A lease lives as long as
//! the processes it names, so naming a stranger's process would hold memory for as long as the stranger lives.

use model_boss_lease::{OwnerKind, Process};

use crate::holder::Holder;
use crate::host::{self, Stat};
use crate::tree::ProcessTree;

/// The first process of a pid namespace.
const INIT: u32 = 1;

/// Who asks on behalf of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A user of this host, by the kernel's word. Root may name any user's processes.
    User(u32),
    /// Somebody on another host or in another network namespace, known by an API key alone.
    Remote,
    /// Somebody on this host whose user the kernel does not tell.
    Unknown,
}

/// A process that the caller may not name.
#[derive(Debug, thiserror::Error)]
pub enum NotNamed {
    /// It is not there, or not the one that bore this number.
    #[error(
        "process {} with start time {} of {} is not seen on the coordinator's host: leases are for processes that live there",
        .0.pid, .0.start_time, .0.pid_ns
    )]
    NotSeen(Process),
    /// It ends with the host.
    #[error("process {0} is the system's own and never ends: name the process that uses the memory")]
    System(u32),
    /// Its memory has leases already.
    #[error("process {0} belongs to model-boss itself: name the process of your own program")]
    Ours(u32),
    /// Somebody else's.
    #[error(
        "process {pid} runs as user {owner} and the caller is user {caller}: only its own user, or root, may name it"
    )]
    OtherUser {
        /// Which process.
        pid: u32,
        /// Whose it is.
        owner: u32,
        /// Who asks.
        caller: u32,
    },
    /// A caller without a user here, and a process of this pid namespace.
    #[error(
        "process {0} lives beside the coordinator and the caller comes over the network: \
         call from this host, at a loopback address, or name a process of a container"
    )]
    FromOutside(u32),
    /// The kernel does not tell whose connection it is.
    #[error(
        "the user of this connection cannot be known: keep it open until the answer has come, and call from this host"
    )]
    NoUser,
}

impl Holder {
    /// Whether the caller may name this process. It must live, and be the caller's own.
    pub fn may_name(&self, caller: Caller, process: &Process) -> Result<(), NotNamed> {
        let namespace = &self.owner.process.pid_ns;
        let tree = ProcessTree::of_this_host(namespace.clone());
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
                let users = host::users_of(here).ok_or_else(not_seen)?;
                if let Some(owner) = users.into_iter().find(|user| *user != caller) {
                    return Err(NotNamed::OtherUser { pid: named, owner, caller });
                }
            }
            Caller::Remote if process.pid_ns == *namespace => return Err(NotNamed::FromOutside(named)),
            Caller::Remote => {}
            Caller::Unknown => return Err(NotNamed::NoUser),
        }
        // What was looked at is what was named: the number was not given to another process meanwhile.
        if tree.shows(process) { Ok(()) } else { Err(not_seen()) }
    }

    /// The process that bears this number in a pid namespace now.
    pub(crate) fn process_in(&self, namespace: &str, pid: u32) -> Option<Process> {
        let own = &self.owner.process.pid_ns;
        let tree = ProcessTree::of_this_host(own.clone());
        let here = if namespace == own { pid } else { tree.here(namespace, pid)? };
        let stat = Stat::of(here)?;
        Some(Process { pid, start_time: stat.start_time, pid_ns: namespace.to_owned() })
    }
}
