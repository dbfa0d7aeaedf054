//! The recovery window, which opens after records may have been lost or time has jumped. No lease is granted until
//! every living holder has had time to renew its leases and report them again.

use std::time::Duration;

use super::grant::next_token;
use crate::{LeaseState, Ledger, SCHEMA, StoreTime};

/// The difference up to which a clock behind the latest time seen is waited for: every lease is longer.
const SMALL_STEP: Duration = Duration::from_secs(1);

/// Records the store's process that the document was read from. Another process than before may have lost the last
/// writes.
pub fn read_from(ledger: &mut Ledger, time: StoreTime, run_id: &str) {
    if ledger.schema > SCHEMA {
        return;
    }
    let before = ledger.run_id.replace(run_id.to_owned());
    if before.is_some_and(|before| before != run_id) {
        let now = time.max(ledger.last_time);
        open_window(ledger, now, now);
    }
}

/// Notes that a document must have existed before this new, empty one.
pub fn after_loss(ledger: &mut Ledger, time: StoreTime) {
    let now = time.max(ledger.last_time);
    open_window(ledger, now, now);
    ledger.last_time = now;
}

/// The time to use: never before the latest seen, unless the store's clock was really set back. After a jump in either
/// direction, the clock does not show which holders renewed in time.
pub(super) fn advance(ledger: &mut Ledger, time: StoreTime) -> StoreTime {
    let last = ledger.last_time;
    let can_jump = ledger.run_id.is_some();
    let back = can_jump && last.since(time) > SMALL_STEP.min(ledger.terms.lease);
    let lives = ledger.leases.values().any(|lease| lease.state != LeaseState::Limbo);
    let forward = can_jump && lives && time.since(last) > ledger.terms.jump;
    let now = if back { time } else { time.max(last) };
    if back {
        forget_the_future(ledger, now);
    }
    if back || forward {
        open_window(ledger, last, now);
    }
    ledger.last_time = now;
    now
}

/// Opens the window at `now`. Deadlines keep their distance: one some time after `last` moves to the same time after
/// `now`, and not too soon.
fn open_window(ledger: &mut Ledger, last: StoreTime, now: StoreTime) {
    next_token(ledger, now);
    ledger.recovering_until = Some(now.after(ledger.terms.recovery()));
    // Promises without a process used no bytes, and leases granted after they were written may be among the lost
    // ones.
    ledger.leases.retain(|_, lease| !lease.is_untouched());
    let due = now.after(ledger.terms.lease);
    for lease in ledger.leases.values_mut() {
        lease.deadline = due;
        lease.revoke_deadline = lease.revoke_deadline.map(|until| now.after(until.since(last)).max(due));
    }
    for waiter in ledger.waiters.values_mut() {
        waiter.deadline = due;
    }
}

/// Limits all times in the ledger to `now`, after the clock was set back.
fn forget_the_future(ledger: &mut Ledger, now: StoreTime) {
    for device in ledger.devices.values_mut() {
        if device.observed_at.is_some_and(|at| at > now) {
            (device.observed_at, device.used, device.foreign) = (None, None, None);
            device.strangers.clear();
        }
        device.unsettled_since = device.unsettled_since.map(|at| at.min(now));
    }
    for lease in ledger.leases.values_mut() {
        lease.granted_at = lease.granted_at.min(now);
        lease.used_at = lease.used_at.min(now);
        lease.attached_at = lease.attached_at.map(|at| at.min(now));
        lease.loaded_at = lease.loaded_at.map(|at| at.min(now));
    }
    for forced in &mut ledger.forced {
        forced.at = forced.at.min(now);
    }
    for ended in ledger.done.values_mut() {
        *ended = (*ended).min(now);
    }
}
