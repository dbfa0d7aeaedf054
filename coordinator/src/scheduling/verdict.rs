//! The verdict on a request: the place that it is sent to, or the reason of its refusal.

use std::sync::Arc;
use std::time::Duration;

use model_boss_core::{Refusal, RungChoice};
use model_boss_protocol::Priority;
use tokio::sync::oneshot;

use crate::worker::Worker;

/// The right to send a request to a worker or a provider now.
#[derive(Clone, Debug)]
pub(crate) struct Dispatched {
    /// The worker or provider that is to answer.
    pub(crate) place: Destination,
    /// The rung of the request's ladder, and the reason for it.
    pub(crate) rung: RungChoice,
    /// The time that the request waited in the queue.
    pub(crate) queued: Duration,
    /// The part of that time that was a load.
    pub(crate) loading: Duration,
}

/// The place to which a request is sent.
#[derive(Clone, Debug)]
pub(crate) enum Destination {
    /// A worker of this coordinator.
    Worker {
        worker: Arc<Worker>,
        /// The priority of the request, after the limits of its client.
        priority: Priority,
    },
    /// A cloud provider.
    Cloud {
        /// The provider's prefix.
        provider: String,
        /// The provider's model.
        model: String,
    },
}

impl Destination {
    /// The worker, unless a cloud provider is to answer.
    pub(crate) fn worker(&self) -> Option<&Arc<Worker>> {
        match self {
            Self::Worker { worker, .. } => Some(worker),
            Self::Cloud { .. } => None,
        }
    }

    /// The name of the model that serves the request, for messages and headers.
    pub(crate) fn served(&self) -> String {
        match self {
            Self::Worker { worker, .. } => worker.model.to_string(),
            Self::Cloud { provider, model } => format!("{provider}:{model}"),
        }
    }
}

/// The receiver of an order that ends a dispatched request.
pub(crate) type Recall = oneshot::Receiver<Refusal>;

#[derive(Debug)]
pub(crate) enum Ruling {
    Dispatched(Dispatched, Recall),
    Refused(Refusal),
    Done,
}
