//! Requests for bytes, and the record of a request that waits in the ledger.

use model_boss_protocol::{ByteCount, Priority};
use serde::{Deserialize, Serialize};

use crate::unknown::{UnknownFields, UnknownValue};
use crate::{DeviceKey, LeaseId, Owner, StoreTime, Yielding};

/// A request for bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The caller's name for the request. The same id gives the same lease.
    pub request_id: String,
    /// The name of the lease if this request is granted. It is random, because every client can see it.
    pub lease: LeaseId,
    /// The owner of the request.
    pub owner: Owner,
    /// The importance of the request for the queue and for preemption.
    pub priority: Priority,
    /// The conditions under which the lease may be revoked.
    pub yielding: Yielding,
    /// The bytes and devices that are wanted.
    pub want: Want,
    /// The action if the bytes are not free now.
    pub mode: Mode,
}

/// The bytes and devices that are wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    /// Bytes on each of these devices, each named once.
    Parts(Vec<(DeviceKey, ByteCount)>),
    /// The same bytes on each of any `count` of these devices.
    AnyOf {
        /// The number of devices.
        count: usize,
        /// The bytes on each device.
        bytes: ByteCount,
        /// The devices to choose from, each named once.
        devices: Vec<DeviceKey>,
    },
    /// A wish of a newer version, which gets no nomination.
    #[serde(untagged)]
    Other(UnknownValue),
}

/// The action if a request does not fit now.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Do not wait: the answer states the reason.
    Try,
    /// Wait for free bytes. Repeating the request within the lease time keeps the place in the queue.
    Wait,
    /// Wait, and revoke less important leases that were declared preemptible.
    Preempt,
    /// Take or keep a place in the queue without a grant. The asker makes the room itself first, and the place keeps
    /// others from taking it.
    Reserve,
    /// Reserve a place, and revoke other leases for the request.
    #[serde(rename = "reserve-preempt")]
    ReservePreempt,
    /// A mode of a newer version.
    #[serde(untagged)]
    Other(String),
}

impl Mode {
    /// Whether the request keeps a place in the queue.
    pub(crate) const fn waits(&self) -> bool {
        matches!(self, Self::Wait | Self::Preempt | Self::Reserve | Self::ReservePreempt)
    }

    /// Whether other leases are revoked for the request.
    pub(crate) const fn preempts(&self) -> bool {
        matches!(self, Self::Preempt | Self::ReservePreempt)
    }

    /// Whether the request only keeps a place and gets no grant yet.
    pub(crate) const fn only_reserves(&self) -> bool {
        matches!(self, Self::Reserve | Self::ReservePreempt)
    }
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Waiter {
    /// The owner of the request.
    pub owner: Owner,
    /// The importance of the request for the queue and for preemption.
    pub priority: Priority,
    /// The bytes and devices that are wanted.
    pub want: Want,
    /// The action while the request waits.
    pub mode: Mode,
    /// The time of the request's arrival.
    pub arrived: StoreTime,
    /// The time at which the place expires unless the request is repeated.
    pub deadline: StoreTime,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

impl Waiter {
    pub(crate) fn new(request: &Request, arrived: StoreTime, deadline: StoreTime) -> Self {
        Self {
            owner: request.owner.clone(),
            priority: request.priority,
            want: request.want.clone(),
            mode: request.mode.clone(),
            arrived,
            deadline,
            unknown: UnknownFields::default(),
        }
    }
}
