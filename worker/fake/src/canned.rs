//! The body of an answer.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc;

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
