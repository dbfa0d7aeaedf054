//! The words of `/api/v1/leases`, one place for the server and for the callers. Plain data: what a field means to the
//! ledger is decided in `model-boss-lease`.
//!
//! Sizes are bytes or texts such as `"18GiB"`, durations seconds or texts such as `"60s"`, devices the names people use.

mod owner;
mod parts;
pub mod span;
mod state;
mod views;

use std::time::Duration;

use model_boss_lease_store::{LeaseId, Proof};
use model_boss_protocol::Priority;
use serde::{Deserialize, Serialize};

pub use owner::{OwnerBody, ProcessBody};
pub use parts::{AnyBody, PartBody};
pub use views::{ForcedBody, LeaseBody, LeaseList, OneLease, WaiterBody, warning};

/// `POST /api/v1/leases`: a wish. Asking again with the same `request_id` gives the same lease, or keeps the place in the
/// queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcquireBody {
    /// The caller's name for it: at most [`model_boss_protocol::Label::LIMIT`] bytes, unique among everything ever asked.
    pub request_id: String,
    /// Who will hold it.
    pub owner: OwnerBody,
    /// How important it is.
    #[serde(default = "training")]
    pub priority: Priority,
    /// Whether more important requests may ask for the memory back.
    #[serde(default)]
    pub preemptible: bool,
    /// How long it needs to give the memory back.
    #[serde(default = "grace", with = "span")]
    pub grace: Duration,
    /// How long it is left alone after it got the memory.
    #[serde(default = "min_hold", with = "span")]
    pub min_hold: Duration,
    /// So much on each of these devices. This or `any`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<PartBody>>,
    /// So much on each of any devices. This or `parts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub any: Option<AnyBody>,
    /// `false`: try once, and never become a waiter.
    #[serde(default = "yes")]
    pub wait: bool,
    /// Ask less important holders that allow it to give memory back.
    #[serde(default)]
    pub preempt: bool,
}

/// The answer 201 to a wish: the memory is promised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrantedBody {
    /// The lease, with its token.
    pub lease: LeaseBody,
    /// Renew this often.
    pub heartbeat_ms: u64,
    /// It expires so long after its last renewal.
    pub term_ms: u64,
}

/// The answer 202 to a wish: not now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitingBody {
    /// Why, and when to ask again.
    pub waiting: Waiting,
}

/// Why a wish waits. Whoever does not ask again within the term loses the place in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// The place in the queue, from 1.
    pub position: usize,
    /// Why, for people.
    pub reason: String,
    /// Ask again after so long.
    pub retry_after_ms: u64,
    /// The store may have lost records: nothing is granted until their holders have stated them.
    #[serde(default)]
    pub recovering: bool,
    /// Who was asked to give memory back for it.
    #[serde(default)]
    pub asked: Vec<AskedBody>,
}

/// Who was asked to give memory back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedBody {
    /// What it is for.
    pub label: String,
    /// How long it still has.
    pub grace_left_ms: u64,
}

/// `POST /api/v1/leases/ID/attach`: the gate. Only after its answer may the processes touch the devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachBody {
    /// What proves the lease.
    pub token: Proof,
    /// Who is let through.
    pub pids: Vec<u32>,
}

/// `PUT /api/v1/leases`: every lease of a process in one heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    /// Which.
    pub leases: Vec<HandleBody>,
}

/// A lease and what proves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandleBody {
    /// Its name.
    pub id: LeaseId,
    /// What proves it.
    pub token: Proof,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RenewedBody {
    /// What is kept, with its revocations.
    pub leases: Vec<LeaseBody>,
    /// What the ledger does not know: state it again, or end its processes.
    pub lost: Vec<LeaseId>,
}

/// `PUT /api/v1/leases/ID`: a heartbeat and, with `parts`, another size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeBody {
    /// What proves it.
    pub token: Proof,
    /// How much on which device from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<PartBody>>,
}

/// `POST /api/v1/leases/ID/reassert`: a lease as its holder remembers it, after the store forgot it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReassertBody {
    /// What proves it.
    pub token: Proof,
    /// The request that it was granted for.
    pub request_id: String,
    /// Who holds it.
    pub owner: OwnerBody,
    /// How important it is.
    pub priority: Priority,
    /// Whether more important requests may ask for the memory back.
    #[serde(default)]
    pub preemptible: bool,
    /// How long it needs to give the memory back.
    #[serde(default = "grace", with = "span")]
    pub grace: Duration,
    /// How long it is left alone after it got the memory.
    #[serde(default = "min_hold", with = "span")]
    pub min_hold: Duration,
    /// How much on which device.
    pub parts: Vec<PartBody>,
    /// The processes behind its gate that still live.
    pub processes: Vec<ProcessBody>,
}

/// `DELETE /api/v1/leases/ID`. Without a token only what nobody holds any more ends, or what an operator forces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseBody {
    /// What proves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Proof>,
    /// Ends the lease whatever its processes do. For operators.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// The answer to a release: 200 when the bytes are free, 202 when they stay counted until the processes are seen gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleasedBody {
    /// Whether the bytes are free.
    pub released: bool,
    /// How far the lease is otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where it was forced: what that means, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// `DELETE /api/v1/leases`: takes a request back: its place in the queue, and its lease if no process was let through
/// the gate. Answered with 200 and `{"cancelled": true}`, also when there is nothing to take back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelBody {
    /// Which request.
    pub request_id: String,
    /// Who asked.
    pub owner: OwnerBody,
}

/// The default priority of training (LE-3).
pub const fn training() -> Priority {
    Priority::TRAINING
}

/// The default grace (LE-3).
pub const fn grace() -> Duration {
    Duration::from_secs(60)
}

/// The default minimum hold (LE-3).
pub const fn min_hold() -> Duration {
    Duration::from_secs(600)
}

const fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests;
