//! Operations on the ledger.

use model_boss_protocol::{ByteCount, Priority};

use crate::{
    Accounting, DeviceKey, LeaseId, Owner, OwnerKind, Process, ProcessUse, Request, StoreTime, Token, Yielding,
};

/// One operation on the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// States a device's properties. A coordinator's statement replaces every present one. A statement of another owner
    /// holds only until a coordinator declares the device.
    Declare {
        /// The device that is declared.
        device: DeviceKey,
        /// The human-readable name.
        name: String,
        /// The device's usable memory, the reserve included.
        capacity: ByteCount,
        /// The part of `capacity` that is never leased.
        reserve: ByteCount,
        /// The method by which the leases' use of the device is measured.
        accounting: Accounting,
        /// The kind of owner that states it.
        by: OwnerKind,
    },
    /// Records an observation of a device. The newer sample has precedence.
    Observe {
        /// The observed device.
        device: DeviceKey,
        /// Bytes in use; `None` when the driver did not report them.
        used: Option<ByteCount>,
        /// Bytes per process in this same sample.
        processes: Vec<ProcessUse>,
        /// The time of the sample.
        sampled_at: StoreTime,
    },
    /// Requests bytes: all parts or none. The same request id gives the same lease.
    Acquire(Request),
    /// Withdraws a request: its place in the queue, and its lease if no process passed the gate.
    Cancel {
        /// The id of the request.
        request_id: String,
        /// The process of the request.
        owner: Process,
    },
    /// Passes the gate: only after this may the process use the device.
    Attach {
        /// The lease that the process belongs to.
        lease: LeaseId,
        /// The lease's token.
        token: Token,
        /// The process that passes the gate.
        process: Process,
        /// The boot of the caller's host.
        boot_id: String,
    },
    /// Reports a complete load. It matters if processes cannot be told apart.
    Settle {
        /// The lease that was loaded under.
        lease: LeaseId,
        /// The lease's token.
        token: Token,
    },
    /// Renews leases. It never creates one.
    Renew {
        /// Leases of one holder.
        leases: Vec<Renewal>,
    },
    /// Changes the size of a lease: always possible downwards, and upwards by the same test as `Acquire`.
    Resize {
        /// The lease to change.
        lease: LeaseId,
        /// The lease's token.
        token: Token,
        /// The new sizes; the same devices as before.
        parts: Vec<(DeviceKey, ByteCount)>,
    },
    /// Releases a lease.
    Release {
        /// The lease to release.
        lease: LeaseId,
        /// The lease's token.
        token: Token,
        /// The evidence that the lease's bytes are free.
        evidence: Evidence,
    },
    /// Proves that the processes of a lease are gone, for any holder.
    ConfirmDead {
        /// The lease of the processes.
        lease: LeaseId,
        /// Processes that do not exist any more, with all their descendants.
        gone: Vec<Process>,
        /// The pid namespaces whose processes the caller can see: in another one, the same number is another process.
        seen_from: Vec<String>,
    },
    /// Ends a lease without evidence, on an operator's order. Its processes are not ended. The bytes they still use
    /// count as foreign as soon as a device shows them.
    Force {
        /// The lease to end.
        lease: LeaseId,
        /// The operator, human-readable.
        by: String,
    },
    /// Reports a holder's lease again, after the store may have lost it.
    Reassert(Record),
}

/// The renewal of one lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Renewal {
    /// The lease to renew.
    pub lease: LeaseId,
    /// The lease's token.
    pub token: Token,
    /// The new priority, if it changed.
    pub priority: Option<Priority>,
    /// Whether the lease was used since the last renewal.
    pub used: bool,
}

/// A lease as its holder remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The lease's name.
    pub lease: LeaseId,
    /// The lease's token, or `None` for a holder that proves its lease in another way. In that case the lease keeps
    /// the token in the ledger, or gets the next one.
    pub token: Option<Token>,
    /// The request that the lease was granted for.
    pub request_id: String,
    /// The lease's owner.
    pub owner: Owner,
    /// The importance of the request for the queue and for preemption.
    pub priority: Priority,
    /// The conditions under which the lease may be revoked.
    pub yielding: Yielding,
    /// The bytes on each device.
    pub parts: Vec<(DeviceKey, ByteCount)>,
    /// The attached processes that are alive.
    pub pids: Vec<Process>,
    /// The boot in which the processes run.
    pub boot_id: String,
}

/// The evidence of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// Every process was reaped, and the driver shows the bytes as free.
    Gone,
    /// No evidence: the bytes may still be in use.
    None,
}

impl Renewal {
    /// A renewal without a change.
    pub fn plain(lease: LeaseId, token: Token) -> Self {
        Self { lease, token, priority: None, used: false }
    }
}
