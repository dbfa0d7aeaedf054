//! The ways in which bytes leave the ledger. There is one other: dropping what was never touched.

use super::held::{held, unsettle};
use crate::unknown::UnknownFields;
use crate::{Evidence, Forced, Lease, LeaseId, LeaseState, Ledger, Outcome, Process, StoreTime, Token};

/// So many requests that ended are remembered: a user who asks and releases all day long swells nothing.
const ENDED: usize = 4_096;
/// So many forced releases are kept.
const FORCED: usize = 32;

/// The holder gives its bytes back. Without evidence they stay counted.
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

/// Somebody shows that every process of the lease is gone. Only who sees its pid namespace can know.
pub(super) fn confirm_dead(
    ledger: &mut Ledger,
    now: StoreTime,
    id: &LeaseId,
    gone: &[Process],
    seen_from: &[String],
) -> Outcome {
    let Some(lease) = ledger.leases.get(id) else { return Outcome::Lost };
    let shown = |process: &Process| seen_from.contains(&process.pid_ns) && gone.contains(process);
    // Nobody else can attach to a promise whose owner is gone.
    let dead = if lease.pids.is_empty() { shown(&lease.owner.process) } else { lease.family().all(shown) };
    if !dead {
        return Outcome::NotShown;
    }
    end(ledger, id, now);
    Outcome::Released
}

/// An operator ends a lease whatever its processes do. The ledger keeps that it was forced, and by whom.
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

/// Takes the lease out of the ledger. Its devices count as unsettled: the driver may show its bytes for a while.
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

/// Degraded accounting: what a load takes is what the device shows more than when it was granted. What left meanwhile would
/// hide as much of it, and the load would be thought to be taking it still for as long as it stays.
fn forget_growth(ledger: &mut Ledger, gone: &Lease) {
    for (device, bytes) in gone.parts.iter().filter_map(|part| Some((&part.device, part.settled?))) {
        let parts = ledger.leases.values_mut().flat_map(|lease| &mut lease.parts);
        for part in parts.filter(|part| part.device == *device && part.settled.is_none()) {
            part.used_before = part.used_before.map(|used| used.saturating_sub(bytes));
        }
    }
}
