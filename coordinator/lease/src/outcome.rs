//! What comes of an operation.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Priority};

use crate::{DeviceKey, LeaseId, StoreTime, Token, WaitReason};

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// `Declare`, `Observe`, `Cancel`, `Settle`: written down. `Acquire`: a place is kept, and it would fit now.
    Noted,
    /// `Acquire`: the bytes are promised.
    Granted(Grant),
    /// `Acquire`, `Resize`, `Reassert`: not now.
    Wait(Wait),
    /// `Acquire`: others were asked to give their bytes back.
    Revoking {
        /// Who was asked.
        victims: Vec<Victim>,
        /// What is waited for.
        wait: Wait,
    },
    /// `Acquire`, `Resize`: not on this host, ever.
    NeverFits(NeverFits),
    /// `Acquire`, `Attach`, growth: records may have been lost; nothing is granted until every holder had time to
    /// state its own again.
    Recovering {
        /// How long that takes at most.
        retry_after: Duration,
    },
    /// `Attach`: the process may touch the devices.
    Attached,
    /// The lease is gone, or the token is an old one: nothing changed. The caller must not touch the device.
    Lost,
    /// `Renew`: which of the leases are lost; the others live on.
    Renewed {
        /// Leases that are gone, or whose token is an old one.
        lost: Vec<LeaseId>,
        /// Leases whose bytes are asked back.
        revoked: Vec<Revocation>,
    },
    /// `Resize`: done.
    Resized,
    /// `Release`, `ConfirmDead`, `Force`: the bytes are free.
    Released,
    /// `Release` without evidence: the bytes stay counted until the processes are shown to be gone.
    InLimbo,
    /// `ConfirmDead`: what was shown does not cover every process of the lease; nothing changed.
    NotShown,
    /// `Reassert`: counted again, with these sizes.
    Reasserted {
        /// How much on which device; less than stated where neither the device shows it nor there was room.
        parts: Vec<(DeviceKey, ByteCount)>,
    },
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
    /// How much on which device.
    pub parts: Vec<(DeviceKey, ByteCount)>,
}

/// Bytes that are not given now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The place in the queue, from 1.
    pub position: usize,
    /// Why.
    pub reason: WaitReason,
}

/// A lease whose holder was asked to give its bytes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Which lease.
    pub lease: LeaseId,
    /// What it is for.
    pub label: String,
    /// How long its holder still has.
    pub remaining: Duration,
}

/// What a holder is told whose bytes are asked back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Which lease.
    pub lease: LeaseId,
    /// How long there still is; zero once the grace has ended: then the holder ends its own processes.
    pub remaining: Duration,
    /// Who asks, for people.
    pub wanted_by: String,
    /// How important that is.
    pub priority: Priority,
    /// How much is wanted where. Shrinking by less than the whole lease may be enough.
    pub wanted: Vec<(DeviceKey, ByteCount)>,
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
    /// No parts, an empty part, a device twice, more devices wanted than named, or other devices than the lease has.
    #[error("a lease needs at least one device, each once, with at least one byte; a resize names the same devices")]
    BadParts,
    /// The lease of this request has ended.
    #[error("the lease of request '{0}' has ended; use a new request id")]
    AlreadyEnded(String),
    /// Another lease has the name that this one would get.
    #[error("a lease is called '{0}' already; ask again with another name")]
    NameTaken(LeaseId),
    /// The ledger is read and written as a whole all the time: it holds so much and no more.
    #[error("{whose} {limit} leases and waiting requests, and no more: release some, or come again later")]
    TooMany {
        /// Whose they are, as the beginning of a sentence.
        whose: String,
        /// The bound.
        limit: usize,
    },
    /// Somebody else used this request id.
    #[error("request id '{0}' belongs to another holder")]
    NotYours(String),
    /// A newer program wrote the ledger.
    #[error("the ledger has schema {0}, this program knows {known}; update it", known = crate::SCHEMA)]
    NewerSchema(u32),
}
