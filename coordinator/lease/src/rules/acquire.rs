//! Requests for bytes: all parts or none, in order of the queue, and the same lease for a repeated request.

use std::collections::BTreeSet;

use model_boss_protocol::ByteCount;

use super::fit::{self, DeviceDemand};
use super::grant::{next_token, well_formed};
use super::nominate::{self, QueuePosition};
use super::nominated::Nominated;
use super::preempt::{self, Importance};
use super::{crowd, end};
use crate::{
    Accounting, DeviceKey, Grant, Lease, LeaseWaitReason, Ledger, NeverFits, OpRefusal, Outcome, Part, Process,
    Request, StoreTime, Wait, Waiter, Want,
};

pub(super) fn acquire(ledger: &mut Ledger, now: StoreTime, request: Request) -> Outcome {
    if let Some(outcome) = asked_before(ledger, &request) {
        return outcome;
    }
    if ledger.leases.contains_key(&request.lease) {
        return Outcome::Refused(OpRefusal::NameTaken(request.lease));
    }
    if let Err(outcome) = possible(ledger, &request.want) {
        return outcome;
    }
    // A request that waits already takes no more room when it is repeated.
    if !ledger.waiters.contains_key(&request.request_id)
        && let Err(outcome) = crowd::has_room(ledger, &request.owner)
    {
        return outcome;
    }
    if let Some(retry_after) = ledger.recovering() {
        enqueue(ledger, now, &request);
        return Outcome::Recovering { retry_after };
    }
    let arrived = enqueue(ledger, now, &request);
    let place = QueuePosition { priority: request.priority, arrived, request_id: &request.request_id };
    let first = nominate::before(ledger, now, place, &request.owner.process);
    let asker = Importance { priority: request.priority, mode: &request.mode, owner: &request.owner.process };
    let parts = nominate::choose(ledger, now, &request.want, &asker, &first);
    let demands: Vec<_> =
        parts.iter().map(|(device, bytes)| DeviceDemand { device, size: *bytes, more: *bytes }).collect();
    match fit::fits(ledger, now, &demands, &first) {
        Ok(()) if request.mode.only_reserves() => Outcome::Noted,
        Ok(()) => grant(ledger, now, request, parts),
        Err(Outcome::Wait(wait)) if request.mode.preempts() => ask_others(ledger, now, &request, &parts, &first, wait),
        Err(outcome) => outcome,
    }
}

/// Withdraws a request of this owner; a request of another owner stays.
pub(super) fn cancel(ledger: &mut Ledger, now: StoreTime, request_id: &str, owner: &Process) -> Outcome {
    if ledger.waiters.get(request_id).is_some_and(|waiter| waiter.owner.process == *owner) {
        ledger.waiters.remove(request_id);
        preempt::review(ledger, now);
    }
    let promise = ledger
        .leases
        .iter()
        .find(|(_, lease)| lease.request_id == request_id && lease.owner.process == *owner && lease.is_untouched());
    if let Some(id) = promise.map(|(id, _)| id.clone()) {
        end::end(ledger, &id, now);
    }
    Outcome::Noted
}

/// The answer to a repeated request, which has one lease even if it is repeated late.
fn asked_before(ledger: &Ledger, request: &Request) -> Option<Outcome> {
    let id = &request.request_id;
    let owner = &request.owner.process;
    if let Some((lease_id, lease)) = ledger.leases.iter().find(|(_, lease)| lease.request_id == *id) {
        if lease.owner.process != *owner {
            return Some(Outcome::Refused(OpRefusal::NotYours(id.clone())));
        }
        return Some(Outcome::Granted(Grant {
            lease: lease_id.clone(),
            token: lease.token,
            deadline: lease.deadline,
            parts: lease.promised(),
        }));
    }
    if ledger.waiters.get(id).is_some_and(|waiter| waiter.owner.process != *owner) {
        return Some(Outcome::Refused(OpRefusal::NotYours(id.clone())));
    }
    ledger.done.contains_key(id).then(|| Outcome::Refused(OpRefusal::AlreadyEnded(id.clone())))
}

/// Whether the request is valid and could be granted on an empty host.
fn possible(ledger: &Ledger, want: &Want) -> Result<(), Outcome> {
    let bad = Err(Outcome::Refused(OpRefusal::BadParts));
    match want {
        Want::Parts(parts) if !well_formed(parts) => bad,
        Want::Parts(parts) => parts.iter().try_for_each(|(device, bytes)| fit::can_ever_fit(ledger, device, *bytes)),
        Want::AnyOf { count, bytes, devices } => {
            let distinct: BTreeSet<_> = devices.iter().collect();
            if *count == 0 || *bytes == ByteCount::ZERO || distinct.len() != devices.len() || *count > devices.len() {
                return bad;
            }
            if let Some(unknown) = devices.iter().find(|device| !ledger.devices.contains_key(device)) {
                return Err(Outcome::Refused(OpRefusal::UnknownDevice(unknown.clone())));
            }
            let mut sizes: Vec<_> =
                devices.iter().filter_map(|key| ledger.devices.get(key)).map(|d| (d.leasable(), &d.name)).collect();
            sizes.sort_by(|a, b| b.cmp(a));
            match sizes.get(count - 1) {
                Some((leasable, name)) if leasable < bytes => {
                    Err(Outcome::NeverFits(NeverFits { device: (*name).clone(), needs: *bytes, leasable: *leasable }))
                }
                _ => Ok(()),
            }
        }
        Want::Other(_) => bad,
    }
}

/// Takes or keeps a place in the queue if the request waits; returns its arrival. A request that changed its wish or
/// became more important loses its place and arrives anew.
fn enqueue(ledger: &mut Ledger, now: StoreTime, request: &Request) -> StoreTime {
    let known = ledger.waiters.get(&request.request_id);
    let same = known.filter(|waiter| waiter.want == request.want && waiter.priority <= request.priority);
    let arrived = same.map_or_else(|| nominate::arrival(ledger, now), |waiter| waiter.arrived);
    if request.mode.waits() {
        let deadline = now.after(ledger.terms.lease);
        ledger.waiters.insert(request.request_id.clone(), Waiter::new(request, arrived, deadline));
    } else {
        ledger.waiters.remove(&request.request_id);
    }
    arrived
}

fn grant(ledger: &mut Ledger, now: StoreTime, request: Request, parts: Vec<(DeviceKey, ByteCount)>) -> Outcome {
    let Request { request_id, lease: id, owner, priority, yielding, .. } = request;
    ledger.waiters.remove(&request_id);
    let token = next_token(ledger, now);
    let deadline = now.after(ledger.terms.lease);
    let promised = parts
        .iter()
        .map(|(device, bytes)| {
            let mut part = Part::new(device.clone(), *bytes);
            let known = ledger.devices.get(device);
            if known.is_some_and(|device| matches!(device.accounting, Accounting::Degraded { .. })) {
                part.used_before = known.and_then(|device| device.used);
            }
            part
        })
        .collect();
    let lease = Lease::new(token, request_id, (owner, priority, yielding), promised, (now, deadline));
    ledger.leases.insert(id.clone(), lease);
    preempt::review(ledger, now);
    Outcome::Granted(Grant { lease: id, token, deadline, parts })
}

/// Answers a request that does not fit: other leases are revoked for it, if that would help.
fn ask_others(
    ledger: &mut Ledger,
    now: StoreTime,
    request: &Request,
    parts: &[(DeviceKey, ByteCount)],
    first: &Nominated,
    wait: Wait,
) -> Outcome {
    // Missing or outdated figures are no reason to revoke a lease.
    if !matches!(wait.reason, LeaseWaitReason::Capacity { .. } | LeaseWaitReason::Behind { .. }) {
        return still_asked(ledger, now, request, wait);
    }
    let asker = Importance { priority: request.priority, mode: &request.mode, owner: &request.owner.process };
    match preempt::plan(ledger, now, parts, &asker, first) {
        Some(victims) => {
            preempt::revoke(ledger, now, &victims, &request.request_id);
            still_asked(ledger, now, request, wait)
        }
        None => {
            let position = wait.position;
            let defaulted = ledger
                .leases
                .values()
                .find(|lease| lease.in_default && lease.preemptor.as_deref() == Some(request.request_id.as_str()));
            let device = parts.iter().find(|(key, _)| defaulted.is_some_and(|l| l.charged(key) > ByteCount::ZERO));
            match (defaulted, device) {
                (Some(lease), Some((key, _))) => Outcome::Wait(Wait {
                    position,
                    reason: LeaseWaitReason::InDefault {
                        device: ledger.name_of(key),
                        label: lease.owner.label.to_string(),
                    },
                }),
                _ => still_asked(ledger, now, request, wait),
            }
        }
    }
}

fn still_asked(ledger: &Ledger, now: StoreTime, request: &Request, wait: Wait) -> Outcome {
    let victims = preempt::victims_of(ledger, now, &request.request_id);
    if victims.is_empty() { Outcome::Wait(wait) } else { Outcome::Revoking { victims, wait } }
}
