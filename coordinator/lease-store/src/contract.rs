//! Requests to a holder, and its answers.

use std::time::{Duration, Instant};

use model_boss_lease::{Accounting, DeviceKey, LeaseId, Mode, Process, Token, Yielding};
use model_boss_protocol::{ByteCount, DeviceId, Priority};

/// A device that can be leased.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDeclaration {
    /// The human-readable name.
    pub device: DeviceId,
    /// The key in the ledger.
    pub key: DeviceKey,
    /// The device's usable memory, the reserve included.
    pub capacity: ByteCount,
    /// The part of `capacity` that is never leased.
    pub reserve: ByteCount,
    /// The method by which the leases' use of the device is measured.
    pub accounting: Accounting,
}

/// One sample of a device by a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The observed device.
    pub device: DeviceId,
    /// Bytes in use by all processes; `None` when the driver did not report them.
    pub used: Option<ByteCount>,
    /// Bytes in use by each process, if the probe can list them. The reader looks for descendants of leased processes
    /// in this list.
    pub processes: Vec<(u32, ByteCount)>,
    /// The time of the sample.
    pub sampled_at: Instant,
}

/// A request for bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct AcquireRequest {
    /// The caller's name for the request; repeating it gives the same lease. It is unique among all requests ever
    /// made.
    pub request_id: String,
    /// A human-readable name: the model or the job.
    pub label: String,
    /// The importance of the request for the queue and for preemption.
    pub priority: Priority,
    /// The bytes and devices that are wanted.
    pub wish: LeaseWish,
    /// The conditions under which the lease may be revoked.
    pub yielding: Yielding,
    /// The action if the bytes are not free now.
    pub mode: Mode,
}

/// The bytes and devices that are wanted.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseWish {
    /// Bytes on each of these devices, each named once.
    Parts(Vec<(DeviceId, ByteCount)>),
    /// The same bytes on each of any `count` of these devices.
    AnyOf {
        /// The number of devices.
        count: usize,
        /// The bytes on each device.
        bytes: ByteCount,
        /// The devices to choose from.
        devices: Vec<DeviceId>,
    },
}

/// The answer to a request. Repeating the request keeps the place in the queue.
#[derive(Clone, Debug, PartialEq)]
pub enum Acquired {
    /// The bytes are promised.
    Granted(LeaseHandle),
    /// The bytes cannot be granted now.
    Wait {
        /// The place in the queue, from 1.
        position: usize,
        /// The reason, human-readable.
        reason: String,
        /// The leases revoked for the request.
        asked: Vec<RevokedForUs>,
        /// The time after which the request should be repeated, unless leases change before.
        retry_after: Duration,
    },
    /// The bytes can never be granted on this host.
    NeverFits {
        /// The reason, human-readable.
        reason: String,
    },
}

/// A lease that was revoked.
#[derive(Clone, Debug, PartialEq)]
pub struct RevokedForUs {
    /// The label of the lease.
    pub label: String,
    /// The time left for the lease's release.
    pub remaining: Duration,
}

/// A held lease. Dropping the handle releases no bytes: only `Holder::release` has the evidence for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHandle {
    /// The lease's name.
    pub lease: LeaseId,
    /// The token that proves the lease.
    pub token: Token,
}

/// The result of a heartbeat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenewOutcome {
    /// Leases that do not exist any more. The processes of these leases must be ended within five seconds.
    pub lost: Vec<LeaseHandle>,
    /// Leases that were revoked.
    pub revoked: Vec<Revoked>,
    /// Leases that were restored with fewer bytes after the store lost them, with these bytes. Their use must not
    /// grow beyond.
    pub reduced: Vec<(LeaseHandle, Vec<(DeviceId, ByteCount)>)>,
}

/// A lease that was revoked.
#[derive(Clone, Debug, PartialEq)]
pub struct Revoked {
    /// The revoked lease.
    pub handle: LeaseHandle,
    /// The time left for the lease's release. At zero the grace is over, and the holder ends its own processes now.
    pub remaining: Duration,
    /// The label of the request the lease is revoked for, human-readable.
    pub wanted_by: String,
    /// The priority of that request.
    pub priority: Priority,
    /// The bytes wanted on each device; shrinking may be enough.
    pub wanted: Vec<(DeviceId, ByteCount)>,
}

/// A lease whose owner has ended while its processes are alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The lease's name.
    pub lease: LeaseId,
    /// The purpose of the lease, human-readable.
    pub label: String,
    /// The processes of the lease's tree that are still alive.
    pub processes: Vec<Process>,
}

impl AcquireRequest {
    /// A request for these parts that does not wait, and whose lease is never revoked.
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
            wish: LeaseWish::Parts(parts),
            yielding: Yielding::default(),
            mode: Mode::Try,
        }
    }
}
