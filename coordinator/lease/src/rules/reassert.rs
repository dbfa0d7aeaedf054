//! Reports of leases by their holders, after the store may have lost them. The memory in use counts even if the ledger
//! has no record of it.

use model_boss_protocol::ByteCount;

use super::crowd;
use super::fit::{self, DeviceDemand};
use super::grant::{next_token, well_formed};
use super::held::unsettle;
use super::nominate::{self, QueuePosition};
use crate::{
    Accounting, DeviceKey, Lease, LeaseId, LeaseState, LeaseWaitReason, Ledger, OpRefusal, Outcome, Part, Record,
    StoreTime, Token, Wait,
};

/// Restores a lease by its holder's record. In the recovery window the record is accepted as it is. At other times,
/// bytes that the newest observation shows the record's processes to use are accepted; only the rest needs room.
pub(super) fn reassert(ledger: &mut Ledger, now: StoreTime, record: Record) -> Outcome {
    // Without an attached process no byte is in use, and the record may be dropped.
    if ledger.boot_id != record.boot_id || record.pids.is_empty() || ledger.done.contains_key(&record.request_id) {
        return Outcome::Lost;
    }
    if !well_formed(&record.parts) {
        return Outcome::Refused(OpRefusal::BadParts);
    }
    let known = ledger.leases.get(&record.lease).map(|lease| lease.token);
    if known.zip(record.token).is_some_and(|(known, stated)| known != stated) {
        return Outcome::Lost;
    }
    let namesake = ledger
        .leases
        .iter()
        .find(|(id, lease)| **id != record.lease && lease.request_id == record.request_id)
        .map(|(id, lease)| (id.clone(), lease.is_untouched()));
    match namesake {
        Some((_, false)) => return Outcome::Lost,
        // The request was repeated and granted anew, and no process passed that lease's gate.
        Some((id, true)) => drop(ledger.leases.remove(&id)),
        None => {}
    }
    if known.is_none()
        && let Err(outcome) = crowd::has_room(ledger, &record.owner)
    {
        return outcome;
    }
    let sizes = match sizes(ledger, now, &record) {
        Ok(sizes) => sizes,
        Err(outcome) => return outcome,
    };
    let token = known.or(record.token).unwrap_or_else(|| next_token(ledger, now));
    ledger.fence = ledger.fence.max(token);
    ledger.waiters.remove(&record.request_id);
    let parts = sizes.iter().map(|(device, bytes, _)| (device.clone(), *bytes)).collect();
    write(ledger, now, (token, record), sizes);
    Outcome::Reasserted { parts }
}

/// Device, size, and the part of it that the newest observation counts as foreign.
type SizedPart = (DeviceKey, ByteCount, ByteCount);

fn sizes(ledger: &Ledger, now: StoreTime, record: &Record) -> Result<Vec<SizedPart>, Outcome> {
    let recovering = ledger.recovering().is_some();
    let known = ledger.leases.get(&record.lease);
    let place = QueuePosition {
        priority: record.priority,
        arrived: nominate::arrival(ledger, now),
        request_id: &record.request_id,
    };
    let first = nominate::before(ledger, now, place, &record.owner.process);
    let mut sizes: Vec<SizedPart> = Vec::new();
    for (device, stated) in &record.parts {
        let counted = known.map(|lease| lease.charged(device)).unwrap_or_default();
        let shown = shown(ledger, record, device);
        let bytes = if recovering {
            *stated
        } else {
            let physical = counted + shown;
            let more = stated.saturating_sub(physical);
            let demand = DeviceDemand { device, size: *stated, more };
            match fit::fits(ledger, now, &[demand], &first) {
                _ if more == ByteCount::ZERO => *stated,
                Ok(()) => *stated,
                // The holder's use cannot be measured: it keeps its lease, and repeats the request.
                Err(Outcome::Wait(Wait { reason, position })) if unclear(ledger, device, &reason) => {
                    return Err(Outcome::Wait(Wait { position, reason }));
                }
                Err(_) => physical.min(*stated),
            }
        };
        if bytes > ByteCount::ZERO {
            sizes.push((device.clone(), bytes, shown));
        }
    }
    if sizes.is_empty() { Err(Outcome::Lost) } else { Ok(sizes) }
}

/// Whether the newest observation cannot assign bytes to processes.
fn unclear(ledger: &Ledger, device: &DeviceKey, reason: &LeaseWaitReason) -> bool {
    let told = ledger.devices.get(device).is_some_and(|device| device.accounting == Accounting::PerProcess);
    !told
        || matches!(
            reason,
            LeaseWaitReason::Unobserved { .. } | LeaseWaitReason::Stale { .. } | LeaseWaitReason::Unsettled { .. }
        )
}

/// The bytes that the newest observation shows the record's processes to use, beyond any lease.
fn shown(ledger: &Ledger, record: &Record, device: &DeviceKey) -> ByteCount {
    let strangers = ledger.devices.get(device).map(|device| device.strangers.as_slice()).unwrap_or_default();
    let own = strangers.iter().filter(|usage| usage.lineage.iter().any(|process| record.pids.contains(process)));
    own.map(|usage| usage.bytes).sum()
}

fn write(ledger: &mut Ledger, now: StoreTime, (token, record): (Token, Record), sizes: Vec<SizedPart>) {
    let deadline = now.after(ledger.terms.lease);
    let Record { lease: id, request_id, owner, priority, yielding, pids, .. } = record;
    let lease = ledger
        .leases
        .entry(id.clone())
        .or_insert_with(|| Lease::new(token, request_id, (owner, priority, yielding), Vec::new(), (now, deadline)));
    lease.deadline = deadline;
    lease.attached_at.get_or_insert(now);
    if lease.state != LeaseState::Revoking {
        lease.state = LeaseState::Active;
    }
    for (device, bytes, _) in &sizes {
        match lease.parts.iter_mut().find(|part| part.device == *device) {
            Some(part) => part.bytes = part.bytes.max(*bytes),
            None => lease.parts.push(Part::new(device.clone(), *bytes)),
        }
    }
    for process in &pids {
        if !lease.pids.contains(process) {
            lease.pids.push(process.clone());
        }
    }
    for (device, _, shown) in sizes {
        claim(ledger, &id, &device, shown);
    }
    unsettle(ledger, &id, now);
}

/// Moves bytes of the lease that counted as foreign to the lease.
fn claim(ledger: &mut Ledger, id: &LeaseId, key: &DeviceKey, shown: ByteCount) {
    let (Some(device), Some(lease)) = (ledger.devices.get_mut(key), ledger.leases.get_mut(id)) else { return };
    device.foreign = device.foreign.map(|foreign| foreign.saturating_sub(shown));
    let pids = &lease.pids;
    device.strangers.retain(|usage| !usage.lineage.iter().any(|process| pids.contains(process)));
    for part in lease.parts.iter_mut().filter(|part| part.device == *key) {
        part.measured = Some(part.measured.unwrap_or_default() + shown);
    }
}
