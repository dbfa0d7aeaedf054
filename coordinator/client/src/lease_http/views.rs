//! Leases and queued requests as the API shows them.

use model_boss_lease_store::{
    ForcedView, LeaseId, LeaseState, LeaseView, LeaseWish, Owner, PartView, Proof, RevokeView, WaiterView,
};
use model_boss_protocol::{ByteCount, Priority};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parts::{AnyBody, PartBody};
use super::schema::{LeaseOwner, LeaseToken};
use super::span::millis;
use super::state;

/// A lease as the API shows it. The fields from `lease` on are those of the list since its first version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseBody {
    /// The lease's id.
    #[schemars(with = "String")]
    pub id: LeaseId,
    /// The token, shown to the holder alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LeaseToken>")]
    pub token: Option<Proof>,
    /// The time until the lease expires; `null` for one that does not.
    pub expires_in_ms: Option<u64>,
    /// The revocation, if there is one.
    pub revoke: Option<RevokeBody>,
    /// The lease's name, equal to `id`.
    #[schemars(with = "String")]
    pub lease: LeaseId,
    /// The owner's label, equal to `owner.label`.
    pub label: String,
    /// The process that holds the lease.
    #[schemars(with = "LeaseOwner")]
    pub owner: Owner,
    /// The priority of the lease's request.
    pub priority: Priority,
    /// The size on each device.
    pub parts: Vec<LeasePart>,
    /// The state in the ledger.
    #[serde(with = "state")]
    #[schemars(with = "String")]
    pub state: LeaseState,
    /// Whether the lease may be revoked.
    pub preemptible: bool,
    /// Whether the lease was revoked and not released within its grace.
    pub in_default: bool,
    /// The processes that have passed the lease's gate.
    pub pids: Vec<u32>,
}

/// Bytes of a lease on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeasePart {
    /// The device's human-readable name.
    pub device: String,
    /// The UUID of a GPU, for `CUDA_VISIBLE_DEVICES`; `null` for other devices.
    #[serde(default)]
    pub uuid: Option<String>,
    /// The promised size.
    pub bytes: ByteCount,
    /// The used size, if it is known.
    pub measured: Option<ByteCount>,
}

/// The revocation of a lease. Once the grace is over, the holder ends its processes at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RevokeBody {
    /// The reason, human-readable.
    pub reason: String,
    /// The request or operator that revoked the lease.
    pub by: String,
    /// The rest of the grace.
    pub grace_left_ms: u64,
}

/// An answer with one lease: to attach, renew, resize, reassert and `GET /api/v1/leases/ID`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OneLease {
    /// The lease.
    pub lease: LeaseBody,
}

/// `GET /api/v1/leases`: leases and queued requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseList {
    /// All leases.
    pub leases: Vec<LeaseBody>,
    /// Queued requests, in order.
    #[serde(default)]
    pub waiters: Vec<WaiterBody>,
    /// Leases that operators ended without proof that their memory was free, the latest at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<ForcedBody>,
}

/// A lease that an operator ended although its processes may still use its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForcedBody {
    /// The lease's id.
    #[schemars(with = "String")]
    pub id: LeaseId,
    /// The lease's label.
    pub label: String,
    /// The processes that had passed the lease's gate. They were not ended.
    pub pids: Vec<u32>,
    /// The sizes that the lease counted for.
    pub parts: Vec<ForcedPart>,
    /// The time since the forced release.
    pub(crate) ago_ms: u64,
    /// The operator.
    pub by: String,
}

/// Bytes that a forced lease counted for on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForcedPart {
    /// The device's human-readable name.
    pub device: String,
    /// The size.
    pub bytes: ByteCount,
}

/// A queued request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaiterBody {
    /// The place in the queue, from 1.
    pub position: usize,
    /// The id of the request.
    pub request_id: String,
    /// The label of the request.
    pub label: String,
    /// The priority of the request.
    pub priority: Priority,
    /// The size on each of these devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<PartBody>>,
    /// The size on each of a number of devices, whichever they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub any: Option<AnyBody>,
}

impl From<LeaseView> for LeaseBody {
    /// Leaves the token out: only the holder may see it.
    fn from(view: LeaseView) -> Self {
        let part = |part: PartView| {
            let PartView { device, uuid, bytes, measured } = part;
            LeasePart { device, uuid, bytes, measured }
        };
        let revoke = |revoke: RevokeView| {
            let RevokeView { by, priority, grace_left } = revoke;
            let priority = priority.map(|priority| format!(" with priority {priority}")).unwrap_or_default();
            RevokeBody { reason: format!("{by}{priority} needs the memory"), by, grace_left_ms: millis(grace_left) }
        };
        Self {
            id: view.lease.clone(),
            token: None,
            expires_in_ms: view.expires_in.map(millis),
            revoke: view.revoke.map(revoke),
            lease: view.lease,
            label: view.label,
            owner: view.owner,
            priority: view.priority,
            parts: view.parts.into_iter().map(part).collect(),
            state: view.state,
            preemptible: view.preemptible,
            in_default: view.in_default,
            pids: view.pids,
        }
    }
}

impl From<ForcedView> for ForcedBody {
    fn from(view: ForcedView) -> Self {
        let ForcedView { lease: id, label, pids, parts, ago, by } = view;
        let parts = parts.into_iter().map(|(device, bytes)| ForcedPart { device, bytes }).collect();
        Self { id, label, pids, parts, ago_ms: millis(ago), by }
    }
}

/// The consequences of a forced release, human-readable.
pub fn warning(forced: &ForcedView) -> String {
    let parts: Vec<String> = forced.parts.iter().map(|(device, bytes)| format!("{bytes} on {device}")).collect();
    let pids: Vec<String> = forced.pids.iter().map(ToString::to_string).collect();
    let (lease, label, parts, pids) = (&forced.lease, &forced.label, parts.join(", "), pids.join(", "));
    format!(
        "{lease} ({label}) was forced and counts no more for {parts}. Its processes were not ended ({pids}): what they \
         still use counts as foreign memory once a device shows it"
    )
}

impl From<WaiterView> for WaiterBody {
    fn from(view: WaiterView) -> Self {
        let WaiterView { position, request_id, label, priority, want } = view;
        let (mut parts, mut any) = (None, None);
        match want {
            Some(LeaseWish::Parts(wanted)) => {
                let part = |(device, memory)| PartBody { device, memory };
                parts = Some(wanted.into_iter().map(part).collect());
            }
            Some(LeaseWish::AnyOf { count, bytes, devices }) => {
                any = Some(AnyBody { count, memory: bytes, among: Some(devices) });
            }
            None => {}
        }
        Self { position, request_id, label, priority, parts, any }
    }
}
