//! Leases for the API and for display. They have names in place of keys, and no proofs.

use std::time::Duration;

use model_boss_lease::{DeviceKey, Forced, Lease, LeaseId, LeaseState, Ledger, Owner, Want};
use model_boss_protocol::{ByteCount, DeviceId, Priority};

use crate::contract::LeaseWish;
use crate::guest_name::own_request_id;

/// The prefix of the keys of devices that the operator declared.
const DECLARED: &str = "declared-";

/// A lease, for display.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseView {
    /// The lease's name.
    pub lease: LeaseId,
    /// The label of the lease.
    pub label: String,
    /// The lease's owner.
    pub owner: Owner,
    /// The importance of the lease for the queue and for preemption.
    pub priority: Priority,
    /// Device names, promised bytes, and used bytes if they are known.
    pub parts: Vec<PartView>,
    /// The state in the lease's lifecycle.
    pub state: LeaseState,
    /// Whether the lease may be revoked.
    pub preemptible: bool,
    /// Whether the lease was revoked and not released in time.
    pub in_default: bool,
    /// The processes that passed the lease's gate.
    pub pids: Vec<u32>,
    /// The time until the lease expires unless renewed; `None` for an expired lease.
    pub expires_in: Option<Duration>,
    /// The revocation, if the lease was revoked.
    pub revoke: Option<RevokeView>,
}

/// The revocation of a lease, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeView {
    /// The label of the request the lease is revoked for.
    pub by: String,
    /// The priority of that request.
    pub priority: Option<Priority>,
    /// The time left for the lease's release.
    pub grace_left: Duration,
}

/// A lease that an operator ended without evidence, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedView {
    /// The lease's name.
    pub lease: LeaseId,
    /// The label of the lease.
    pub label: String,
    /// The processes that were attached. They were not ended.
    pub pids: Vec<u32>,
    /// The bytes that the lease counted for, by the devices' names.
    pub parts: Vec<(String, ByteCount)>,
    /// The time since the lease's end.
    pub ago: Duration,
    /// The operator, human-readable.
    pub by: String,
}

/// A waiting request, for display.
#[derive(Clone, Debug, PartialEq)]
pub struct WaiterView {
    /// The place in the queue, from 1.
    pub position: usize,
    /// The id of the request.
    pub request_id: String,
    /// The label of the request.
    pub label: String,
    /// The importance of the request for the queue and for preemption.
    pub priority: Priority,
    /// The wanted bytes by the devices' names; `None` for a wish of a newer version.
    pub want: Option<LeaseWish>,
}

/// Bytes on one device, for display.
#[derive(Clone, Debug, PartialEq)]
pub struct PartView {
    /// The device's human-readable name.
    pub device: String,
    /// The device's UUID, if it is a GPU.
    pub uuid: Option<String>,
    /// The promised bytes.
    pub bytes: ByteCount,
    /// The used bytes, if they are known.
    pub measured: Option<ByteCount>,
}

impl LeaseView {
    pub(crate) fn of(id: &LeaseId, lease: &Lease, ledger: &Ledger) -> Self {
        let part = |part: &model_boss_lease::Part| PartView {
            device: ledger.name_of(&part.device),
            uuid: uuid(&part.device),
            bytes: part.bytes,
            measured: part.measured,
        };
        Self {
            lease: id.clone(),
            label: lease.owner.label.to_string(),
            owner: lease.owner.clone(),
            priority: lease.priority,
            parts: lease.parts.iter().map(part).collect(),
            state: lease.state.clone(),
            preemptible: lease.yielding.preemptible,
            in_default: lease.in_default,
            pids: lease.pids.iter().map(|process| process.pid).collect(),
            expires_in: (lease.state != LeaseState::Limbo).then(|| lease.deadline.since(ledger.last_time)),
            revoke: (lease.state == LeaseState::Revoking).then(|| RevokeView::of(lease, ledger)),
        }
    }
}

impl ForcedView {
    pub(crate) fn of(forced: &Forced, ledger: &Ledger) -> Self {
        Self {
            lease: forced.lease.clone(),
            label: forced.owner.label.to_string(),
            pids: forced.pids.iter().map(|process| process.pid).collect(),
            parts: forced.parts.iter().map(|(device, bytes)| (ledger.name_of(device), *bytes)).collect(),
            ago: ledger.last_time.since(forced.at),
            by: forced.by.to_string(),
        }
    }
}

impl RevokeView {
    fn of(lease: &Lease, ledger: &Ledger) -> Self {
        let preemptor = lease.preemptor.as_ref().and_then(|request| ledger.waiters.get(request));
        Self {
            by: preemptor.map_or_else(|| "a request that has left".to_owned(), |waiter| waiter.owner.label.to_string()),
            priority: preemptor.map(|waiter| waiter.priority),
            grace_left: lease.revoke_deadline.map(|until| until.since(ledger.last_time)).unwrap_or_default(),
        }
    }
}

impl WaiterView {
    /// All waiting requests in the order of the queue.
    pub(crate) fn queue(ledger: &Ledger) -> Vec<Self> {
        let mut queue: Vec<_> = ledger.waiters.iter().collect();
        queue.sort_by_key(|(id, waiter)| (waiter.priority, waiter.arrived, (*id).clone()));
        let view = |(place, (id, waiter)): (usize, (&String, &model_boss_lease::Waiter))| Self {
            position: place + 1,
            request_id: own_request_id(&waiter.owner.process, id),
            label: waiter.owner.label.to_string(),
            priority: waiter.priority,
            want: named(&waiter.want, ledger),
        };
        queue.into_iter().enumerate().map(view).collect()
    }
}

/// The UUID of a GPU. `cpu` and declared devices have none.
fn uuid(key: &DeviceKey) -> Option<String> {
    let text = key.as_str();
    let is_gpu = *key != DeviceKey::cpu() && !text.starts_with(DECLARED);
    is_gpu.then(|| text.to_owned())
}

/// A wish by the devices' human-readable names.
fn named(want: &Want, ledger: &Ledger) -> Option<LeaseWish> {
    let name = |key: &DeviceKey| -> Option<DeviceId> { ledger.name_of(key).parse().ok() };
    match want {
        Want::Parts(parts) => {
            let parts = parts.iter().map(|(key, bytes)| Some((name(key)?, *bytes))).collect::<Option<_>>()?;
            Some(LeaseWish::Parts(parts))
        }
        Want::AnyOf { count, bytes, devices } => {
            let devices = devices.iter().map(name).collect::<Option<_>>()?;
            Some(LeaseWish::AnyOf { count: *count, bytes: *bytes, devices })
        }
        Want::Other(_) => None,
    }
}
