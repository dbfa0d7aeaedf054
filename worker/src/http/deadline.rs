//! The deadline of a request, as the coordinator passes it on (RC-13): an answer after it is worth no further step.
//! The work ends when its waiting future is dropped; the work itself is not known here.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use model_boss_protocol::sse::event;
use model_boss_protocol::{ApiError, ErrorCode, ErrorSource, headers};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use super::error::ErrorAnswer;

/// Answers within the request's time, or reports that it is over: by status before the answer began, else in its
/// stream.
pub(super) async fn within(request: Request, next: Next) -> Response {
    let Some(deadline) = deadline(request.headers()) else { return next.run(request).await };
    let Ok(response) = timeout_at(deadline, next.run(request)).await else {
        return ErrorAnswer(exceeded()).into_response();
    };
    if response.headers().get(CONTENT_TYPE).is_none_or(|kind| kind != "text/event-stream") {
        return response;
    }
    response.map(|body| Body::new(TimedStream { body: Some(body), end: Box::pin(sleep_until(deadline)) }))
}

/// The moment of the deadline; `None` without the header, or with one that is no number.
fn deadline(headers: &HeaderMap) -> Option<Instant> {
    let left = headers.get(headers::DEADLINE_MS)?.to_str().ok()?.parse().ok()?;
    Instant::now().checked_add(Duration::from_millis(left))
}

fn exceeded() -> ApiError {
    ApiError::new(ErrorCode::DeadlineExceeded, "the request's time was over before its answer was complete")
}

/// A stream that ends with an error when its time is over. The body inside is dropped then, which cancels its work.
struct TimedStream {
    body: Option<Body>,
    end: Pin<Box<Sleep>>,
}

impl http_body::Body for TimedStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.body.is_none() {
            return Poll::Ready(None);
        }
        // The deadline is checked first: a stream may have data to send at every moment.
        if self.end.as_mut().poll(cx).is_pending() {
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            // The streams of this worker do not fail: an error there is an end.
            let frame = ready!(Pin::new(body).poll_frame(cx));
            return Poll::Ready(frame.and_then(Result::ok).map(Ok));
        }
        self.body = None;
        let told = event(exceeded().body(ErrorSource::Worker).to_json());
        Poll::Ready(Some(Ok(Frame::data(told.into()))))
    }
}
