//! One operation: the time advances, then the rule of the operation is applied.

use super::{acquire, attach, end, expire, observe, preempt, reassert, recover, renew, resize};
use crate::{Ledger, Op, OpRefusal, Outcome, SCHEMA, StoreTime};

/// Applies one operation at the store's time.
pub fn apply(ledger: &mut Ledger, now: StoreTime, op: Op) -> Outcome {
    // A process older than the document may only renew and release its own leases.
    if ledger.schema > SCHEMA {
        let now = now.max(ledger.last_time);
        return match op {
            Op::Renew { leases } => renew::renew(ledger, now, leases),
            Op::Release { lease, token, evidence } => end::release(ledger, now, &lease, token, evidence),
            _ => Outcome::Refused(OpRefusal::NewerSchema(ledger.schema)),
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
