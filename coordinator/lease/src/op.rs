//! What can be asked of the ledger.

use model_boss_protocol::{ByteCount, Priority};

use crate::{
    Accounting, DeviceKey, LeaseId, Owner, OwnerKind, Process, ProcessUse, Request, StoreTime, Token, Yielding,
};

/// One operation on the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// States what a device has. A coordinator's word replaces what is there; anybody else's stands only until then.
    Declare {
        /// Which device.
        device: DeviceKey,
        /// What people call it.
        name: String,
        /// All of its memory that may be used.
        capacity: ByteCount,
        /// The part of it that is never leased.
        reserve: ByteCount,
        /// How it is known what leases use of it.
        accounting: Accounting,
        /// Who says so.
        by: OwnerKind,
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
    Acquire(Request),
    /// Takes a request back: its place in the queue, and its lease if no process was let through the gate.
    Cancel {
        /// Which request.
        request_id: String,
        /// Who asked.
        owner: Process,
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
    /// States that the load is complete. Matters where processes cannot be told apart.
    Settle {
        /// Which lease.
        lease: LeaseId,
        /// Its token.
        token: Token,
    },
    /// Keeps leases alive. Never creates one.
    Renew {
        /// All leases of one holder.
        leases: Vec<Renewal>,
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
        /// The pid namespaces whose processes the caller can see: in another one, the same number is another process.
        seen_from: Vec<String>,
    },
    /// Ends a lease without evidence, at an operator's word. Its processes are not ended, and what they still use counts
    /// as foreign as soon as a device shows it.
    Force {
        /// Which lease.
        lease: LeaseId,
        /// The operator, for people.
        by: String,
    },
    /// States again what a holder holds, after the store may have lost it.
    Reassert(Record),
}

/// A lease that its holder keeps alive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Renewal {
    /// Which lease.
    pub lease: LeaseId,
    /// Its token.
    pub token: Token,
    /// How important it is now, if that changed.
    pub priority: Option<Priority>,
    /// Whether it was used since the last renewal.
    pub used: bool,
}

/// A lease as its holder remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Which lease.
    pub lease: LeaseId,
    /// Its token; `None` for a holder that proves its lease in another way: then it keeps the token that the ledger knows,
    /// or gets the next one.
    pub token: Option<Token>,
    /// The request that it was granted for.
    pub request_id: String,
    /// Who holds it.
    pub owner: Owner,
    /// How important it is.
    pub priority: Priority,
    /// Whether and how it may be asked to give its bytes back.
    pub yielding: Yielding,
    /// How much on which device.
    pub parts: Vec<(DeviceKey, ByteCount)>,
    /// The processes that are attached and live.
    pub pids: Vec<Process>,
    /// The boot that they live in.
    pub boot_id: String,
}

/// What a release can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// Every process was reaped and the driver shows the bytes back.
    Gone,
    /// Nothing: the bytes may still be in use.
    None,
}

impl Renewal {
    /// Keeps a lease as it is.
    pub fn plain(lease: LeaseId, token: Token) -> Self {
        Self { lease, token, priority: None, used: false }
    }
}
