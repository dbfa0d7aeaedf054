//! What a holder is asked and what it answers.

use std::time::{Duration, Instant};

use model_boss_lease::{Accounting, DeviceKey, LeaseId, Mode, Process, Token, Yielding};
use model_boss_protocol::{ByteCount, DeviceId, Priority};

/// A device that can be leased.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDeclaration {
    /// The name people use.
    pub device: DeviceId,
    /// What it really is.
    pub key: DeviceKey,
    /// All of its memory that may be used.
    pub capacity: ByteCount,
    /// The part of it that is never leased.
    pub reserve: ByteCount,
    /// How it is known what leases use of it.
    pub accounting: Accounting,
}

/// What a probe saw of a device in one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Which device.
    pub device: DeviceId,
    /// Bytes in use by anybody; `None` when the driver would not say.
    pub used: Option<ByteCount>,
    /// Bytes in use by each process that the probe could tell apart. Descendants of leased processes are found here.
    pub processes: Vec<(u32, ByteCount)>,
    /// When the sample was taken.
    pub sampled_at: Instant,
}

/// A request for bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct AcquireRequest {
    /// The caller's name for it; asking again gives the same lease. Unique among everything ever asked.
    pub request_id: String,
    /// For people: the model or the job.
    pub label: String,
    /// How important it is.
    pub priority: Priority,
    /// How much on which device.
    pub wish: Wish,
    /// Whether and how the lease may be asked to give its bytes back.
    pub yielding: Yielding,
    /// What to do when it does not fit now.
    pub mode: Mode,
}

/// How much on which device.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// So much on each of these, each named once.
    Parts(Vec<(DeviceId, ByteCount)>),
    /// So much on each of any `count` of these.
    AnyOf {
        /// On how many.
        count: usize,
        /// How much on each.
        bytes: ByteCount,
        /// Which may be chosen.
        devices: Vec<DeviceId>,
    },
}

/// What came of a request. Ask again to keep the place in the queue.
#[derive(Clone, Debug, PartialEq)]
pub enum Acquired {
    /// The bytes are promised.
    Granted(LeaseHandle),
    /// Not now.
    Wait {
        /// The place in the queue, from 1.
        position: usize,
        /// Why, for people.
        reason: String,
        /// Who was asked to give bytes back for it.
        asked: Vec<Asked>,
        /// When asking again makes sense, if nothing is heard before.
        retry_after: Duration,
    },
    /// Not on this host, ever.
    NeverFits {
        /// Why, for people.
        reason: String,
    },
}

/// Who was asked to give bytes back.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// What it is for.
    pub label: String,
    /// How long it still has.
    pub remaining: Duration,
}

/// A held lease. Dropping it releases nothing: only `Holder::release` knows what is shown about the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHandle {
    /// Its name.
    pub lease: LeaseId,
    /// What proves it.
    pub token: Token,
}

/// What a heartbeat found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// Leases that are gone: their processes must be ended within five seconds.
    pub lost: Vec<LeaseHandle>,
    /// Leases whose bytes are asked back.
    pub revoked: Vec<Revoked>,
    /// Leases that came out smaller after the store lost them: this much they hold, and may not grow.
    pub reduced: Vec<(LeaseHandle, Vec<(DeviceId, ByteCount)>)>,
}

/// A lease whose bytes are asked back.
#[derive(Clone, Debug, PartialEq)]
pub struct Revoked {
    /// Which lease.
    pub handle: LeaseHandle,
    /// How long there still is. Zero: the grace is over, the holder ends its own processes now.
    pub remaining: Duration,
    /// Who asks, for people.
    pub wanted_by: String,
    /// How important that is.
    pub priority: Priority,
    /// How much is wanted where; shrinking may be enough.
    pub wanted: Vec<(DeviceId, ByteCount)>,
}

/// A lease whose owner is gone and whose processes are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The lease.
    pub lease: LeaseId,
    /// What it was for.
    pub label: String,
    /// The processes of its tree that still live.
    pub processes: Vec<Process>,
}

impl AcquireRequest {
    /// Asks once for these parts; never asked to give them back.
    pub fn new(
        request_id: impl Into<String>,
        label: impl Into<String>,
        priority: Priority,
        parts: Vec<(DeviceId, ByteCount)>,
    ) -> Self {
        Self {
            request_id: request_id.into(),
            label: label.into(),
            priority,
            wish: Wish::Parts(parts),
            yielding: Yielding::default(),
            mode: Mode::Try,
        }
    }
}
