//! What happens to the scheduler, and what it wants done. With [`Order`](crate::Order) these enums are the whole contract
//! between the core, which decides, and the shell, which acts.

use std::time::Duration;

use model_boss_protocol::{
    ApiError, ByteCount, Category, ClientId, DeviceId, Generation, KeepAlive, Priority, RequestId, SlotId, WorkerExit,
};
use serde::Serialize;

use crate::{Footprint, Ladder, LedgerState, ModelDescription, Moment, OtherLease, OtherRequest, Settings};

/// News for the scheduler. News about a slot carries the generation it is about; older generations are ignored.
#[derive(Clone, Debug)]
pub enum Event {
    /// The manifests were read, or read again: the full list of models.
    Catalog(Vec<ModelDescription>),
    /// What a device has, as its probe sees it now.
    DeviceObserved(DeviceObservation),
    /// The client of a request went away. Ends the request at every stage: one that waits leaves the queue, one that was
    /// dispatched gives its place back, of one that ended nothing is left to change. Nothing else has to follow.
    Cancel(RequestId),
    /// A request ended. Every outcome but [`Outcome::LostBeforeAnswer`] is its end at every stage, as `Cancel` is.
    Finished {
        /// Which request.
        request: RequestId,
        /// How it ended.
        outcome: Outcome,
        /// Tokens of prompt and answer, when the answer said so.
        tokens: Option<u64>,
    },
    /// What a dispatched request was sent to cannot answer it, and no byte was sent on. It goes to the next rung of its
    /// ladder; without one, `error` is its final answer. Answered with `Dispatch`, `DispatchCloud` or `Refuse`.
    RungFailed {
        /// Which request.
        request: RequestId,
        /// What the client is told when nothing else can answer.
        error: ApiError,
    },
    /// The settings were changed while the process runs.
    Settings(Box<Settings>),
    /// Whether memory can be leased changed.
    Ledger(LedgerState),
    /// What other holders have and want in the ledger changed.
    Others {
        /// Their leases.
        leases: Vec<OtherLease>,
        /// Their requests that wait, first come first.
        requests: Vec<OtherRequest>,
    },
    /// Somebody more important asks for the bytes of this slot. Told again at every heartbeat while it is so.
    LeaseRevoked {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// Who asks, for people.
        by: String,
        /// How important that is.
        priority: Priority,
        /// How long there still is.
        remaining: Duration,
    },
    /// The bytes of this slot are not asked for any more.
    LeaseKept {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
    },
    /// The ledger holds the bytes for this slot.
    LeaseGranted {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
    },
    /// The ledger does not give the bytes now.
    LeaseRefused {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// Why, for people.
        reason: String,
        /// When asking again makes sense.
        retry_after: Duration,
    },
    /// The worker's process exists and has its start line.
    WorkerStarted {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// The process.
        pid: u32,
        /// Where it will listen, on 127.0.0.1.
        port: u16,
    },
    /// The worker reads its weights.
    WorkerProgress {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// Share read, 0 to 1.
        progress: f32,
    },
    /// The worker answered its health check with its own proof.
    WorkerReady {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// The context it serves, in tokens.
        context_length: Option<u64>,
    },
    /// The worker is gone: reaped, whatever the reason.
    WorkerExited {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// How it ended.
        exit: ExitReport,
    },
    /// What the probe shows for the worker's process tree once it is ready. Raises what is charged for the slot, and is
    /// learned (RC-20).
    Measured {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// The bytes used on each device; devices that are not among the slot's own are passed over.
        parts: Vec<(DeviceId, ByteCount)>,
    },
    /// What was learned in earlier lives of the process.
    Footprints(Vec<Footprint>),
    /// The lease is released and the driver shows the bytes back.
    LeaseReleased {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
    },
    /// The process is asked to end: refuse what is new, finish what runs, then stop every worker.
    Drain,
    /// Nothing happened but time.
    Tick,
}

/// What a probe sees of a device. `None` is unknown, never zero (RC-21).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceObservation {
    /// Which device.
    pub device: DeviceId,
    /// The memory that may be used for models in all.
    pub capacity: Option<ByteCount>,
    /// Kept free for others.
    pub reserve: ByteCount,
    /// Used by programs that hold no lease.
    pub foreign: Option<ByteCount>,
    /// What models may keep here while nobody uses them (BC-1); `None` is no such limit.
    pub retention: Option<ByteCount>,
    /// Only one model at a time may use it (MM-5).
    pub exclusive: bool,
    /// Used by workers that ended and whose memory was not given back in time (RC-18). Counted elsewhere too.
    pub leaking: ByteCount,
    /// Its driver does not list it any more. Otherwise what is unknown may be known at the next look.
    pub lost: bool,
}

/// A request for inference, as far as scheduling cares.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Its number.
    pub id: RequestId,
    /// Where it may be served.
    pub ladder: Ladder,
    /// What the route needs the model to be able to do.
    pub category: Category,
    /// Who asks.
    pub client: ClientId,
    /// How important it is; its client's default when it does not say.
    pub priority: Option<Priority>,
    /// When its answer is worth nothing any more.
    pub deadline: Option<Moment>,
    /// How long the model should stay loaded after it.
    pub keep_alive: Option<KeepAlive>,
}

/// How a dispatched request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The worker gave its whole answer, whatever its status.
    Answered,
    /// The client went away while it was answered.
    ClientGone,
    /// The worker went away before any byte of its answer was sent on: may be tried again.
    LostBeforeAnswer,
    /// The worker went away in the middle of its answer: the client has been told in the stream.
    LostMidAnswer,
    /// What was to answer it would not take it, and nothing else may: the client has been told why.
    Refused,
    /// Its time budget was over before its answer was: the client has been told.
    DeadlineExceeded,
}

/// How a worker's process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitReport {
    /// What its exit code says; `None` for a signal or a code that is not ours.
    pub reason: Option<WorkerExit>,
    /// For people: `exit code 65`, `killed by signal 9`, `could not be started: …`.
    pub description: String,
    /// The last lines it wrote to standard error.
    pub last_lines: Vec<String>,
}
