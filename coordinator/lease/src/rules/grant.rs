//! Tokens and parts of new leases.

use std::collections::BTreeSet;

use model_boss_protocol::ByteCount;

use crate::{DeviceKey, Ledger, StoreTime, Token};

/// Takes the next token. It is larger than every one before, even after a loss, because it is at least the time.
pub(super) fn next_token(ledger: &mut Ledger, now: StoreTime) -> Token {
    ledger.fence = Token(ledger.fence.0.saturating_add(1).max(now.0));
    ledger.fence
}

pub(super) fn well_formed(parts: &[(DeviceKey, ByteCount)]) -> bool {
    let devices: BTreeSet<_> = parts.iter().map(|(device, _)| device).collect();
    !parts.is_empty() && devices.len() == parts.len() && parts.iter().all(|(_, bytes)| *bytes > ByteCount::ZERO)
}
