//! The ways in which bytes leave the ledger. The only other one is to drop a promise that no process was attached to.

use super::held::{held, unsettle};
use crate::unknown::UnknownFields;
use crate::{Evidence, Forced, Lease, LeaseId, LeaseState, Ledger, Outcome, Process, StoreTime, Token};

/// The number of ended requests remembered, so that frequent requests and releases do not grow the ledger.
const ENDED: usize = 4_096;
/// The number of forced releases kept.
const FORCED: usize = 32;

/// Releases a lease. Without evidence its bytes still count.
pub(super) fn release(ledger: &mut Ledger, now: StoreTime, id: &LeaseId, token: Token, evidence: Evidence) -> Outcome {
    let Some(lease) = held(ledger, id, token) else { return Outcome::Lost };
    if evidence == Evidence::None && !lease.pids.is_empty() {
        lease.state = LeaseState::Limbo;
        (lease.revoke_deadline, lease.preemptor) = (None, None);
        return Outcome::InLimbo;
    }
    end(ledger, id, now);
    Outcome::Released
}

/// Ends a lease whose processes are all shown to be gone. Only a caller that can read their pid namespace can show
/// that.
pub(super) fn confirm_dead(
    ledger: &mut Ledger,
    now: StoreTime,
    id: &LeaseId,
    gone: &[Process],
    seen_from: &[String],
) -> Outcome {
    let Some(lease) = ledger.leases.get(id) else { return Outcome::Lost };
    let shown = |process: &Process| seen_from.contains(&process.pid_ns) && gone.contains(process);
    // No other process can attach to a promise whose owner is gone.
    let dead = if lease.pids.is_empty() { shown(&lease.owner.process) } else { lease.family().all(shown) };
    if !dead {
        return Outcome::NotShown;
    }
    end(ledger, id, now);
    Outcome::Released
}

/// Ends a lease on an operator's order, even if its processes are alive. The ledger records that it was forced, and by
/// which user.
pub(super) fn force(ledger: &mut Ledger, now: StoreTime, id: &LeaseId, by: String) -> Outcome {
    let Some(lease) = ledger.leases.get(id) else { return Outcome::Lost };
    let (owner, pids) = (lease.owner.clone(), lease.pids.clone());
    let parts = lease.parts.iter().map(|part| (part.device.clone(), part.charged())).collect();
    let forced =
        Forced { lease: id.clone(), owner, pids, parts, at: now, by: by.into(), unknown: UnknownFields::default() };
    ledger.forced.push(forced);
    let old = ledger.forced.len().saturating_sub(FORCED);
    ledger.forced.drain(..old);
    end(ledger, id, now);
    Outcome::Released
}

/// Removes the lease from the ledger. Its devices count as unsettled, since the driver may show its bytes for a
/// while.
pub(super) fn end(ledger: &mut Ledger, id: &LeaseId, now: StoreTime) {
    let touched = ledger.leases.get(id).is_some_and(|lease| !lease.pids.is_empty());
    if touched {
        unsettle(ledger, id, now);
    }
    if let Some(lease) = ledger.leases.remove(id) {
        forget_growth(ledger, &lease);
        ledger.done.insert(lease.request_id, now);
        if ledger.done.len() > ENDED {
            let oldest = ledger.done.iter().min_by_key(|(_, ended)| **ended).map(|(id, _)| id.clone());
            oldest.map(|id| ledger.done.remove(&id));
        }
    }
}

/// Corrects the running loads for a lease that ended, under degraded accounting. The bytes of a load are the growth
/// of the device's use since its grant. A lease that ended meanwhile would hide as much growth, and the load would
/// never count as complete.
fn forget_growth(ledger: &mut Ledger, gone: &Lease) {
    for (device, bytes) in gone.parts.iter().filter_map(|part| Some((&part.device, part.settled?))) {
        let parts = ledger.leases.values_mut().flat_map(|lease| &mut lease.parts);
        for part in parts.filter(|part| part.device == *device && part.settled.is_none()) {
            part.used_before = part.used_before.map(|used| used.saturating_sub(bytes));
        }
    }
}
