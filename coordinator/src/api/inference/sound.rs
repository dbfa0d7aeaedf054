//! The body of an answer that is sound: a worker's bytes as they arrive. Nothing can be said between them, so a sound
//! that cannot go on ends with its connection.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use model_boss_core::RequestOutcome;
use model_boss_protocol::{ApiError, ErrorCode};
use tokio::time::{Sleep, sleep_until};

use super::account::Account;
use super::answer::{Answer, Content};
use super::answer_body::{AnswerBody, BodyError};
use super::endings::deadline_exceeded;
use crate::scheduling::Ticket;

/// Sound as an HTTP body. If it is dropped before its end, the connection to the worker is closed, which stops the
/// work.
pub(crate) struct SoundBody {
    /// None behind the end.
    relay: Option<SoundRelay>,
    /// Why it was cut, until that was said.
    failed: Option<SoundCut>,
}

struct SoundRelay {
    first: Option<Bytes>,
    rest: AnswerBody,
    /// The ticket of the request. If it is dropped before the end, it reports that the client disconnected.
    ticket: Ticket,
    account: Account,
    status: u16,
    deadline: Option<Pin<Box<Sleep>>>,
}

/// The sound cannot go on. The server closes the connection, by which the client sees that the end is missing.
#[derive(Debug, thiserror::Error)]
#[error("the sound was cut: {0}")]
pub(crate) struct SoundCut(ApiError);

impl SoundBody {
    /// The body of an answer that has begun; empty for one that is no sound.
    pub(crate) fn begun(answer: Answer) -> Self {
        let Answer { ticket, mut account, content, status, deadline, .. } = answer;
        let Content::Sound { first, rest, .. } = content else { return Self { relay: None, failed: None } };
        account.first_byte();
        let deadline = deadline.map(|at| Box::pin(sleep_until(at)));
        let relay = SoundRelay { first: Some(first), rest, ticket, account, status: status.as_u16(), deadline };
        Self { relay: Some(relay), failed: None }
    }

    /// Records the end with its outcome and status.
    fn end(&mut self, outcome: RequestOutcome, status: Option<u16>) {
        if let Some(mut relay) = self.relay.take() {
            relay.account.status(status.unwrap_or(relay.status));
            relay.ticket.finish(outcome, relay.account.tokens());
        }
    }

    /// Ends in the middle. Sound that was given has to leave before its connection closes, so the error is for the next
    /// time.
    fn cut(
        &mut self,
        cx: &Context<'_>,
        outcome: RequestOutcome,
        error: ApiError,
    ) -> Poll<Option<Result<Frame<Bytes>, SoundCut>>> {
        if let Some(relay) = &mut self.relay {
            tracing::info!(request = %relay.ticket.request(), %error, "sound ends in the middle");
            relay.account.failed(&error);
        }
        self.end(outcome, Some(error.status()));
        self.failed = Some(SoundCut(error));
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Body for SoundBody {
    type Data = Bytes;
    type Error = SoundCut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, SoundCut>>> {
        let this = self.get_mut();
        loop {
            let Some(relay) = &mut this.relay else { return Poll::Ready(this.failed.take().map(Err)) };
            if let Poll::Ready(error) = relay.ticket.poll_recalled(cx) {
                return this.cut(cx, RequestOutcome::Cancelled, error);
            }
            if let Some(first) = relay.first.take() {
                relay.account.piece();
                return Poll::Ready(Some(Ok(Frame::data(first))));
            }
            if relay.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
                return this.cut(cx, RequestOutcome::DeadlineExceeded, deadline_exceeded());
            }
            match ready!(Pin::new(&mut relay.rest).poll_frame(cx)) {
                None => {
                    this.end(RequestOutcome::Answered, None);
                    return Poll::Ready(None);
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        relay.account.piece();
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
                Some(Err(error)) => {
                    let error = match error {
                        BodyError::Broken(error) => ApiError::new(
                            ErrorCode::BackendError,
                            format!("the connection to its worker broke in the middle of the sound: {error}"),
                        ),
                        error => error.into_error(),
                    };
                    return this.cut(cx, RequestOutcome::LostMidAnswer, error);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.relay.is_none() && self.failed.is_none()
    }
}
