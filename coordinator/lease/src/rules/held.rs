//! Access to a lease by its token, and the effect of its change on its devices.

use crate::{Lease, LeaseId, Ledger, StoreTime, Token};

/// The lease, if the token is its present one.
pub(super) fn held<'a>(ledger: &'a mut Ledger, id: &LeaseId, token: Token) -> Option<&'a mut Lease> {
    ledger.leases.get_mut(id).filter(|lease| lease.token == token)
}

/// Marks the lease's devices as unsettled: they grant no bytes until they are observed again.
pub(super) fn unsettle(ledger: &mut Ledger, id: &LeaseId, now: StoreTime) {
    let Some(lease) = ledger.leases.get(id) else { return };
    for part in &lease.parts {
        if let Some(device) = ledger.devices.get_mut(&part.device) {
            device.unsettled_since = Some(now);
        }
    }
}
