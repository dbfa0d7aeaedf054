//! Changes of the ledger that follow from time alone. An expired lease is not yet released.

use crate::{LeaseState, Ledger, StoreTime};

/// Drops promises that no process was ever attached to, expired places in the queue, and request ids that ended long
/// ago. A lease that is not renewed changes to `LIMBO`, where its bytes still count.
pub(super) fn expire(ledger: &mut Ledger, now: StoreTime) {
    ledger.leases.retain(|_, lease| !(lease.is_untouched() && lease.deadline <= now));
    for lease in ledger.leases.values_mut() {
        if matches!(lease.state, LeaseState::Active | LeaseState::Revoking) && lease.deadline <= now {
            lease.state = LeaseState::Limbo;
            (lease.revoke_deadline, lease.preemptor) = (None, None);
        }
    }
    ledger.waiters.retain(|_, waiter| waiter.deadline > now);
    let remembered = ledger.terms.remembered;
    ledger.done.retain(|_, ended| ended.after(remembered) > now);
    ledger.recovering_until = ledger.recovering_until.filter(|until| *until > now);
}
