//! Renewal of leases, and notices of revocation to their holder.

use super::held::held;
use crate::{LeaseState, Ledger, Outcome, Renewal, Revocation, StoreTime, Want};

/// Renews leases. It never creates one.
pub(super) fn renew(ledger: &mut Ledger, now: StoreTime, leases: Vec<Renewal>) -> Outcome {
    let deadline = now.after(ledger.terms.lease);
    let (mut lost, mut revoked) = (Vec::new(), Vec::new());
    for Renewal { lease: id, token, priority, used } in leases {
        let Some(lease) = held(ledger, &id, token) else {
            lost.push(id);
            continue;
        };
        lease.deadline = deadline;
        lease.priority = priority.unwrap_or(lease.priority);
        if used {
            lease.used_at = now;
        }
        // The lease's bytes counted all the time, so no test of room is needed.
        if lease.state == LeaseState::Limbo {
            lease.state = LeaseState::Active;
        }
        if lease.state == LeaseState::Revoking {
            let remaining = lease.revoke_deadline.map(|until| until.since(now)).unwrap_or_default();
            let preemptor = lease.preemptor.clone().unwrap_or_default();
            if let Some(waiter) = ledger.waiters.get(&preemptor) {
                let wanted = match &waiter.want {
                    Want::Parts(parts) => parts.clone(),
                    Want::AnyOf { bytes, devices, .. } => devices.iter().map(|key| (key.clone(), *bytes)).collect(),
                    Want::Other(_) => Vec::new(),
                };
                let (wanted_by, priority) = (waiter.owner.label.to_string(), waiter.priority);
                revoked.push(Revocation { lease: id, remaining, wanted_by, priority, wanted });
            }
        }
    }
    Outcome::Renewed { lost, revoked }
}
