//! Preemption by revocation: a lease is revoked if it was declared preemptible, is less important than the request, and
//! its minimum hold is over. No process is ever killed for another's request.

use model_boss_protocol::{ByteCount, Priority, SignedBytes};

use super::nominated::Nominated;
use crate::{DeviceKey, Lease, LeaseId, LeaseState, Ledger, Mode, Process, RevokedLease, StoreTime};

/// The importance of a request, and whether leases are revoked for it.
pub(super) struct Importance<'a> {
    pub(super) priority: Priority,
    pub(super) mode: &'a Mode,
    /// The process of the request.
    pub(super) owner: &'a Process,
}

/// Updates revoked leases: a grace that has ended puts the lease in default, and a revocation that no request needs
/// any more is withdrawn.
pub(super) fn review(ledger: &mut Ledger, now: StoreTime) {
    let waiters = &ledger.waiters;
    for lease in ledger.leases.values_mut().filter(|lease| lease.state == LeaseState::Revoking) {
        if lease.preemptor.as_ref().is_none_or(|preemptor| !waiters.contains_key(preemptor)) {
            lease.state = LeaseState::Active;
            (lease.revoke_deadline, lease.preemptor) = (None, None);
        } else if lease.revoke_deadline.is_some_and(|until| until <= now) {
            lease.in_default = true;
        }
    }
}

/// The fewest leases to revoke so that these parts fit, counting releases in progress. `None`: the parts would not
/// fit even then. An empty set: the releases in progress suffice.
pub(super) fn plan(
    ledger: &Ledger,
    now: StoreTime,
    parts: &[(DeviceKey, ByteCount)],
    asker: &Importance<'_>,
    first: &Nominated,
) -> Option<Vec<LeaseId>> {
    let coming: Vec<&Lease> = ledger.leases.values().filter(|lease| is_yielding(lease)).collect();
    let enough = |chosen: &[(&LeaseId, &Lease)]| {
        parts.iter().all(|(device, bytes)| {
            let yielding = coming.iter().copied().chain(chosen.iter().map(|(_, lease)| *lease));
            let yielded = yielding.map(|lease| lease.charged(device).signed()).sum::<SignedBytes>();
            headroom(ledger, device, first.on(device)) + yielded >= bytes.signed()
        })
    };
    if enough(&[]) {
        return Some(Vec::new());
    }
    let mut candidates: Vec<(&LeaseId, &Lease)> = ledger
        .leases
        .iter()
        .filter(|(_, lease)| may_be_asked(lease, now, asker))
        .filter(|(_, lease)| parts.iter().any(|(device, _)| lease.charged(device) > ByteCount::ZERO))
        .collect();
    // The order is: least important first, then cheapest to load again, then least recently used.
    candidates.sort_by_key(|(id, lease)| {
        (std::cmp::Reverse(lease.priority), lease.yielding.reload, lease.used_at, (*id).clone())
    });
    let mut chosen: Vec<(&LeaseId, &Lease)> = Vec::new();
    for candidate in candidates {
        chosen.push(candidate);
        if enough(&chosen) {
            break;
        }
    }
    if !enough(&chosen) {
        return None;
    }
    // Leases that turn out to be superfluous are removed again, in reverse order.
    for index in (0..chosen.len()).rev() {
        let mut fewer = chosen.clone();
        fewer.remove(index);
        if enough(&fewer) {
            chosen = fewer;
        }
    }
    Some(chosen.into_iter().map(|(id, _)| id.clone()).collect())
}

/// Revokes these leases for a request.
pub(super) fn revoke(ledger: &mut Ledger, now: StoreTime, victims: &[LeaseId], preemptor: &str) {
    let longest = ledger.terms.longest_grace;
    for id in victims {
        if let Some(lease) = ledger.leases.get_mut(id) {
            lease.state = LeaseState::Revoking;
            lease.revoke_deadline = Some(now.after(lease.yielding.grace.min(longest)));
            lease.preemptor = Some(preemptor.to_owned());
        }
    }
}

/// The leases revoked for a request whose grace has not ended.
pub(super) fn victims_of(ledger: &Ledger, now: StoreTime, preemptor: &str) -> Vec<RevokedLease> {
    ledger
        .leases
        .iter()
        .filter(|(_, lease)| is_yielding(lease) && lease.preemptor.as_deref() == Some(preemptor))
        .map(|(id, lease)| RevokedLease {
            lease: id.clone(),
            label: lease.owner.label.to_string(),
            remaining: lease.revoke_deadline.map(|until| until.since(now)).unwrap_or_default(),
        })
        .collect()
}

/// The free bytes of a device by the newest figures, however old; negative when it is overcommitted.
pub(super) fn headroom(ledger: &Ledger, key: &DeviceKey, taken: ByteCount) -> SignedBytes {
    let Some(device) = ledger.devices.get(key) else { return SignedBytes::ZERO };
    let foreign = device.foreign.unwrap_or_default();
    let minus = [foreign, ledger.charged(key), taken].iter().map(|bytes| bytes.signed()).sum::<SignedBytes>();
    device.leasable().signed() - minus
}

/// The bytes of a device that are free once all leases revoked or revocable for this request are released.
pub(super) fn could_yield(ledger: &Ledger, now: StoreTime, key: &DeviceKey, asker: &Importance<'_>) -> SignedBytes {
    let leases = ledger.leases.values().filter(|lease| is_yielding(lease) || may_be_asked(lease, now, asker));
    leases.map(|lease| lease.charged(key).signed()).sum()
}

/// The bytes of a device that revoked leases will release.
pub(super) fn coming(ledger: &Ledger, key: &DeviceKey) -> SignedBytes {
    ledger.leases.values().filter(|lease| is_yielding(lease)).map(|lease| lease.charged(key).signed()).sum()
}

/// Whether the lease was revoked and its grace has not ended.
fn is_yielding(lease: &Lease) -> bool {
    lease.state == LeaseState::Revoking && !lease.in_default
}

fn may_be_asked(lease: &Lease, now: StoreTime, asker: &Importance<'_>) -> bool {
    // A holder can release its own leases itself, and need not revoke them through the ledger.
    asker.mode.preempts()
        && lease.owner.process != *asker.owner
        && lease.yielding.preemptible
        && lease.state == LeaseState::Active
        && !lease.in_default
        && lease.priority > asker.priority
        && now >= lease.granted_at.after(lease.yielding.min_hold)
}
