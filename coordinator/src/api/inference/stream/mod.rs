//! The body of a streamed answer: comments while the request is queued, then the worker's bytes as they arrive. The
//! bytes are not interpreted here.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use model_boss_core::RequestOutcome;
use model_boss_host::clocks::later;
use model_boss_http::error::{error_event, worker_error_event};
use model_boss_protocol::sse::{self, EVENT_END};
use model_boss_protocol::{ApiError, ErrorCode};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::api::inference::account::Account;
use crate::api::inference::annotate::Annotator;
use crate::api::inference::answer::{Answer, Content};
use crate::api::inference::answer_body::{AnswerBody, BodyError, TokensSoFar};
use crate::api::inference::endings::{broken_in_the_middle, deadline_exceeded};
use crate::api::inference::usage::{Tail, usage_in};
use crate::metrics::RequestUsage;
use crate::scheduling::{Destination, Ticket};

/// The last bytes of a stream after a complete event.
const AT_END: [u8; 2] = [EVENT_END[0], EVENT_END[1]];

/// The answer, once it begins, or the error in its place.
pub(crate) type Pending = Pin<Box<dyn Future<Output = Result<Answer, ApiError>> + Send>>;
/// The reason why a queued request waits, in words.
pub(crate) type Explanation = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// The times of comments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommentTimes {
    /// The wait for an answer after which the headers are sent, with the first comment.
    pub(super) first: Duration,
    /// The longest silence after that.
    pub(super) interval: Duration,
}

/// A streamed answer as an HTTP body.
pub(crate) struct StreamBody {
    state: AnswerState,
    silence: SentSilence,
    deadline: Option<Pin<Box<Sleep>>>,
}

// A body holds one state in a box of its own, and most are in the largest state, so boxing that one saves nothing.
#[allow(clippy::large_enum_variant)]
enum AnswerState {
    Waiting { pending: Pending, explain: Box<dyn Fn() -> Explanation + Send>, explanation: Option<Explanation> },
    Relaying(Relay),
    Ended,
}

/// Whether the headers of an answer named the model that serves it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Headers {
    /// The headers named the model.
    Named,
    /// The headers were sent before the model was known.
    Sent,
}

/// Measures the time since the last byte was sent.
struct SentSilence {
    interval: Duration,
    last: Instant,
    timer: Pin<Box<Sleep>>,
}

/// A worker's answer that is being passed on.
struct Relay {
    first: Option<Bytes>,
    rest: AnswerBody,
    /// The worker or provider that the answer comes from, until it fails.
    place: Option<Destination>,
    /// The search for the reason of the failure.
    broken: Option<Pin<Box<dyn Future<Output = ApiError> + Send>>>,
    /// The ticket of the request. If it is dropped before the end, it reports that the client disconnected.
    ticket: Ticket,
    account: Account,
    /// The status to count when the stream ends by itself: until then the client may still disconnect.
    status: u16,
    tail: Tail,
    /// Adds facts to the stream that its headers could not have.
    annotator: Option<Annotator>,
    /// The last two bytes sent. A comment is allowed only between two events.
    ending: [u8; 2],
}

impl StreamBody {
    /// The body of an answer that has not begun. The first comment is sent at once.
    pub(crate) fn waiting(
        pending: Pending,
        explain: impl Fn() -> Explanation + Send + 'static,
        times: CommentTimes,
    ) -> Self {
        let explanation = Some(explain());
        let state = AnswerState::Waiting { pending, explain: Box::new(explain), explanation };
        Self { state, silence: SentSilence::new(times.interval), deadline: None }
    }

    /// The body of an answer that has begun.
    pub(crate) fn begun(answer: Answer, times: CommentTimes) -> Self {
        let deadline = answer.deadline.map(|at| Box::pin(sleep_until(at)));
        Self { state: AnswerState::begin(answer, Headers::Named), silence: SentSilence::new(times.interval), deadline }
    }
}

impl AnswerState {
    fn begin(answer: Answer, headers: Headers) -> Self {
        let Answer { ticket, mut account, content, status, served, thinking, place, .. } = answer;
        let annotator = (headers == Headers::Sent).then(|| Annotator::new(&served, thinking));
        match content {
            Content::Stream { first, rest } => {
                account.first_byte();
                Self::Relaying(Relay {
                    first: Some(first),
                    rest,
                    place: Some(place),
                    broken: None,
                    ticket,
                    account,
                    status: status.as_u16(),
                    tail: Tail::default(),
                    annotator,
                    ending: AT_END,
                })
            }
            // Sound has a body of its own; it is never waited for behind comments.
            Content::Whole(_) | Content::Sound { .. } => {
                account.status(status.as_u16());
                ticket.finish(RequestOutcome::Answered, None);
                Self::Ended
            }
        }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let bytes = ready!(this.poll_bytes(cx));
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.state, AnswerState::Ended)
    }
}

impl StreamBody {
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match &mut self.state {
            AnswerState::Ended => Poll::Ready(None),
            AnswerState::Waiting { pending, explain, explanation } => {
                if let Poll::Ready(answer) = pending.as_mut().poll(cx) {
                    self.deadline =
                        answer.as_ref().ok().and_then(|answer| answer.deadline).map(|at| Box::pin(sleep_until(at)));
                    let (next, bytes) = first_bytes(answer);
                    self.state = next;
                    self.silence.sent();
                    return match bytes {
                        Some(bytes) => Poll::Ready(Some(bytes)),
                        None => self.poll_bytes(cx),
                    };
                }
                if explanation.is_none() {
                    ready!(self.silence.poll(cx));
                    *explanation = Some(explain());
                }
                let words = match explanation {
                    Some(words) => ready!(words.as_mut().poll(cx)),
                    None => None,
                };
                *explanation = None;
                self.silence.sent();
                Poll::Ready(Some(comment(words.as_deref().unwrap_or("working"))))
            }
            AnswerState::Relaying(relay) => match relay.poll_next(cx) {
                Poll::Ready(FrameStep::Bytes(bytes)) => {
                    self.silence.sent();
                    Poll::Ready(Some(bytes))
                }
                Poll::Ready(FrameStep::End) => {
                    self.end(RequestOutcome::Answered);
                    Poll::Ready(None)
                }
                Poll::Ready(FrameStep::Lost(outcome, error)) => {
                    let event = relay.error_event(&error);
                    relay.account.failed(&error);
                    self.end_with(outcome, error.status());
                    Poll::Ready(Some(event))
                }
                Poll::Pending => {
                    if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
                        // The end of the relay closes the connection to the worker, which stops the generation.
                        let event = relay.error_event(&deadline_exceeded());
                        relay.account.failed(&deadline_exceeded());
                        self.end_with(RequestOutcome::DeadlineExceeded, ErrorCode::DeadlineExceeded.status());
                        return Poll::Ready(Some(event));
                    }
                    loop {
                        ready!(self.silence.poll(cx));
                        self.silence.sent();
                        if relay.ending == AT_END {
                            return Poll::Ready(Some(comment("working")));
                        }
                    }
                }
            },
        }
    }

    /// Records the end of a stream whose client is still connected.
    fn end(&mut self, outcome: RequestOutcome) {
        if let AnswerState::Relaying(relay) = &self.state {
            let status = relay.status;
            self.end_with(outcome, status);
        }
    }

    /// Records the end with another status than that of its head.
    fn end_with(&mut self, outcome: RequestOutcome, status: u16) {
        if let AnswerState::Relaying(mut relay) = std::mem::replace(&mut self.state, AnswerState::Ended) {
            relay.account.used(relay.usage());
            relay.account.status(status);
            relay.ticket.finish(outcome, relay.account.tokens());
        }
    }
}

impl Drop for StreamBody {
    /// Records a client that disconnected midway, with the usage known by then.
    fn drop(&mut self) {
        if let AnswerState::Relaying(mut relay) = std::mem::replace(&mut self.state, AnswerState::Ended)
            && let Some(usage) = relay.counted_apart()
        {
            relay.account.used(Some(usage));
            relay.ticket.finish(RequestOutcome::ClientGone, relay.account.tokens());
        }
    }
}

enum FrameStep {
    Bytes(Bytes),
    End,
    /// The answer cannot continue, with the reason.
    Lost(RequestOutcome, ApiError),
}

impl Relay {
    /// The next step, unless an order ends the request. The end of the relay closes the connection to the worker.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<FrameStep> {
        match self.ticket.poll_recalled(cx) {
            Poll::Ready(error) => Poll::Ready(FrameStep::Lost(RequestOutcome::Cancelled, error)),
            Poll::Pending => self.poll_bytes(cx),
        }
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<FrameStep> {
        loop {
            if let Some(broken) = &mut self.broken {
                return Poll::Ready(FrameStep::Lost(RequestOutcome::LostMidAnswer, ready!(broken.as_mut().poll(cx))));
            }
            let data = match self.first.take() {
                Some(first) => first,
                None => match ready!(Pin::new(&mut self.rest).poll_frame(cx)) {
                    None => {
                        let rest = self.annotator.take().and_then(|mut annotator| annotator.rest());
                        return Poll::Ready(rest.map_or(FrameStep::End, |rest| FrameStep::Bytes(self.note(rest))));
                    }
                    Some(Err(error)) => {
                        tracing::info!(request = %self.ticket.request(), %error, "an answer ends in the middle");
                        match error {
                            BodyError::Unusable(_) | BodyError::Memory(_) | BodyError::Panicked(_) => {
                                return Poll::Ready(FrameStep::Lost(RequestOutcome::Answered, error.into_error()));
                            }
                            BodyError::Broken(_) => {
                                let why = self.place.take().map(broken_in_the_middle);
                                self.broken = why.map(|why| Box::pin(why) as _);
                                continue;
                            }
                        }
                    }
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) if !data.is_empty() => data,
                        _ => continue,
                    },
                },
            };
            let whole = match &mut self.annotator {
                Some(annotator) => annotator.push(&data),
                None => Some(data),
            };
            if let Some(data) = whole {
                return Poll::Ready(FrameStep::Bytes(self.note(data)));
            }
        }
    }

    /// An error as the last event. It begins on a new line, since an incomplete line would swallow it.
    fn error_event(&self, error: &ApiError) -> Bytes {
        let gap: &[u8] = if self.ending == AT_END { b"" } else { EVENT_END };
        Bytes::from([gap, &error_event(error)].concat())
    }

    /// The usage, if the answer states it.
    fn usage(&self) -> Option<RequestUsage> {
        let tail = if self.rest.is_counted() { None } else { self.tail.usage() };
        tail.or_else(|| self.counted_apart())
    }

    /// The usage by the translation, which the client may not see.
    fn counted_apart(&self) -> Option<RequestUsage> {
        let TokensSoFar { prompt, answer, cached } = self.rest.tokens()?;
        let (prompt_tokens, completion_tokens, cached_tokens) = (prompt, answer, cached);
        Some(RequestUsage { prompt_tokens, completion_tokens, cached_tokens, ..RequestUsage::default() })
    }

    fn note(&mut self, data: Bytes) -> Bytes {
        match data[..] {
            [.., before, last] => self.ending = [before, last],
            [only] => self.ending = [self.ending[1], only],
            [] => {}
        }
        self.tail.push(data.clone());
        self.account.piece();
        data
    }
}

impl SentSilence {
    fn new(interval: Duration) -> Self {
        let last = Instant::now();
        Self { interval, last, timer: Box::pin(sleep_until(later(last, interval))) }
    }

    fn sent(&mut self) {
        // The timer is moved when it fires, not with each frame.
        self.last = Instant::now();
    }

    /// The future is ready when no byte was sent for the interval.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let due = later(self.last, self.interval);
            self.timer.as_mut().reset(due.max(Instant::now()));
            if due <= Instant::now() {
                return Poll::Ready(());
            }
        }
    }
}

/// The first bytes of an answer that begins after comments have been sent: its status can no longer be sent, only its
/// content.
fn first_bytes(answer: Result<Answer, ApiError>) -> (AnswerState, Option<Bytes>) {
    match answer {
        Err(error) => (AnswerState::Ended, Some(error_event(&error))),
        Ok(mut answer) if !answer.status.is_success() => {
            let body = match &answer.content {
                Content::Whole(body) | Content::Stream { first: body, .. } | Content::Sound { first: body, .. } => body,
            };
            let event = worker_error_event(answer.status, body);
            answer.account.status(answer.status.as_u16());
            answer.ticket.finish(RequestOutcome::Answered, None);
            (AnswerState::Ended, Some(event))
        }
        Ok(mut answer) => {
            let whole = match &answer.content {
                Content::Whole(body) => Some(body.clone()),
                Content::Stream { .. } | Content::Sound { .. } => None,
            };
            if let Some(body) = &whole {
                answer.account.used(usage_in(body));
            }
            (AnswerState::begin(answer, Headers::Sent), whole.filter(|body| !body.is_empty()))
        }
    }
}

fn comment(words: &str) -> Bytes {
    // A line break would end the comment.
    Bytes::from(sse::comment(&words.replace(['\r', '\n'], " ")))
}

#[cfg(test)]
mod tests;
