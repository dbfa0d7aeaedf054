//! Changes of a lease's size: always possible downwards, and upwards by the same test as for a new lease.

use std::collections::BTreeSet;

use model_boss_protocol::ByteCount;

use super::fit::{self, DeviceDemand};
use super::grant::well_formed;
use super::held::{held, unsettle};
use super::nominate::{self, QueuePosition};
use crate::{DeviceKey, LeaseId, Ledger, OpRefusal, Outcome, StoreTime, Token};

pub(super) fn resize(
    ledger: &mut Ledger,
    now: StoreTime,
    id: &LeaseId,
    token: Token,
    parts: &[(DeviceKey, ByteCount)],
) -> Outcome {
    let Some(lease) = held(ledger, id, token) else { return Outcome::Lost };
    let promised = lease.parts.iter().filter(|part| part.bytes > ByteCount::ZERO);
    let before: BTreeSet<_> = promised.map(|part| &part.device).collect();
    let after: BTreeSet<_> = parts.iter().map(|(device, _)| device).collect();
    if !well_formed(parts) || before != after {
        return Outcome::Refused(OpRefusal::BadParts);
    }
    let size_of = |device: &DeviceKey| parts.iter().find(|(d, _)| d == device).map_or(ByteCount::ZERO, |(_, b)| *b);
    let lease = lease.clone();
    let growth: Vec<_> = lease
        .parts
        .iter()
        .map(|part| (part, size_of(&part.device)))
        .filter(|(part, size)| *size > part.bytes)
        .map(|(part, size)| DeviceDemand { device: &part.device, size, more: size.saturating_sub(part.charged()) })
        .collect();
    if !growth.is_empty() {
        if let Some(retry_after) = ledger.recovering() {
            return Outcome::Recovering { retry_after };
        }
        let place = QueuePosition {
            priority: lease.priority,
            arrived: nominate::arrival(ledger, now),
            request_id: &lease.request_id,
        };
        let first = nominate::before(ledger, now, place, &lease.owner.process);
        if let Err(outcome) = fit::fits(ledger, now, &growth, &first) {
            return outcome;
        }
    }
    let shrinks = lease.parts.iter().any(|part| size_of(&part.device) < part.bytes);
    if let Some(lease) = held(ledger, id, token) {
        for part in &mut lease.parts {
            part.bytes = size_of(&part.device);
        }
        lease.in_default &= !shrinks;
    }
    if shrinks {
        unsettle(ledger, id, now);
    }
    Outcome::Resized
}
