//! Requests that the coordinator sends to itself: those of jobs and batches. The task that sends one learns of its
//! place in the queue, and may lower its priority, whichever route answers it.

use std::future::Future;
use std::sync::Arc;

use model_boss_protocol::{Priority, RequestId};
use tokio::sync::watch;
use tokio::task_local;

use super::verdict::Destination;
use crate::worker::Worker;

task_local! {
    /// The request for which this task works.
    static BACKGROUND: Arc<BackgroundRun>;
}

/// How far a request has come.
#[derive(Clone, Debug)]
pub(crate) enum RunStage {
    /// It is being read.
    Reading,
    /// It is in the queue, with this number.
    Queued(RequestId),
    /// A worker or provider answers it.
    Answering {
        /// The number of the request.
        request: RequestId,
        /// The model that answers.
        model: String,
        /// The worker; `None` for a cloud provider.
        worker: Option<Arc<Worker>>,
    },
}

/// A request that the coordinator sends to itself.
#[derive(Debug)]
pub(crate) struct BackgroundRun {
    stage: watch::Sender<RunStage>,
    /// The most important priority that it may have.
    ceiling: Option<Priority>,
}

impl BackgroundRun {
    /// A request that has not been sent. With a ceiling, it is never more important than that.
    pub(crate) fn new(ceiling: Option<Priority>) -> Arc<Self> {
        Arc::new(Self { stage: watch::Sender::new(RunStage::Reading), ceiling })
    }

    /// Runs a future whose requests are this one.
    pub(crate) fn scope<F: Future>(self: &Arc<Self>, work: F) -> impl Future<Output = F::Output> + use<F> {
        BACKGROUND.scope(Arc::clone(self), work)
    }

    /// The stages of the request.
    pub(crate) fn stages(&self) -> watch::Receiver<RunStage> {
        self.stage.subscribe()
    }

    /// The request for which the current task works, if it is one of these.
    pub(super) fn current() -> Option<Arc<Self>> {
        BACKGROUND.try_with(Arc::clone).ok()
    }

    /// The priority that the request has in place of the one that was asked for.
    pub(super) fn priority(&self, asked: Option<Priority>) -> Option<Priority> {
        match self.ceiling {
            Some(ceiling) => Some(asked.unwrap_or_default().max(ceiling)),
            None => asked,
        }
    }

    pub(super) fn queued(&self, request: RequestId) {
        self.stage.send_replace(RunStage::Queued(request));
    }

    pub(super) fn answering(&self, request: RequestId, place: &Destination) {
        let (model, worker) = (place.served(), place.worker().cloned());
        self.stage.send_replace(RunStage::Answering { request, model, worker });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn rc_26_only_the_task_of_a_job_is_its_request() {
        assert!(BackgroundRun::current().is_none());
        let run = BackgroundRun::new(Some(Priority::BATCH));
        let seen = run.scope(async { BackgroundRun::current().map(|run| run.priority(Some(Priority::HIGHEST))) }).await;
        assert_eq!(seen, Some(Some(Priority::BATCH)));
        assert_eq!(run.priority(Some(Priority::LOWEST)), Some(Priority::LOWEST));
        assert_eq!(run.priority(None), Some(Priority::BATCH));
        assert_eq!(BackgroundRun::new(None).priority(None), None);
    }
}
