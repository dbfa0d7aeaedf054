//! Whether bytes can be granted now, and if not, the reason.

use model_boss_protocol::ByteCount;

use super::nominated::Nominated;
use crate::{
    Accounting, Device, DeviceKey, LeaseWaitReason, Ledger, NeverFits, OpRefusal, Outcome, Share, StoreTime, Wait,
};

/// The number of holders named in a reason.
const NAMED: usize = 3;

/// The bytes wanted of one device.
pub(super) struct DeviceDemand<'a> {
    pub(super) device: &'a DeviceKey,
    /// The whole size.
    pub(super) size: ByteCount,
    /// The part of `size` that the lease does not hold yet.
    pub(super) more: ByteCount,
}

/// Whether every demand can be met now, after the requests with precedence.
pub(super) fn fits(
    ledger: &Ledger,
    now: StoreTime,
    demands: &[DeviceDemand<'_>],
    first: &Nominated,
) -> Result<(), Outcome> {
    for demand in demands {
        can_ever_fit(ledger, demand.device, demand.size)?;
    }
    for DeviceDemand { device, more, .. } in demands {
        let taken = first.on(device);
        let wait = |reason| Outcome::Wait(Wait { position: first.count + 1, reason });
        let free = free(ledger, now, device).map_err(wait)?;
        let left = free.saturating_sub(taken);
        // A lease that uses more than its promise may be resized to its use, but not on an overcommitted device. A part
        // of those bytes was promised to other leases, which would never get them.
        let needs = (*more).max(overdraft(ledger, device));
        if needs > left {
            return Err(wait(shortage(ledger, device, needs, (free, left), first)));
        }
    }
    Ok(())
}

/// Whether the device exists and is large enough.
pub(super) fn can_ever_fit(ledger: &Ledger, key: &DeviceKey, needs: ByteCount) -> Result<(), Outcome> {
    let device = ledger.devices.get(key).ok_or_else(|| Outcome::Refused(OpRefusal::UnknownDevice(key.clone())))?;
    if needs > device.leasable() {
        let (device, leasable) = (device.name.clone(), device.leasable());
        return Err(Outcome::NeverFits(NeverFits { device, needs, leasable }));
    }
    Ok(())
}

/// The bytes that can still be leased on the device. Unknown, outdated or unsettled figures are a reason to wait,
/// never zero.
pub(super) fn free(ledger: &Ledger, now: StoreTime, key: &DeviceKey) -> Result<ByteCount, LeaseWaitReason> {
    let unobserved = |device: String| LeaseWaitReason::Unobserved { device };
    let device = ledger.devices.get(key).ok_or_else(|| unobserved(key.to_string()))?;
    let name = || device.name.clone();
    let (Some(used), Some(foreign), Some(observed_at)) = (device.used, device.foreign, device.observed_at) else {
        return Err(unobserved(name()));
    };
    let age = now.since(observed_at);
    if age > ledger.terms.stale {
        return Err(LeaseWaitReason::Stale { device: name(), age });
    }
    if device.unsettled_since.is_some() {
        return Err(LeaseWaitReason::Unsettled { device: name() });
    }
    let free = device.leasable().saturating_sub(foreign).saturating_sub(ledger.charged(key));
    match device.accounting {
        Accounting::PerProcess => Ok(free),
        Accounting::Degraded { .. } => Ok(free.min(shown_free(ledger, key, device, used)?)),
        Accounting::Other(_) => Err(unobserved(name())),
    }
}

/// The bytes by which a device's foreign use and leases exceed its leasable memory.
fn overdraft(ledger: &Ledger, key: &DeviceKey) -> ByteCount {
    let Some(device) = ledger.devices.get(key) else { return ByteCount::ZERO };
    let counted = device.foreign.unwrap_or_default() + ledger.charged(key);
    counted.saturating_sub(device.leasable())
}

/// Free bytes under degraded accounting: those that the driver shows, minus those that complete loads may still take
/// of their promise. While a load is not complete, the bytes cannot be assigned to a lease.
fn shown_free(
    ledger: &Ledger,
    key: &DeviceKey,
    device: &Device,
    used: ByteCount,
) -> Result<ByteCount, LeaseWaitReason> {
    let mut outstanding = ByteCount::ZERO;
    for lease in ledger.leases.values() {
        for part in lease.parts.iter().filter(|part| part.device == *key) {
            let Some(seen) = part.settled else {
                let (device, label) = (device.name.clone(), lease.owner.label.to_string());
                return Err(LeaseWaitReason::Loading { device, label });
            };
            outstanding = outstanding + part.bytes.saturating_sub(seen);
        }
    }
    Ok(device.capacity.saturating_sub(used).saturating_sub(outstanding))
}

fn shortage(
    ledger: &Ledger,
    key: &DeviceKey,
    needs: ByteCount,
    (free, left): (ByteCount, ByteCount),
    first: &Nominated,
) -> LeaseWaitReason {
    let device = ledger.name_of(key);
    if needs <= free {
        return LeaseWaitReason::Behind { device, needs, left, first: first.label.clone().unwrap_or_default() };
    }
    let mut holders: Vec<Share> = ledger
        .leases
        .values()
        .map(|lease| Share {
            label: lease.owner.label.to_string(),
            bytes: lease.charged(key),
            priority: lease.priority,
        })
        .filter(|share| share.bytes > ByteCount::ZERO)
        .collect();
    holders.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    holders.truncate(NAMED);
    let foreign = ledger.devices.get(key).and_then(|device| device.foreign).unwrap_or_default();
    LeaseWaitReason::Capacity { device, needs, free, holders, foreign }
}
