//! Outcomes of operations.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Priority};

use crate::{DeviceKey, LeaseId, LeaseWaitReason, StoreTime, Token};

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// `Declare`, `Observe`, `Cancel`, `Settle`: recorded. `Acquire`: a place is kept, and the request would fit now.
    Noted,
    /// `Acquire`: the bytes are promised.
    Granted(Grant),
    /// `Acquire`, `Resize`, `Reassert`: the bytes cannot be granted now.
    Wait(Wait),
    /// `Acquire`: other leases were revoked.
    Revoking {
        /// The revoked leases.
        victims: Vec<RevokedLease>,
        /// The reason to wait, and the place in the queue.
        wait: Wait,
    },
    /// `Acquire`, `Resize`: the bytes can never be granted on this host.
    NeverFits(NeverFits),
    /// `Acquire`, `Attach`, growth: records may have been lost. No lease is granted until every holder has had time
    /// to report its own.
    Recovering {
        /// The longest time until leases are granted again.
        retry_after: Duration,
    },
    /// `Attach`: the process may use the devices.
    Attached,
    /// The lease does not exist any more, or the token is outdated. The ledger is unchanged, and the caller must not
    /// use the device.
    Lost,
    /// `Renew`: the leases that are lost or revoked; all others were renewed.
    Renewed {
        /// Leases that do not exist any more, or whose token is outdated.
        lost: Vec<LeaseId>,
        /// Leases that were revoked.
        revoked: Vec<Revocation>,
    },
    /// `Resize`: the lease has the new size.
    Resized,
    /// `Release`, `ConfirmDead`, `Force`: the bytes are free.
    Released,
    /// `Release` without evidence: the bytes stay counted until the processes are shown to be gone.
    InLimbo,
    /// `ConfirmDead`: the proof does not cover every process of the lease; nothing changed.
    NotShown,
    /// `Reassert`: the lease counts again, with these sizes.
    Reasserted {
        /// The bytes on each device; less than reported where neither the device showed them nor there was room.
        parts: Vec<(DeviceKey, ByteCount)>,
    },
    /// The operation is invalid; nothing changed.
    Refused(OpRefusal),
}

/// A granted lease, for its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The lease's name.
    pub lease: LeaseId,
    /// The token that proves the lease.
    pub token: Token,
    /// The time at which the lease expires unless renewed.
    pub deadline: StoreTime,
    /// The bytes on each device.
    pub parts: Vec<(DeviceKey, ByteCount)>,
}

/// The answer to a request whose bytes are not granted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The place in the queue, from 1.
    pub position: usize,
    /// The reason of the wait.
    pub reason: LeaseWaitReason,
}

/// A revoked lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedLease {
    /// The lease's name.
    pub lease: LeaseId,
    /// The purpose of the lease, human-readable.
    pub label: String,
    /// The time left for the lease's release.
    pub remaining: Duration,
}

/// The notice to the holder of a revoked lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The lease's name.
    pub lease: LeaseId,
    /// The time left for the lease's release; at zero the holder ends its own processes.
    pub remaining: Duration,
    /// The label of the request the lease is revoked for, human-readable.
    pub wanted_by: String,
    /// The priority of that request.
    pub priority: Priority,
    /// The bytes wanted on each device. Shrinking by less than the whole lease may be enough.
    pub wanted: Vec<(DeviceKey, ByteCount)>,
}

/// The error for more bytes than the device can ever lease. It prints as a human-readable sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeverFits {
    /// The device's human-readable name.
    pub device: String,
    /// The bytes requested.
    pub needs: ByteCount,
    /// The most bytes that the device can lease.
    pub leasable: ByteCount,
}

impl fmt::Display for NeverFits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, needs, leasable } = self;
        write!(f, "{device} can lease {leasable} at most and {needs} are needed")
    }
}

/// The reason why an operation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpRefusal {
    /// The device was never declared.
    #[error("no device '{0}' is declared in the ledger")]
    UnknownDevice(DeviceKey),
    /// The parts are invalid: none, an empty one, a device twice, more devices than named, or other devices than the
    /// lease has.
    #[error("a lease needs at least one device, each once, with at least one byte; a resize names the same devices")]
    BadParts,
    /// The lease of this request has ended.
    #[error("the lease of request '{0}' has ended; use a new request id")]
    AlreadyEnded(String),
    /// Another lease has the random name that was drawn for this one.
    #[error("a lease is called '{0}' already; ask again with another name")]
    NameTaken(LeaseId),
    /// The number of entries is at its limit. The ledger is read and written as a whole, so it must stay small.
    #[error("{whose} {limit} leases and waiting requests, and no more: release some, or come again later")]
    TooMany {
        /// The owner of the entries, as the beginning of a sentence.
        whose: String,
        /// The limit on entries.
        limit: usize,
    },
    /// This request id belongs to another owner.
    #[error("request id '{0}' belongs to another holder")]
    NotYours(String),
    /// A newer program wrote the ledger.
    #[error("the ledger has schema {0}, this program knows {known}; update it", known = crate::SCHEMA)]
    NewerSchema(u32),
}
