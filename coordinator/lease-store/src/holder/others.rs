//! What others hold and want in the ledger, for those who plan around it.

use std::collections::BTreeSet;
use std::time::Duration;

use model_boss_lease::{Lease, LeaseId, LeaseState, Process, nominations};
use model_boss_protocol::{ByteCount, DeviceId, Priority};

use super::state::Holder;

impl Holder {
    /// The numbers here of every process that some lease counts, whoever holds it, as last seen. Of a process that is gone
    /// those that it left behind. No I/O at the store.
    pub fn leased_processes(&self) -> Vec<u32> {
        let tree = self.tree();
        let family: BTreeSet<&Process> = self.seen.leases.values().flat_map(Lease::family).collect();
        let here = |process: &&Process| match tree.number_of(process) {
            Some(here) => vec![here],
            None => tree.members(process).into_iter().map(|member| member.pid).collect(),
        };
        family.iter().flat_map(here).collect()
    }

    /// What others hold and want, as last seen. No I/O.
    pub fn others(&self) -> Others {
        let now = self.seen.last_time;
        let other = |(id, lease): (&LeaseId, &model_boss_lease::Lease)| {
            let keys = lease.parts.iter().map(|part| (part.device.clone(), part.charged()));
            OtherLease {
                lease: id.clone(),
                label: lease.owner.label.to_string(),
                priority: lease.priority,
                parts: self.named(&keys.collect::<Vec<_>>()),
                may_be_asked: lease.yielding.preemptible
                    && lease.state == LeaseState::Active
                    && !lease.in_default
                    && now >= lease.granted_at.after(lease.yielding.min_hold),
                revoking: (lease.state == LeaseState::Revoking && !lease.in_default)
                    .then(|| lease.revoke_deadline.map(|until| until.since(now)).unwrap_or_default()),
                in_default: lease.in_default,
            }
        };
        let waiter = |(request_id, parts): (String, Vec<_>)| {
            let waiter =
                self.seen.waiters.get(&request_id).filter(|waiter| waiter.owner.process != self.owner.process)?;
            let (label, priority, parts) = (waiter.owner.label.to_string(), waiter.priority, self.named(&parts));
            Some(OtherWaiter { request_id, label, priority, parts })
        };
        Others {
            leases: self.seen.leases.iter().filter(|(id, _)| !self.held.contains_key(*id)).map(other).collect(),
            waiters: nominations(&self.seen, now).into_iter().filter_map(waiter).collect(),
        }
    }
}

/// What others hold and want, for those who plan around it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Others {
    /// Their leases.
    pub leases: Vec<OtherLease>,
    /// Who waits, first come first.
    pub waiters: Vec<OtherWaiter>,
}

/// A lease of somebody else, or one of this process's that its holder has let go and the devices do not show free.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherLease {
    /// Its name.
    pub lease: LeaseId,
    /// What it is for.
    pub label: String,
    /// How important it is.
    pub priority: Priority,
    /// How much it counts for on each device.
    pub parts: Vec<(DeviceId, ByteCount)>,
    /// Whether it may be asked back now, by somebody more important.
    pub may_be_asked: bool,
    /// It was asked: how long it still has.
    pub revoking: Option<Duration>,
    /// It was asked and did not make way in time.
    pub in_default: bool,
}

/// A request of somebody else that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherWaiter {
    /// Its request.
    pub request_id: String,
    /// What it is for.
    pub label: String,
    /// How important it is.
    pub priority: Priority,
    /// What it is nominated for.
    pub parts: Vec<(DeviceId, ByteCount)>,
}
