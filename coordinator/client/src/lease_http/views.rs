//! Leases and waiters as they are shown.

use model_boss_lease_store::{
    ForcedView, LeaseId, LeaseState, LeaseView, Owner, PartView, Proof, RevokeView, WaiterView, Wish,
};
use model_boss_protocol::{ByteCount, Priority};
use serde::{Deserialize, Serialize};

use super::parts::{AnyBody, PartBody};
use super::span::millis;
use super::state;

/// A lease as the API shows it. The fields from `lease` on are those of the list since its first version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseBody {
    /// Its name.
    pub id: LeaseId,
    /// What proves it. Told to its holder alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Proof>,
    /// How long until it expires; `null` for one that does not.
    pub expires_in_ms: Option<u64>,
    /// It is asked back.
    pub revoke: Option<RevokeBody>,
    /// The same as `id`.
    pub lease: LeaseId,
    /// The same as `owner.label`.
    pub label: String,
    /// Who holds it.
    pub owner: Owner,
    /// How important it is.
    pub priority: Priority,
    /// How much on which device.
    pub parts: Vec<LeasePart>,
    /// How far it is.
    #[serde(with = "state")]
    pub state: LeaseState,
    /// Whether it may be asked back.
    pub preemptible: bool,
    /// Whether it was asked and did not make way in time.
    pub in_default: bool,
    /// The processes behind its gate.
    pub pids: Vec<u32>,
}

/// Bytes of a lease on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasePart {
    /// What people call it.
    pub device: String,
    /// What it is, for `CUDA_VISIBLE_DEVICES`; `null` where it is no GPU.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Promised.
    pub bytes: ByteCount,
    /// Used, where known.
    pub measured: Option<ByteCount>,
}

/// That a lease is asked back. With nothing left of the grace, its holder ends its processes now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeBody {
    /// Why, for people.
    pub reason: String,
    /// Who asks.
    pub by: String,
    /// How long there still is.
    pub grace_left_ms: u64,
}

/// An answer with one lease: to attach, renew, resize, reassert and `GET /api/v1/leases/ID`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OneLease {
    /// The lease.
    pub lease: LeaseBody,
}

/// `GET /api/v1/leases`: who holds and who waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LeaseList {
    /// Who holds.
    pub leases: Vec<LeaseBody>,
    /// Who waits, first come first.
    #[serde(default)]
    pub waiters: Vec<WaiterBody>,
    /// What operators ended without evidence, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<ForcedBody>,
}

/// A lease that an operator ended although its processes may still use its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForcedBody {
    /// Its name.
    pub id: LeaseId,
    /// What it was for.
    pub label: String,
    /// The processes that were behind its gate. They were not ended.
    pub pids: Vec<u32>,
    /// What it counted for.
    pub parts: Vec<ForcedPart>,
    /// How long ago.
    pub(crate) ago_ms: u64,
    /// The operator.
    pub by: String,
}

/// Bytes that a forced lease counted for on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForcedPart {
    /// What people call it.
    pub device: String,
    /// How much.
    pub bytes: ByteCount,
}

/// Somebody who waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterBody {
    /// The place in the queue, from 1.
    pub position: usize,
    /// Its request.
    pub request_id: String,
    /// What it is for.
    pub label: String,
    /// How important it is.
    pub priority: Priority,
    /// So much on each of these devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<PartBody>>,
    /// So much on each of any devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub any: Option<AnyBody>,
}

impl From<LeaseView> for LeaseBody {
    /// Without the token: that is told to the holder alone.
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

/// What a forced release means, for people.
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
            Some(Wish::Parts(wanted)) => {
                let part = |(device, memory)| PartBody { device, memory };
                parts = Some(wanted.into_iter().map(part).collect());
            }
            Some(Wish::AnyOf { count, bytes, devices }) => {
                any = Some(AnyBody { count, memory: bytes, among: Some(devices) });
            }
            None => {}
        }
        Self { position, request_id, label, priority, parts, any }
    }
}
