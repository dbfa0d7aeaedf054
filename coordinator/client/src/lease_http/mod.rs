//! The bodies of `/api/v1/leases`, shared by the server and its callers. The types are plain data: `model-boss-lease`
//! decides what a field means to the ledger.
//!
//! Sizes are bytes or texts such as `"18GiB"`, durations seconds or texts such as `"60s"`, devices their human-readable
//! names.

mod owner;
mod parts;
mod schema;
pub mod span;
mod state;
mod views;

use std::time::Duration;

use model_boss_lease_store::{LeaseId, Proof};
use model_boss_protocol::Priority;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use schema::{LeaseSpan, LeaseToken};

pub use owner::{OwnerBody, ProcessBody};
pub use parts::{AnyBody, PartBody};
pub use views::{ForcedBody, LeaseBody, LeaseList, OneLease, WaiterBody, warning};

/// Defines a body with the terms of a revocation between its other fields. Serde cannot refuse unknown fields beside
/// flattened ones, so the bodies share these by name.
macro_rules! with_revocation_terms {
    ($(#[$attribute:meta])* $name:ident { $($before:tt)* } { $($after:tt)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($before)*
            /// Whether requests of higher priority may revoke the lease.
            #[serde(default)]
            pub preemptible: bool,
            /// The time that the holder needs to release the memory after a revocation.
            #[serde(default = "grace", with = "span")]
            #[schemars(with = "LeaseSpan")]
            pub grace: Duration,
            /// The time after the grant during which the lease is not revoked.
            #[serde(default = "min_hold", with = "span")]
            #[schemars(with = "LeaseSpan")]
            pub min_hold: Duration,
            $($after)*
        }
    };
}

with_revocation_terms! {
    /// `POST /api/v1/leases`: a request for memory. A repetition with the same `request_id` gives the same lease, or
    /// keeps the place in the queue.
    AcquireBody {
        /// The caller's id of the request: at most [`model_boss_protocol::Label::LIMIT`] bytes, never used before.
        #[schemars(length(min = 1, max = 128))]
        pub request_id: String,
        /// The process that will hold the lease.
        pub owner: OwnerBody,
        /// The priority in the queue.
        #[serde(default = "training")]
        pub priority: Priority,
    } {
        /// A size on each of these devices. Either this or `any` is set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub parts: Option<Vec<PartBody>>,
        /// Equal sizes on any devices of a list. Either this or `parts` is set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub any: Option<AnyBody>,
        /// `false` tries once and does not queue.
        #[serde(default = "yes")]
        pub wait: bool,
        /// Whether to revoke preemptible leases of lower priority.
        #[serde(default)]
        pub preempt: bool,
    }
}

/// The answer 201 to a request: the memory is promised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GrantedBody {
    /// The lease, with its token.
    pub lease: LeaseBody,
    /// The time between two renewals.
    pub heartbeat_ms: u64,
    /// The lease expires this long after its last renewal.
    pub term_ms: u64,
}

/// The answer 202 to a request that cannot be granted now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingBody {
    /// The reason, and the time after which to repeat the request.
    pub waiting: QueueNotice,
}

/// Why a request is queued. A request that is not repeated within the term loses its place in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueNotice {
    /// The place in the queue, from 1.
    pub position: usize,
    /// The reason, human-readable.
    pub reason: String,
    /// The time in milliseconds after which to repeat the request.
    pub retry_after_ms: u64,
    /// Whether the store may have lost records: no lease is granted until the holders have stated theirs again.
    #[serde(default)]
    pub recovering: bool,
    /// The holders whose leases were revoked for this request.
    #[serde(default)]
    pub asked: Vec<AskedBody>,
}

/// A holder whose lease was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AskedBody {
    /// The lease's label.
    pub label: String,
    /// The rest of the lease's grace.
    pub grace_left_ms: u64,
}

/// `POST /api/v1/leases/ID/attach`: attaches processes to the lease. They may use the devices only after the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttachBody {
    /// The token of the lease.
    #[schemars(with = "LeaseToken")]
    pub token: Proof,
    /// The processes that pass the gate.
    pub pids: Vec<u32>,
}

/// `PUT /api/v1/leases`: renews every lease of a process in one heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    /// The leases to renew.
    pub leases: Vec<HandleBody>,
}

/// A lease and its token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HandleBody {
    /// The lease's id.
    #[schemars(with = "String")]
    pub id: LeaseId,
    /// The lease's token.
    #[schemars(with = "LeaseToken")]
    pub token: Proof,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RenewedBody {
    /// The renewed leases, with their revocations.
    pub leases: Vec<LeaseBody>,
    /// Leases that are not in the ledger: the holder reasserts them, or ends their processes.
    #[schemars(with = "Vec<String>")]
    pub lost: Vec<LeaseId>,
}

/// `PUT /api/v1/leases/ID`: a heartbeat and, with `parts`, a new size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeBody {
    /// The token of the lease.
    #[schemars(with = "LeaseToken")]
    pub token: Proof,
    /// The new size on each device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<PartBody>>,
}

with_revocation_terms! {
    /// `POST /api/v1/leases/ID/reassert`: a lease as its holder remembers it, after the store lost it.
    ReassertBody {
        /// The token of the lease.
        #[schemars(with = "LeaseToken")]
        pub token: Proof,
        /// The id of the request that was granted.
        #[schemars(length(min = 1, max = 128))]
        pub request_id: String,
        /// The process that holds the lease.
        pub owner: OwnerBody,
        /// The priority of the request.
        pub priority: Priority,
    } {
        /// The size on each device.
        pub parts: Vec<PartBody>,
        /// The living processes that have passed the gate.
        pub processes: Vec<ProcessBody>,
    }
}

/// `DELETE /api/v1/leases/ID`. Without a token it ends only a lease whose holder has ended, or one that an operator
/// forces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseBody {
    /// The token of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LeaseToken>")]
    pub token: Option<Proof>,
    /// Whether to end the lease even if its processes are alive. Only operators may do this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// The answer to a release: 200 if the bytes are free, 202 if they stay counted until the processes are known to be
/// gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReleasedBody {
    /// Whether the bytes are free.
    pub released: bool,
    /// The lease's state, where its bytes are not free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The reason, human-readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The consequences of a forced release, human-readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// `DELETE /api/v1/leases` cancels a request: its place in the queue, and its lease if no process has passed the gate.
/// The answer is 200 and `{"cancelled": true}`, also if no such request exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelBody {
    /// The id of the request.
    #[schemars(length(min = 1, max = 128))]
    pub request_id: String,
    /// The process that sent the request.
    pub owner: OwnerBody,
}

/// The answer to a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CancelledBody {
    /// Always true: the request is gone, or was before.
    pub cancelled: bool,
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
