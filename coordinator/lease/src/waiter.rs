//! Requests for bytes, and those among them that wait.

use model_boss_protocol::{ByteCount, Priority};
use serde::{Deserialize, Serialize};

use crate::unknown::{UnknownFields, UnknownValue};
use crate::{DeviceKey, LeaseId, Owner, StoreTime, Yielding};

/// A wish for bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The caller's name for it. The same id gives the same lease.
    pub request_id: String,
    /// The name of the lease, if this very question is granted. Drawn at random: it is shown to everybody.
    pub lease: LeaseId,
    /// Who asks.
    pub owner: Owner,
    /// How important it is.
    pub priority: Priority,
    /// Whether and how the lease may be asked to give its bytes back.
    pub yielding: Yielding,
    /// How much, and where.
    pub want: Want,
    /// What to do when it does not fit now.
    pub mode: Mode,
}

/// How much, and where.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    /// So much on each of these devices, each named once.
    Parts(Vec<(DeviceKey, ByteCount)>),
    /// So much on each of any `count` of these devices.
    AnyOf {
        /// On how many.
        count: usize,
        /// How much on each.
        bytes: ByteCount,
        /// Which may be chosen, each named once.
        devices: Vec<DeviceKey>,
    },
    /// A wish of a newer version. It is not nominated for anything.
    #[serde(untagged)]
    Other(UnknownValue),
}

/// What to do when a request does not fit now.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing: the answer says why.
    Try,
    /// Wait for bytes to come free. Asking again before the lease time has passed keeps the place in the queue.
    Wait,
    /// Wait, and ask less important leases that declared themselves preemptible to give their bytes back.
    Preempt,
    /// Take or keep a place in the queue and be granted nothing yet: who asks makes the room itself first, and is not
    /// to find it taken by others.
    Reserve,
    /// The same, and ask others to give their bytes back.
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

    /// Whether others are asked to give their bytes back for it.
    pub(crate) const fn preempts(&self) -> bool {
        matches!(self, Self::Preempt | Self::ReservePreempt)
    }

    /// Whether it is granted nothing yet.
    pub(crate) const fn only_reserves(&self) -> bool {
        matches!(self, Self::Reserve | Self::ReservePreempt)
    }
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Waiter {
    /// Who asks.
    pub owner: Owner,
    /// How important it is.
    pub priority: Priority,
    /// How much, and where.
    pub want: Want,
    /// What it does while it waits.
    pub mode: Mode,
    /// When it came.
    pub arrived: StoreTime,
    /// When it is forgotten unless it asks again.
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
