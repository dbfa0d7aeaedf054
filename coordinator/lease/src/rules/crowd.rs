//! Limits on the entries of the ledger, per user and in all. Coordinators are not limited here, since their number of
//! models is.

use crate::{Ledger, OpRefusal, Outcome, Owner, OwnerKind};

/// The number of leases and waiting requests of one user.
const OF_A_USER: usize = 256;
/// The number of leases and waiting requests of all users together.
const IN_ALL: usize = 2_048;

/// Whether one more lease or request of this owner has room in the ledger.
pub(super) fn has_room(ledger: &Ledger, owner: &Owner) -> Result<(), Outcome> {
    if owner.kind == OwnerKind::Coordinator {
        return Ok(());
    }
    let holders = ledger.leases.values().map(|lease| &lease.owner);
    let all = holders.chain(ledger.waiters.values().map(|waiter| &waiter.owner));
    let (mut own, mut others) = (0, 0);
    for other in all.filter(|other| other.kind != OwnerKind::Coordinator) {
        *(if other.user == owner.user { &mut own } else { &mut others }) += 1;
    }
    let refused = |whose: String, limit| Err(Outcome::Refused(OpRefusal::TooMany { whose, limit }));
    if own >= OF_A_USER {
        let user =
            owner.user.map_or_else(|| "callers whose user is not known".to_owned(), |user| format!("user {user}"));
        return refused(format!("{user} may have"), OF_A_USER);
    }
    if own + others >= IN_ALL {
        return refused("all users together may have".to_owned(), IN_ALL);
    }
    Ok(())
}
