//! Refusals: reasons why a request or an order is not done. Which status, code and field a client gets for each is decided
//! where HTTP is spoken.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ApiError, DeviceId};

/// A request or an order that is not done, or a rung of a ladder that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, for programs.
    pub reason: RefusalReason,
    /// The reason and the way out, for people.
    pub message: String,
    /// The part of the request that was wrong.
    pub about: Option<Subject>,
    /// The time until another try makes sense.
    pub retry_after: Option<Duration>,
    /// The device on which a model still serves that could not be moved or loaded anew.
    pub still_on: Option<DeviceId>,
}

/// A part of a request that the scheduler understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The name of a model or task.
    Model,
    /// The name of a device.
    Device,
}

/// Reasons of the scheduler, and the failure of a rung outside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// No model has this name.
    UnknownModel,
    /// The model exists and is not loaded.
    NotLoaded,
    /// The model does not do this kind of work.
    WrongKind,
    /// The text names no single device.
    NoDevice,
    /// The device is absent, closed or gone.
    DeviceUnavailable,
    /// No device of this machine is large enough.
    NeverFits,
    /// Other models, or other holders of leases, keep the memory.
    NoCapacity,
    /// Pinned models keep the memory.
    Pinned,
    /// The queue is full.
    QueueFull,
    /// The client is over its share.
    ClientLimit,
    /// The load takes longer than the request allows.
    ColdStart,
    /// The request waited longer than it allows.
    Deadline,
    /// The process, the device or the model is going away.
    Draining,
    /// The model could not be loaded.
    LoadFailed,
    /// The model keeps failing and is tried again later.
    BackingOff,
    /// The worker died while it worked on this request.
    WorkerCrashed,
    /// A move cannot be done, or was not finished.
    MoveFailed {
        /// Whether a worker of ours failed; otherwise the request met another move or found no room.
        by_worker: bool,
    },
    /// The lease store cannot be reached.
    LedgerAway,
    /// The lease store may have lost records, and their holders are waited for.
    LedgerRecovering,
    /// The scheduler broke a rule of its own.
    Internal,
    /// A rung failed after its request was dispatched.
    RungFailed {
        /// The error that the request got there.
        error: Box<ApiError>,
        /// Whether the cloud provider is at fault. A limit of ours concerns one request or client only.
        by_provider: bool,
    },
}

impl Refusal {
    /// A refusal for this reason, in these words.
    pub(crate) fn new(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), about: None, retry_after: None, still_on: None }
    }

    /// The failure of a rung whose request was sent on.
    pub fn of_rung(error: ApiError, by_provider: bool) -> Self {
        let (message, retry_after) = (error.message.clone(), error.retry_after);
        let reason = RefusalReason::RungFailed { error: Box::new(error), by_provider };
        Self { retry_after, ..Self::new(reason, message) }
    }

    /// The same refusal with the part of the request that was wrong.
    #[must_use]
    pub(crate) fn about(mut self, subject: Subject) -> Self {
        self.about = Some(subject);
        self
    }

    /// The same refusal with a time to try again.
    #[must_use]
    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// The same refusal with the device on which the model still serves.
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
