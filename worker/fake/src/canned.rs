//! Answers of the fake worker, whole or frame by frame.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body::Frame;
use model_boss_protocol::{ApiError, ErrorSource};
use tokio::sync::mpsc;

/// An answer.
pub(crate) type CannedAnswer = Response<CannedBody>;

/// An error as an answer.
pub(crate) fn refuse(error: &ApiError) -> CannedAnswer {
    let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    whole(status, error.body(ErrorSource::Worker).to_json().into())
}

/// A whole answer in JSON.
pub(crate) fn whole(status: StatusCode, body: Bytes) -> CannedAnswer {
    let mut answer = Response::new(CannedBody::Whole(Some(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    answer
}

/// An answer of server-sent events.
pub(crate) fn events(frames: mpsc::Receiver<Bytes>) -> CannedAnswer {
    let mut answer = Response::new(CannedBody::Frames(frames));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, http::HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", http::HeaderValue::from_static("no"));
    answer
}

/// An answer's body, sent at once or frame by frame.
pub(crate) enum CannedBody {
    Whole(Option<Bytes>),
    Frames(mpsc::Receiver<Bytes>),
}

impl http_body::Body for CannedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(body) => Poll::Ready(body.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Frames(frames) => frames.poll_recv(context).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Whole(body) => http_body::SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64),
            Self::Frames(_) => http_body::SizeHint::default(),
        }
    }
}
