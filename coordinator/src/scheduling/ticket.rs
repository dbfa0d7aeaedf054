//! The ticket of a request: its place in the queue, then its right to use a worker.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use model_boss_core::{Event, Input, RequestOutcome, WaitReason};
use model_boss_protocol::{ApiError, ErrorCode, RequestId};
use tokio::sync::oneshot;

use crate::refusals::{api_error, of_rung};
use crate::scheduling::{BackgroundRun, Dispatched, DriverInput, News, Recall, Ruling};

/// A place in the queue, then the right to use a worker. Dropping it before the end reports that the client
/// disconnected.
#[derive(Debug)]
pub(crate) struct Ticket {
    hold: QueuedRequest,
    /// The verdict moves with the ticket: an unread one is dropped with it.
    verdict: oneshot::Receiver<Ruling>,
    /// The order to end the request, which may come while it is dispatched.
    recall: Option<Recall>,
    /// The job or the batch that sent the request.
    run: Option<Arc<BackgroundRun>>,
}

/// The one owner of a request in the scheduler, from before it is submitted until its end is reported. Dropping it
/// earlier reports that the client disconnected. That report ends the request at every stage, so the owner need not
/// know the stage.
#[derive(Debug)]
struct QueuedRequest {
    request: RequestId,
    news: News,
    ended: bool,
}

impl QueuedRequest {
    /// Sends a request or order that is answered with a verdict.
    pub(super) fn ask(&self, input: Input) -> oneshot::Receiver<Ruling> {
        let (reply, verdict) = oneshot::channel();
        self.news.send(DriverInput::Ask { request: self.request, reply, input });
        verdict
    }

    /// Records that the scheduler ended the request itself.
    fn ended(&mut self) {
        self.ended = true;
    }

    /// Reports how the request ended.
    fn end(&mut self, outcome: RequestOutcome, tokens: Option<u64>) {
        if !self.ended {
            self.ended = true;
            self.news.event(Event::Finished { request: self.request, outcome, tokens });
        }
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        if !self.ended {
            self.news.event(Event::Cancel(self.request));
        }
    }
}

impl Ticket {
    /// Sends a request or order, and returns its ticket.
    pub(super) fn ask(request: RequestId, news: News, input: Input) -> Self {
        let hold = QueuedRequest { request, news, ended: false };
        let verdict = hold.ask(input);
        Self { hold, verdict, recall: None, run: None }
    }

    /// The same ticket, of a request that the coordinator sends to itself.
    pub(super) fn of_run(mut self, run: Option<Arc<BackgroundRun>>) -> Self {
        if let Some(run) = &run {
            run.queued(self.request());
        }
        self.run = run;
        self
    }

    /// The number of the request.
    pub(crate) fn request(&self) -> RequestId {
        self.hold.request
    }

    /// The reason why the request waits, asked of the scheduler; `None` when it does not wait.
    pub(crate) fn why(&self) -> impl Future<Output = Option<WaitReason>> + Send + use<> {
        let (reply, seen) = oneshot::channel();
        let request = self.hold.request;
        self.hold.news.look(move |scheduler| {
            // An error means that the request has left the queue.
            let _ = reply.send(scheduler.why(request));
        });
        async move { seen.await.ok().flatten() }
    }

    /// Waits until a worker is free for this request, or for the refusal.
    pub(crate) async fn dispatched(&mut self) -> Result<Dispatched, ApiError> {
        let dispatched = self.verdict().await?;
        dispatched.ok_or_else(|| ApiError::new(ErrorCode::Internal, "the scheduler answered another question"))
    }

    /// Waits for an order to end the dispatched request; without one, for ever. The error is the final answer.
    pub(crate) async fn recalled(&mut self) -> ApiError {
        poll_fn(|cx| self.poll_recalled(cx)).await
    }

    /// Polls for an order to end the dispatched request.
    pub(crate) fn poll_recalled(&mut self, cx: &mut Context<'_>) -> Poll<ApiError> {
        let Some(recall) = &mut self.recall else { return Poll::Pending };
        let ordered = ready!(Pin::new(recall).poll(cx));
        self.recall = None;
        ordered.map_or(Poll::Pending, |refusal| Poll::Ready(api_error(refusal)))
    }

    /// Waits until an operator's order is done.
    pub(crate) async fn done(mut self) -> Result<(), ApiError> {
        self.verdict().await.map(|_| ())
    }

    /// Reports that the worker was lost before any byte of its answer was sent on: the request returns to the queue.
    pub(crate) fn lost(&mut self) {
        let request = self.hold.request;
        if let Some(run) = &self.run {
            run.queued(request);
        }
        let lost = Event::Finished { request, outcome: RequestOutcome::LostBeforeAnswer, tokens: None };
        self.verdict = self.hold.ask(lost.into());
    }

    /// Reports that the rung cannot answer the request, and no byte was sent on. The request continues with the next
    /// rung, or ends with this error.
    pub(crate) fn rung_failed(&mut self, error: ApiError) {
        if let Some(run) = &self.run {
            run.queued(self.hold.request);
        }
        self.verdict = self.hold.ask(Event::RungFailed { request: self.hold.request, error: of_rung(error) }.into());
    }

    /// Reports the end of the request, with its tokens of prompt and answer, if they were counted.
    pub(crate) fn finish(mut self, outcome: RequestOutcome, tokens: Option<u64>) {
        self.hold.end(outcome, tokens);
    }

    /// Reports the end of the request with this error, unless it ended before.
    pub(crate) fn failed(mut self, error: &ApiError) {
        let outcome = match error.code {
            ErrorCode::DeadlineExceeded => RequestOutcome::DeadlineExceeded,
            ErrorCode::RequestCancelled => RequestOutcome::Cancelled,
            _ => RequestOutcome::Refused,
        };
        self.hold.end(outcome, None);
    }

    /// Waits for the verdict; `None` means that an order is done.
    async fn verdict(&mut self) -> Result<Option<Dispatched>, ApiError> {
        let verdict = (&mut self.verdict).await;
        match verdict {
            Ok(Ruling::Dispatched(dispatched, recall)) => {
                self.recall = Some(recall);
                if let Some(run) = &self.run {
                    run.answering(self.hold.request, &dispatched.place);
                }
                Ok(Some(dispatched))
            }
            Ok(Ruling::Done) => {
                self.hold.ended();
                Ok(None)
            }
            Ok(Ruling::Refused(refusal)) => {
                self.hold.ended();
                Err(api_error(refusal))
            }
            Err(_) => Err(ApiError::new(ErrorCode::Draining, "the coordinator is shutting down")),
        }
    }
}
