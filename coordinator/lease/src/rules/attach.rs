//! The gate: a process may use a device only after the ledger has recorded it.

use super::held::{held, unsettle};
use crate::{LeaseId, LeaseState, Ledger, Outcome, Process, StoreTime, Token};

pub(super) fn attach(
    ledger: &mut Ledger,
    now: StoreTime,
    id: &LeaseId,
    token: Token,
    process: Process,
    boot_id: &str,
) -> Outcome {
    if ledger.boot_id != boot_id {
        return Outcome::Lost;
    }
    let recovering = ledger.recovering();
    let deadline = now.after(ledger.terms.lease);
    let Some(lease) = held(ledger, id, token) else { return Outcome::Lost };
    // A process that is attached already may repeat its attachment.
    if let Some(retry_after) = recovering
        && !lease.pids.contains(&process)
    {
        return Outcome::Recovering { retry_after };
    }
    if !lease.pids.contains(&process) {
        lease.pids.push(process);
    }
    if lease.state != LeaseState::Revoking {
        lease.state = LeaseState::Active;
    }
    lease.deadline = deadline;
    lease.attached_at = Some(now);
    unsettle(ledger, id, now);
    Outcome::Attached
}

pub(super) fn settle(ledger: &mut Ledger, now: StoreTime, id: &LeaseId, token: Token) -> Outcome {
    let Some(lease) = held(ledger, id, token) else { return Outcome::Lost };
    lease.loaded_at.get_or_insert(now);
    Outcome::Noted
}
