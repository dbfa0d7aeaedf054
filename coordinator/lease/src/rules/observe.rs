//! Declarations and observations of devices. A process tree counts as one: a descendant of an attached process is not
//! foreign.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use model_boss_protocol::ByteCount;

use crate::{
    Accounting, Device, DeviceKey, LeaseId, Ledger, OpRefusal, Outcome, OwnerKind, Part, Process, ProcessUse, StoreTime,
};

/// The number of processes without a lease that are recorded; further ones only count in the sum.
const STRANGERS: usize = 32;

pub(super) fn declare(
    ledger: &mut Ledger,
    key: DeviceKey,
    name: String,
    (capacity, reserve): (ByteCount, ByteCount),
    accounting: Accounting,
    by: &OwnerKind,
) -> Outcome {
    match ledger.devices.get_mut(&key) {
        Some(device) if *by == OwnerKind::Coordinator => {
            (device.name, device.capacity, device.reserve) = (name, capacity, reserve);
            if device.accounting != accounting {
                // Figures of another accounting do not apply, except for the foreign use before these loads.
                let before = device.foreign;
                (device.used, device.foreign, device.observed_at) = (None, None, None);
                device.accounting = accounting;
                let parts = ledger.leases.values_mut().flat_map(|lease| &mut lease.parts);
                for part in parts.filter(|part| part.device == key) {
                    part.used_before = part.used_before.or(before);
                }
            }
        }
        Some(_) => {}
        None => {
            ledger.devices.insert(key, Device::new(name, capacity, reserve, accounting));
        }
    }
    Outcome::Noted
}

pub(super) fn observe(
    ledger: &mut Ledger,
    key: &DeviceKey,
    used: Option<ByteCount>,
    processes: Vec<ProcessUse>,
    sampled_at: StoreTime,
) -> Outcome {
    let Some(device) = ledger.devices.get_mut(key) else {
        return Outcome::Refused(OpRefusal::UnknownDevice(key.clone()));
    };
    if device.observed_at.is_some_and(|seen| seen >= sampled_at) {
        return Outcome::Noted;
    }
    device.used = used;
    device.observed_at = Some(sampled_at);
    device.unsettled_since = device.unsettled_since.filter(|changed| *changed >= sampled_at);
    let accounting = device.accounting.clone();
    let Some(used) = used else {
        device.foreign = None;
        return Outcome::Noted;
    };
    match accounting {
        Accounting::PerProcess => tell_apart(ledger, key, used, processes),
        Accounting::Degraded { foreign } => {
            if let Some(device) = ledger.devices.get_mut(key) {
                device.foreign = Some(foreign);
            }
            complete_loads(ledger, key, used, sampled_at);
        }
        Accounting::Other(_) => {}
    }
    Outcome::Noted
}

/// Splits the bytes in use into those of leases and foreign ones, by this same sample.
fn tell_apart(ledger: &mut Ledger, key: &DeviceKey, used: ByteCount, processes: Vec<ProcessUse>) {
    // A process counts once, for the nearest leased process in its lineage.
    let owner_of = |usage: &ProcessUse| -> Option<LeaseId> {
        usage
            .lineage
            .iter()
            .find_map(|process| ledger.leases.iter().find(|(_, lease)| lease.owns(process)).map(|(id, _)| id.clone()))
    };
    let mut seen: BTreeMap<LeaseId, (ByteCount, Vec<Process>)> = BTreeMap::new();
    let mut strangers = Vec::new();
    for usage in processes {
        match owner_of(&usage) {
            Some(id) => {
                let (bytes, users) = seen.entry(id).or_default();
                *bytes = *bytes + usage.bytes;
                users.extend(usage.lineage.into_iter().next());
            }
            None => strangers.push(usage),
        }
    }
    let leased: ByteCount = seen.values().map(|(bytes, _)| *bytes).sum();
    for (id, lease) in ledger.leases.iter_mut().filter(|(_, lease)| !lease.pids.is_empty()) {
        let (bytes, users) = seen.remove(id).unwrap_or_default();
        let attached = &lease.pids;
        let users: Vec<_> = users.into_iter().filter(|user| !attached.contains(user)).collect();
        match lease.parts.iter_mut().find(|part| part.device == *key) {
            Some(part) => (part.measured, part.users) = (Some(bytes), users),
            // A lease that uses a device beyond its promise is charged for that use all the same.
            None if bytes > ByteCount::ZERO => {
                let mut part = Part::new(key.clone(), ByteCount::ZERO);
                (part.measured, part.users) = (Some(bytes), users);
                lease.parts.push(part);
            }
            None => {}
        }
    }
    strangers.sort_by_key(|usage| Reverse(usage.bytes));
    strangers.truncate(STRANGERS);
    if let Some(device) = ledger.devices.get_mut(key) {
        device.foreign = Some(used.saturating_sub(leased));
        device.strangers = strangers;
    }
}

/// Completes the running load under degraded accounting: its bytes are the growth of the device's use since its
/// grant.
fn complete_loads(ledger: &mut Ledger, key: &DeviceKey, used: ByteCount, sampled_at: StoreTime) {
    let load = ledger.terms.load;
    for lease in ledger.leases.values_mut() {
        let told = lease.loaded_at.is_some_and(|at| at < sampled_at);
        let assumed = lease.attached_at.is_some_and(|at| at.after(load) <= sampled_at);
        for part in lease.parts.iter_mut().filter(|part| part.device == *key && part.settled.is_none()) {
            let grown = used.saturating_sub(part.used_before.unwrap_or(used));
            // A load without growth was not observed yet: a lease that ends at the same time hides it.
            if (told && grown > ByteCount::ZERO) || assumed {
                part.settled = Some(grown);
            }
        }
    }
}
