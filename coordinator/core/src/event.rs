//! Events that the scheduler is informed of. With [`Order`](crate::Order) and [`Effect`](crate::Effect) they are the
//! complete contract between the core, which decides, and the shell, which acts.

use std::time::Duration;

use model_boss_protocol::{
    ByteCount, Category, ClientId, DeviceId, KeepAlive, OtherLease, OtherRequest, Priority, RequestId, WorkerCores,
    WorkerExit,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::refusal::Refusal;
use crate::{Footprint, Ladder, LedgerState, ModelDescription, Moment, Settings, SlotKey};

/// An event for the scheduler. An event about a slot carries the generation it is about; events of older generations
/// are ignored.
#[derive(Clone, Debug)]
pub enum Event {
    /// The manifests were read, or read again: the full list of models.
    Catalog(Vec<ModelDescription>),
    /// A probe observed a device.
    DeviceObserved(DeviceObservation),
    /// The client of a request disconnected. This ends the request at every stage: a waiting one leaves the queue, a
    /// dispatched one gives its place back. If the request has ended already, nothing changes. No other event has to
    /// follow.
    Cancel(RequestId),
    /// A request ended. With every outcome but [`RequestOutcome::LostBeforeAnswer`], this ends the request at every
    /// stage, as `Cancel` does.
    Finished {
        /// The request that ended.
        request: RequestId,
        /// The outcome of the request.
        outcome: RequestOutcome,
        /// Tokens of prompt and answer, when the answer reported them.
        tokens: Option<u64>,
    },
    /// The target of a dispatched request cannot answer it, and no byte was sent to the client. The request is sent to
    /// the next rung of its ladder; without one, `error` is its final answer. The scheduler answers with `Dispatch`,
    /// `DispatchCloud` or `Refuse`.
    RungFailed {
        /// The request that was dispatched.
        request: RequestId,
        /// The error for the request's client if no other rung can answer.
        error: Refusal,
    },
    /// The settings were changed while the process runs.
    Settings(Box<Settings>),
    /// The ledger became available or unavailable.
    Ledger(LedgerState),
    /// Leases or requests of other holders changed in the ledger.
    Others {
        /// The leases of all other holders.
        leases: Vec<OtherLease>,
        /// The waiting requests of all other holders, in the order of arrival.
        requests: Vec<OtherRequest>,
    },
    /// A more important request revokes the lease of this slot. The event is repeated at each heartbeat until the lease
    /// is released or kept.
    LeaseRevoked {
        /// The slot with the lease.
        slot: SlotKey,
        /// The label of the request, human-readable.
        by: String,
        /// The request's priority.
        priority: Priority,
        /// The time left until the lease is in default.
        remaining: Duration,
    },
    /// The revocation of this slot's lease was withdrawn.
    LeaseKept {
        /// The slot with the lease.
        slot: SlotKey,
    },
    /// The ledger granted the bytes for this slot.
    LeaseGranted {
        /// The slot that gets the bytes.
        slot: SlotKey,
    },
    /// The ledger does not grant the bytes now.
    LeaseRefused {
        /// The slot whose lease was refused.
        slot: SlotKey,
        /// The reason, human-readable.
        reason: String,
        /// The time after which another request makes sense.
        retry_after: Duration,
    },
    /// The worker's process exists and has its start line.
    WorkerStarted {
        /// The worker's slot.
        slot: SlotKey,
        /// The process id.
        pid: u32,
        /// The port the worker will listen on, on 127.0.0.1.
        port: u16,
    },
    /// The worker reads its weights.
    WorkerProgress {
        /// The worker's slot.
        slot: SlotKey,
        /// The share read, 0 to 1.
        progress: f32,
    },
    /// The worker answered its health check with the proof of this spawn.
    WorkerReady {
        /// The worker's slot.
        slot: SlotKey,
        /// The context the worker serves, in tokens.
        context_length: Option<u64>,
        /// The cores the worker computes with; `None` for a model on another device and for an external engine.
        cores: Option<WorkerCores>,
    },
    /// The worker exited and was reaped, for any reason.
    WorkerExited {
        /// The worker's slot.
        slot: SlotKey,
        /// The exit code or the signal, with the worker's last lines.
        exit: ExitReport,
    },
    /// A probe measured the worker's process tree once it was ready. The figure raises the slot's charge, and is
    /// learned (RC-20).
    Measured {
        /// The worker's slot.
        slot: SlotKey,
        /// The bytes used on each device; devices that are not the slot's own are ignored.
        parts: Vec<(DeviceId, ByteCount)>,
    },
    /// Footprints that earlier runs of the process learned.
    Footprints(Vec<Footprint>),
    /// The lease is released, and the driver reports the bytes as free.
    LeaseReleased {
        /// The slot that had the lease.
        slot: SlotKey,
    },
    /// The process has to end: refuse new requests, finish running ones, then stop every worker.
    Drain,
    /// Time has passed without another event.
    Tick,
}

/// A probe's observation of a device. `None` is unknown, never zero (RC-21).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceObservation {
    /// The observed device.
    pub device: DeviceId,
    /// The usable memory of the device, reserve included.
    pub capacity: Option<ByteCount>,
    /// Memory to keep free.
    pub reserve: ByteCount,
    /// Memory used by programs that hold no lease.
    pub foreign: Option<ByteCount>,
    /// The most that unused models may keep here (BC-1); `None` is no limit.
    pub retention: Option<ByteCount>,
    /// Whether the device holds one model at a time only (MM-5).
    pub exclusive: bool,
    /// Memory of workers that ended without giving it back in time (RC-18). Other figures include it too.
    pub leaking: ByteCount,
    /// Whether the driver does not list the device any more. If it does, an unknown value may be known at the next
    /// probe.
    pub lost: bool,
}

/// A request for inference, with the properties that scheduling needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// The request's number.
    pub id: RequestId,
    /// The rungs that may serve the request.
    pub ladder: Ladder,
    /// The category that the route needs.
    pub category: Category,
    /// The client that sent the request.
    pub client: ClientId,
    /// The priority of the request; `None` for its client's default.
    pub priority: Option<Priority>,
    /// The moment after which an answer is useless.
    pub deadline: Option<Moment>,
    /// The time for which the model should stay loaded afterwards.
    pub keep_alive: Option<KeepAlive>,
    /// The amount of work, where it is known beforehand: for pictures, their pixels times the steps. The time of an
    /// answer is expected to grow with it.
    pub work: Option<u64>,
}

/// The end of a dispatched request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    /// The worker sent its complete answer, with any status.
    Answered,
    /// The client disconnected during the answer.
    ClientGone,
    /// The worker died before any byte of its answer was sent on: the request may be tried again.
    LostBeforeAnswer,
    /// The worker died in the middle of its answer. The stream has ended with an error.
    LostMidAnswer,
    /// The target refused the request, and no other may answer it. The client has the error.
    Refused,
    /// The deadline passed before the answer. The client has the error.
    DeadlineExceeded,
    /// An order cancelled the request. The client has the error.
    Cancelled,
}

/// The end of a worker's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitReport {
    /// The meaning of the worker's exit code; `None` for a signal, or a code that workers do not use.
    pub reason: Option<WorkerExit>,
    /// A human-readable text: `exit code 65`, `killed by signal 9`, `could not be started: …`.
    pub description: String,
    /// The last lines the worker wrote to standard error.
    pub last_lines: Vec<String>,
}
