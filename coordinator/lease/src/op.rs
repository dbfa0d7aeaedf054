//! What can be asked of the ledger, and what comes of it.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Priority};

use crate::{DeviceKey, LeaseId, Owner, Process, StoreTime, Token};

/// One operation on the ledger.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// States what a device has. A coordinator's business only.
    Declare {
        /// Which device.
        device: DeviceKey,
        /// What people call it.
        name: String,
        /// All of its memory that may be used.
        capacity: ByteCount,
        /// The part of it that is never leased.
        reserve: ByteCount,
    },
    /// Tells what a device shows. The newer sample wins.
    Observe {
        /// Which device.
        device: DeviceKey,
        /// Bytes in use; `None` when the driver would not say.
        used: Option<ByteCount>,
        /// Bytes per process in this same sample.
        processes: Vec<ProcessUse>,
        /// When it was sampled.
        sampled_at: StoreTime,
    },
    /// Asks for bytes: all parts or none. The same request id gives the same lease.
    Acquire {
        /// The caller's name for this request.
        request_id: String,
        /// Who asks.
        owner: Owner,
        /// How important it is.
        priority: Priority,
        /// How much on which device; each device once.
        parts: Vec<(DeviceKey, ByteCount)>,
    },
    /// The gate: only after this may the process touch the device.
    Attach {
        /// Which lease.
        lease: LeaseId,
        /// Its token.
        token: Token,
        /// Who goes through the gate.
        process: Process,
        /// The boot that the caller lives in.
        boot_id: String,
    },
    /// Keeps leases alive. Never creates one.
    Renew {
        /// All leases of one holder.
        leases: Vec<(LeaseId, Token)>,
    },
    /// Changes how many bytes a lease holds: down always, up by the same test as `Acquire`.
    Resize {
        /// Which lease.
        lease: LeaseId,
        /// Its token.
        token: Token,
        /// The new sizes; the same devices as before.
        parts: Vec<(DeviceKey, ByteCount)>,
    },
    /// Gives the bytes back.
    Release {
        /// Which lease.
        lease: LeaseId,
        /// Its token.
        token: Token,
        /// What shows that they are free.
        evidence: Evidence,
    },
    /// Shows that the processes of a lease are gone, whoever held it.
    ConfirmDead {
        /// Which lease.
        lease: LeaseId,
        /// Processes that do not exist any more, with all their descendants.
        gone: Vec<Process>,
        /// The pid namespace of whoever looked: in another one, the same number is another process.
        seen_from: String,
    },
}

/// What one process uses of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessUse {
    /// The process itself, then its parent, its grandparent and so on, as far as known.
    pub lineage: Vec<Process>,
    /// How much it uses.
    pub bytes: ByteCount,
}

/// What a release can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Every process was reaped and the driver shows the bytes back.
    Gone,
    /// Nothing: the bytes may still be in use.
    None,
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// `Declare` and `Observe`: written down.
    Noted,
    /// `Acquire`: the bytes are promised.
    Granted(Grant),
    /// `Acquire`, `Resize`: not now.
    Wait(WaitReason),
    /// `Acquire`, `Resize`: not on this host, ever.
    NeverFits(NeverFits),
    /// `Attach`: the process may touch the devices.
    Attached,
    /// The lease is gone, or the token is an old one: nothing changed. The caller must not touch the device.
    Lost,
    /// `Renew`: which of the leases are lost; the others live on.
    Renewed {
        /// Leases that are gone, or whose token is an old one.
        lost: Vec<LeaseId>,
    },
    /// `Resize`: done.
    Resized,
    /// `Release`, `ConfirmDead`: the bytes are free.
    Released,
    /// `Release` without evidence: the bytes stay counted until the processes are shown to be gone.
    InLimbo,
    /// `ConfirmDead`: what was shown does not cover every process of the lease; nothing changed.
    NotShown,
    /// The operation makes no sense; nothing changed.
    Refused(Refusal),
}

/// A lease as its holder needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its name.
    pub lease: LeaseId,
    /// What proves it.
    pub token: Token,
    /// When it expires unless renewed.
    pub deadline: StoreTime,
}

/// Why bytes are not given now. Prints as a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Nobody could say how much of the device is in use.
    Unobserved {
        /// What people call it.
        device: String,
    },
    /// What is known about the device is too old.
    Stale {
        /// What people call it.
        device: String,
        /// How old.
        age: Duration,
    },
    /// Something started or ended there after the last look.
    Unsettled {
        /// What people call it.
        device: String,
    },
    /// Not enough is free.
    Capacity {
        /// What people call it.
        device: String,
        /// How much was asked for.
        needs: ByteCount,
        /// How much is free.
        free: ByteCount,
    },
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unobserved { device } => write!(f, "the memory in use on {device} is not known"),
            Self::Stale { device, age } => {
                write!(f, "the memory in use on {device} was last seen {} ms ago", age.as_millis())
            }
            Self::Unsettled { device } => write!(f, "{device} has not been looked at since its last change"),
            Self::Capacity { device, needs, free } => write!(f, "{device} has {free} free and {needs} are needed"),
        }
    }
}

/// More than the device will ever lease. Prints as a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeverFits {
    /// What people call it.
    pub device: String,
    /// How much was asked for.
    pub needs: ByteCount,
    /// The most it can lease.
    pub leasable: ByteCount,
}

impl fmt::Display for NeverFits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, needs, leasable } = self;
        write!(f, "{device} can lease {leasable} at most and {needs} are needed")
    }
}

/// Why an operation makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody declared it.
    #[error("no device '{0}' is declared in the ledger")]
    UnknownDevice(DeviceKey),
    /// No parts, an empty part, a device twice, or other devices than the lease has.
    #[error("a lease needs at least one device, each once, with at least one byte; a resize names the same devices")]
    BadParts,
    /// The lease of this request has ended.
    #[error("the lease of request '{0}' has ended; use a new request id")]
    AlreadyEnded(String),
    /// Somebody else used this request id.
    #[error("request id '{0}' belongs to another holder")]
    NotYours(String),
    /// A newer program wrote the ledger.
    #[error("the ledger has schema {0}, this program knows {known}; update it", known = crate::SCHEMA)]
    NewerSchema(u32),
}
