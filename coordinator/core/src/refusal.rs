//! Refusals: reasons why a request or an order is not carried out. The HTTP layer chooses the status, code and field
//! that a client gets for each.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ApiError, DeviceId};

/// A request or an order that is not carried out, or a rung of a ladder that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, for programs.
    pub reason: RefusalReason,
    /// The reason and the remedy, human-readable.
    pub message: String,
    /// The part of the request that is at fault.
    pub about: Option<Subject>,
    /// The time until another try makes sense.
    pub retry_after: Option<Duration>,
    /// The device on which a model still serves after its move or reload failed.
    pub still_on: Option<DeviceId>,
}

/// A part of a request, as the scheduler names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The name of a model or task.
    Model,
    /// The name of a device.
    Device,
}

/// Reasons of the scheduler, and failures of rungs outside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// No model has this name.
    UnknownModel,
    /// The model exists and is not loaded.
    NotLoaded,
    /// The model does not have the category that the request needs.
    WrongKind,
    /// The text does not name a single device.
    NoDevice,
    /// The device is absent, closed or lost.
    DeviceUnavailable,
    /// No device of this machine is large enough.
    NeverFits,
    /// Other models, or leases of other holders, occupy the memory.
    NoCapacity,
    /// Pinned models keep the memory.
    Pinned,
    /// The queue is full.
    QueueFull,
    /// The client exceeds a limit of its own.
    ClientLimit,
    /// The load takes longer than the request allows.
    ColdStart,
    /// The request waited longer than it allows.
    Deadline,
    /// The process, the device or the model is being shut down.
    Draining,
    /// The model could not be loaded.
    LoadFailed,
    /// The model failed several times and is in backoff.
    BackingOff,
    /// The worker died while it worked on this request.
    WorkerCrashed,
    /// A move cannot be done, or was not finished.
    MoveFailed {
        /// Whether a worker failed; otherwise the request met another move or found no memory.
        by_worker: bool,
    },
    /// The lease store cannot be reached.
    LedgerAway,
    /// The lease store may have lost records, and their holders have to report them first.
    LedgerRecovering,
    /// The request was cancelled by an order.
    Cancelled,
    /// No request with this number waits or runs.
    UnknownRequest,
    /// The request belongs to another client than the caller.
    NotYours,
    /// The scheduler violated an invariant of its own.
    Internal,
    /// A rung failed after its request was dispatched.
    RungFailed {
        /// The error that the rung gave.
        error: Box<ApiError>,
        /// Whether the cloud provider is at fault. A limit of the coordinator concerns one request or client only.
        by_provider: bool,
    },
}

impl Refusal {
    /// A refusal for this reason, in these words.
    pub(crate) fn new(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), about: None, retry_after: None, still_on: None }
    }

    /// The failure of a rung whose request was dispatched.
    pub fn of_rung(error: ApiError, by_provider: bool) -> Self {
        let (message, retry_after) = (error.message.clone(), error.retry_after);
        let reason = RefusalReason::RungFailed { error: Box::new(error), by_provider };
        Self { retry_after, ..Self::new(reason, message) }
    }

    /// Adds the part of the request that is at fault.
    #[must_use]
    pub(crate) fn about(mut self, subject: Subject) -> Self {
        self.about = Some(subject);
        self
    }

    /// Adds the time after which another attempt makes sense.
    #[must_use]
    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Adds the device on which the model still serves.
    #[must_use]
    pub(crate) fn still_on(mut self, device: DeviceId) -> Self {
        self.still_on = Some(device);
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}
