//! The answer to a request for a place: where it is sent, or why not.

use std::sync::Arc;
use std::time::Duration;

use model_boss_core::{Refusal, RungChoice};
use model_boss_protocol::Priority;

use crate::worker::Worker;

/// The right to send a request on now.
#[derive(Clone, Debug)]
pub(crate) struct Dispatched {
    /// Where to.
    pub(crate) place: Place,
    /// Which rung of its ladder that is, and why.
    pub(crate) rung: RungChoice,
    /// How long the request waited in the queue.
    pub(crate) queued: Duration,
    /// How much of that was a load.
    pub(crate) loading: Duration,
}

/// Where a request is sent.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// To a worker of ours.
    Worker {
        /// Which.
        worker: Arc<Worker>,
        /// How important the request is, after the limits of its client.
        priority: Priority,
    },
    /// To a provider elsewhere.
    Cloud {
        /// Which one.
        provider: String,
        /// Which of its models.
        model: String,
    },
}

impl Place {
    /// The name of what serves the request, for people and headers.
    pub(crate) fn served(&self) -> String {
        match self {
            Self::Worker { worker, .. } => worker.model.to_string(),
            Self::Cloud { provider, model } => format!("{provider}:{model}"),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Verdict {
    Dispatched(Dispatched),
    Refused(Refusal),
    Done,
}
