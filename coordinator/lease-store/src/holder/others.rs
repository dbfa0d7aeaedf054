//! Leases and requests of other holders, for planning.

use std::collections::BTreeSet;

use model_boss_lease::{Lease, LeaseId, LeaseState, Process, nominations};
use model_boss_protocol::{OtherLease, OtherRequest};

use super::state::Holder;

impl Holder {
    /// The process ids on this host of all leases' processes, by the last reading. A process that ended is replaced by
    /// the descendants that it left. The call does not access the store.
    pub fn leased_processes(&self) -> Vec<u32> {
        let tree = self.tree();
        let family: BTreeSet<&Process> = self.seen.leases.values().flat_map(Lease::family).collect();
        let here = |process: &&Process| match tree.number_of(process) {
            Some(here) => vec![here],
            None => tree.members(process).into_iter().map(|member| member.pid).collect(),
        };
        family.iter().flat_map(here).collect()
    }

    /// Leases and requests of other holders in the ledger as last read. The call does no I/O.
    pub fn others(&self) -> OtherLeases {
        let now = self.seen.last_time;
        let other = |(id, lease): (&LeaseId, &model_boss_lease::Lease)| {
            let keys = lease.parts.iter().map(|part| (part.device.clone(), part.charged()));
            OtherLease {
                lease: id.to_string(),
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
            Some(OtherRequest { label, priority, parts })
        };
        OtherLeases {
            leases: self.seen.leases.iter().filter(|(id, _)| !self.held.contains_key(*id)).map(other).collect(),
            requests: nominations(&self.seen, now).into_iter().filter_map(waiter).collect(),
        }
    }
}

/// Leases and requests of other holders. A lease of this process counts too when its holder has released it and the
/// devices do not show its memory as free.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtherLeases {
    /// The leases of other holders.
    pub leases: Vec<OtherLease>,
    /// The waiting requests, in the order of their arrival.
    pub requests: Vec<OtherRequest>,
}
