//! The rules themselves, one file each.

mod acquire;
mod attach;
mod crowd;
mod end;
mod expire;
mod fit;
mod nominate;
mod observe;
mod preempt;
mod reassert;
mod recover;
mod renew;
mod resize;

use std::collections::BTreeSet;

use model_boss_protocol::ByteCount;

use crate::{DeviceKey, Lease, LeaseId, Ledger, Op, Outcome, Refusal, SCHEMA, StoreTime, Token};

pub use nominate::nominations;
pub use recover::{after_loss, read_from};

/// Applies one operation at the store's time.
pub fn apply(ledger: &mut Ledger, now: StoreTime, op: Op) -> Outcome {
    // A process older than the document may only renew and release its own, and leaves everything else as it is.
    if ledger.schema > SCHEMA {
        let now = now.max(ledger.last_time);
        return match op {
            Op::Renew { leases } => renew::renew(ledger, now, leases),
            Op::Release { lease, token, evidence } => end::release(ledger, now, &lease, token, evidence),
            _ => Outcome::Refused(Refusal::NewerSchema(ledger.schema)),
        };
    }
    let now = recover::advance(ledger, now);
    expire::expire(ledger, now);
    preempt::review(ledger, now);
    match op {
        Op::Declare { device, name, capacity, reserve, accounting, by } => {
            observe::declare(ledger, device, name, (capacity, reserve), accounting, &by)
        }
        Op::Observe { device, used, processes, sampled_at } => {
            observe::observe(ledger, &device, used, processes, sampled_at.min(now))
        }
        Op::Acquire(request) => acquire::acquire(ledger, now, request),
        Op::Cancel { request_id, owner } => acquire::cancel(ledger, now, &request_id, &owner),
        Op::Attach { lease, token, process, boot_id } => attach::attach(ledger, now, &lease, token, process, &boot_id),
        Op::Settle { lease, token } => attach::settle(ledger, now, &lease, token),
        Op::Renew { leases } => renew::renew(ledger, now, leases),
        Op::Resize { lease, token, parts } => resize::resize(ledger, now, &lease, token, &parts),
        Op::Release { lease, token, evidence } => end::release(ledger, now, &lease, token, evidence),
        Op::ConfirmDead { lease, gone, seen_from } => end::confirm_dead(ledger, now, &lease, &gone, &seen_from),
        Op::Force { lease, by } => end::force(ledger, now, &lease, by),
        Op::Reassert(record) => reassert::reassert(ledger, now, record),
    }
}

/// Takes the next token: larger than every one before, also after a loss, because it is the time at least.
fn next_token(ledger: &mut Ledger, now: StoreTime) -> Token {
    ledger.fence = Token(ledger.fence.0.saturating_add(1).max(now.0));
    ledger.fence
}

/// The lease, if the token is its own.
fn held<'a>(ledger: &'a mut Ledger, id: &LeaseId, token: Token) -> Option<&'a mut Lease> {
    ledger.leases.get_mut(id).filter(|lease| lease.token == token)
}

/// After this, the lease's devices grant nothing until they were looked at again.
fn unsettle(ledger: &mut Ledger, id: &LeaseId, now: StoreTime) {
    let Some(lease) = ledger.leases.get(id) else { return };
    for part in &lease.parts {
        if let Some(device) = ledger.devices.get_mut(&part.device) {
            device.unsettled_since = Some(now);
        }
    }
}

fn well_formed(parts: &[(DeviceKey, ByteCount)]) -> bool {
    let devices: BTreeSet<_> = parts.iter().map(|(device, _)| device).collect();
    !parts.is_empty() && devices.len() == parts.len() && parts.iter().all(|(_, bytes)| *bytes > ByteCount::ZERO)
}
