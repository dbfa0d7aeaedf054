//! The rules themselves.

use std::collections::BTreeSet;

use model_boss_protocol::{ByteCount, Priority};

use crate::{
    Device, DeviceKey, Evidence, Grant, Lease, LeaseId, LeaseState, Ledger, NeverFits, Op, Outcome, Owner, Part,
    Process, ProcessUse, Refusal, SCHEMA, StoreTime, Token, WaitReason,
};

/// Applies one operation at the store's time `now`. A time before the latest seen counts as the latest seen.
pub fn apply(ledger: &mut Ledger, now: StoreTime, op: Op) -> Outcome {
    if ledger.schema > SCHEMA && !matches!(op, Op::Renew { .. } | Op::Release { .. }) {
        return Outcome::Refused(Refusal::NewerSchema(ledger.schema));
    }
    let now = now.max(ledger.last_time);
    ledger.last_time = now;
    if ledger.schema <= SCHEMA {
        expire(ledger, now);
    }
    match op {
        Op::Declare { device, name, capacity, reserve } => declare(ledger, device, name, capacity, reserve),
        Op::Observe { device, used, processes, sampled_at } => {
            observe(ledger, &device, used, &processes, sampled_at.min(now))
        }
        Op::Acquire { request_id, owner, priority, parts } => acquire(ledger, now, request_id, owner, priority, parts),
        Op::Attach { lease, token, process, boot_id } => attach(ledger, now, &lease, token, process, &boot_id),
        Op::Renew { leases } => renew(ledger, now, leases),
        Op::Resize { lease, token, parts } => resize(ledger, now, &lease, token, &parts),
        Op::Release { lease, token, evidence } => release(ledger, now, &lease, token, evidence),
        Op::ConfirmDead { lease, gone, seen_from } => confirm_dead(ledger, now, &lease, &gone, &seen_from),
    }
}

/// Expiry is not release: only a promise that no process was ever attached to is dropped.
fn expire(ledger: &mut Ledger, now: StoreTime) {
    ledger
        .leases
        .retain(|_, lease| !(lease.state == LeaseState::Pending && lease.pids.is_empty() && lease.deadline <= now));
    for lease in ledger.leases.values_mut() {
        if lease.state == LeaseState::Active && lease.deadline <= now {
            lease.state = LeaseState::Limbo;
        }
    }
    let remembered = ledger.terms.remembered;
    ledger.done.retain(|_, ended| ended.after(remembered) > now);
}

fn declare(ledger: &mut Ledger, key: DeviceKey, name: String, capacity: ByteCount, reserve: ByteCount) -> Outcome {
    match ledger.devices.get_mut(&key) {
        Some(device) => (device.name, device.capacity, device.reserve) = (name, capacity, reserve),
        None => {
            ledger.devices.insert(key, Device::new(name, capacity, reserve));
        }
    }
    Outcome::Noted
}

fn observe(
    ledger: &mut Ledger,
    key: &DeviceKey,
    used: Option<ByteCount>,
    processes: &[ProcessUse],
    sampled_at: StoreTime,
) -> Outcome {
    let Some(device) = ledger.devices.get_mut(key) else {
        return Outcome::Refused(Refusal::UnknownDevice(key.clone()));
    };
    if device.observed_at.is_some_and(|seen| seen >= sampled_at) {
        return Outcome::Noted;
    }
    // A process is counted once, for the nearest leased process in its line.
    let leased = |usage: &&ProcessUse, lease: &Lease| {
        let nearest = usage.lineage.iter().find(|process| ledger.leases.values().any(|l| l.pids.contains(process)));
        nearest.is_some_and(|process| lease.pids.contains(process))
    };
    let measured: Vec<(LeaseId, ByteCount)> = ledger
        .leases
        .iter()
        .filter(|(_, lease)| !lease.pids.is_empty())
        .map(|(id, lease)| (id.clone(), processes.iter().filter(|u| leased(u, lease)).map(|u| u.bytes).sum()))
        .collect();
    device.foreign = used.map(|used| used.saturating_sub(measured.iter().map(|(_, bytes)| *bytes).sum()));
    device.used = used;
    device.observed_at = Some(sampled_at);
    device.unsettled_since = device.unsettled_since.filter(|changed| *changed >= sampled_at);
    if used.is_some() {
        for (id, bytes) in measured {
            let parts = ledger.leases.get_mut(&id).map(|lease| lease.parts.as_mut_slice()).unwrap_or_default();
            for part in parts.iter_mut().filter(|part| part.device == *key) {
                part.measured = Some(bytes);
            }
        }
    }
    Outcome::Noted
}

fn acquire(
    ledger: &mut Ledger,
    now: StoreTime,
    request_id: String,
    owner: Owner,
    priority: Priority,
    parts: Vec<(DeviceKey, ByteCount)>,
) -> Outcome {
    if let Some((id, lease)) = ledger.leases.iter().find(|(_, lease)| lease.request_id == request_id) {
        if lease.owner.process != owner.process {
            return Outcome::Refused(Refusal::NotYours(request_id));
        }
        return Outcome::Granted(Grant { lease: id.clone(), token: lease.token, deadline: lease.deadline });
    }
    if ledger.done.contains_key(&request_id) {
        return Outcome::Refused(Refusal::AlreadyEnded(request_id));
    }
    if !well_formed(&parts) {
        return Outcome::Refused(Refusal::BadParts);
    }
    let demands: Vec<_> = parts.iter().map(|(device, bytes)| (device, *bytes, *bytes)).collect();
    if let Err(outcome) = fits(ledger, now, &demands) {
        return outcome;
    }
    let token = Token((ledger.fence.0 + 1).max(now.0));
    ledger.fence = token;
    let deadline = now.after(ledger.terms.lease);
    let parts = parts.into_iter().map(|(device, bytes)| Part::new(device, bytes)).collect();
    let lease = Lease::new(token, request_id, owner, priority, parts, (now, deadline));
    ledger.leases.insert(LeaseId::of(token), lease);
    Outcome::Granted(Grant { lease: LeaseId::of(token), token, deadline })
}

fn attach(ledger: &mut Ledger, now: StoreTime, id: &LeaseId, token: Token, process: Process, boot_id: &str) -> Outcome {
    if ledger.boot_id != boot_id {
        return Outcome::Lost;
    }
    let deadline = now.after(ledger.terms.lease);
    let Some(lease) = held(ledger, id, token) else { return Outcome::Lost };
    if !lease.pids.contains(&process) {
        lease.pids.push(process);
    }
    lease.state = LeaseState::Active;
    lease.deadline = deadline;
    unsettle(ledger, id, now);
    Outcome::Attached
}

fn renew(ledger: &mut Ledger, now: StoreTime, leases: Vec<(LeaseId, Token)>) -> Outcome {
    let deadline = now.after(ledger.terms.lease);
    let mut lost = Vec::new();
    for (id, token) in leases {
        match held(ledger, &id, token) {
            Some(lease) => {
                lease.deadline = deadline;
                // Its bytes never left, so nothing has to be tested.
                if lease.state == LeaseState::Limbo {
                    lease.state = LeaseState::Active;
                }
            }
            None => lost.push(id),
        }
    }
    Outcome::Renewed { lost }
}

fn resize(
    ledger: &mut Ledger,
    now: StoreTime,
    id: &LeaseId,
    token: Token,
    parts: &[(DeviceKey, ByteCount)],
) -> Outcome {
    let Some(lease) = held(ledger, id, token) else { return Outcome::Lost };
    let before: BTreeSet<_> = lease.parts.iter().map(|part| &part.device).collect();
    let after: BTreeSet<_> = parts.iter().map(|(device, _)| device).collect();
    if !well_formed(parts) || before != after {
        return Outcome::Refused(Refusal::BadParts);
    }
    let size_of = |device: &DeviceKey| parts.iter().find(|(d, _)| d == device).map_or(ByteCount::ZERO, |(_, b)| *b);
    let lease = lease.clone();
    let growth: Vec<_> = lease
        .parts
        .iter()
        .filter(|part| size_of(&part.device) > part.bytes)
        .map(|part| (&part.device, size_of(&part.device), size_of(&part.device).saturating_sub(part.charged())))
        .collect();
    if let Err(outcome) = fits(ledger, now, &growth) {
        return outcome;
    }
    let shrinks = lease.parts.iter().any(|part| size_of(&part.device) < part.bytes);
    if let Some(lease) = held(ledger, id, token) {
        for part in &mut lease.parts {
            part.bytes = size_of(&part.device);
        }
    }
    if shrinks {
        unsettle(ledger, id, now);
    }
    Outcome::Resized
}

fn release(ledger: &mut Ledger, now: StoreTime, id: &LeaseId, token: Token, evidence: Evidence) -> Outcome {
    let Some(lease) = held(ledger, id, token) else { return Outcome::Lost };
    if evidence == Evidence::None && !lease.pids.is_empty() {
        lease.state = LeaseState::Limbo;
        return Outcome::InLimbo;
    }
    end(ledger, id, now);
    Outcome::Released
}

fn confirm_dead(ledger: &mut Ledger, now: StoreTime, id: &LeaseId, gone: &[Process], seen_from: &str) -> Outcome {
    let Some(lease) = ledger.leases.get(id) else { return Outcome::Lost };
    let shown = |process: &Process| process.pid_ns == seen_from && gone.contains(process);
    // Nobody else can attach to a promise whose owner is gone.
    let dead = if lease.pids.is_empty() { shown(&lease.owner.process) } else { lease.pids.iter().all(shown) };
    if !dead {
        return Outcome::NotShown;
    }
    end(ledger, id, now);
    Outcome::Released
}

/// Takes the lease out of the ledger. Its devices count as unsettled: the driver may show its bytes for a while.
fn end(ledger: &mut Ledger, id: &LeaseId, now: StoreTime) {
    let touched = ledger.leases.get(id).is_some_and(|lease| !lease.pids.is_empty());
    if touched {
        unsettle(ledger, id, now);
    }
    if let Some(lease) = ledger.leases.remove(id) {
        ledger.done.insert(lease.request_id, now);
    }
}

fn unsettle(ledger: &mut Ledger, id: &LeaseId, now: StoreTime) {
    let Some(lease) = ledger.leases.get(id) else { return };
    for part in &lease.parts {
        if let Some(device) = ledger.devices.get_mut(&part.device) {
            device.unsettled_since = Some(now);
        }
    }
}

/// The lease, if the token is its own.
fn held<'a>(ledger: &'a mut Ledger, id: &LeaseId, token: Token) -> Option<&'a mut Lease> {
    ledger.leases.get_mut(id).filter(|lease| lease.token == token)
}

fn well_formed(parts: &[(DeviceKey, ByteCount)]) -> bool {
    let devices: BTreeSet<_> = parts.iter().map(|(device, _)| device).collect();
    !parts.is_empty() && devices.len() == parts.len() && parts.iter().all(|(_, bytes)| *bytes > ByteCount::ZERO)
}

/// Whether every demand (device, size in all, bytes to be found) can be met now.
fn fits(ledger: &Ledger, now: StoreTime, demands: &[(&DeviceKey, ByteCount, ByteCount)]) -> Result<(), Outcome> {
    for (key, needs, _) in demands {
        let device = ledger.devices.get(key).ok_or_else(|| Outcome::Refused(Refusal::UnknownDevice((*key).clone())))?;
        if *needs > device.leasable() {
            let (device, leasable) = (device.name.clone(), device.leasable());
            return Err(Outcome::NeverFits(NeverFits { device, needs: *needs, leasable }));
        }
    }
    for (key, _, more) in demands {
        let free = free(ledger, now, key).map_err(Outcome::Wait)?;
        if *more > free {
            let device = ledger.devices.get(key).map_or_else(|| key.to_string(), |device| device.name.clone());
            return Err(Outcome::Wait(WaitReason::Capacity { device, needs: *more, free }));
        }
    }
    Ok(())
}

/// What the device can still lease. Unknown, outdated or unsettled figures are a reason to wait, never a zero.
fn free(ledger: &Ledger, now: StoreTime, key: &DeviceKey) -> Result<ByteCount, WaitReason> {
    let unobserved = |device: &str| WaitReason::Unobserved { device: device.to_owned() };
    let device = ledger.devices.get(key).ok_or_else(|| unobserved(key.as_str()))?;
    let name = || device.name.clone();
    let (Some(foreign), Some(observed_at)) = (device.foreign, device.observed_at) else {
        return Err(unobserved(&device.name));
    };
    let age = now.since(observed_at);
    if age > ledger.terms.stale {
        return Err(WaitReason::Stale { device: name(), age });
    }
    if device.unsettled_since.is_some() {
        return Err(WaitReason::Unsettled { device: name() });
    }
    Ok(device.leasable().saturating_sub(foreign).saturating_sub(ledger.charged(key)))
}
