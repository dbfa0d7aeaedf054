//! An answer of ours in the shape of another API, whole or as it streams.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt, Limited};
use model_boss_dialects::Reshape;
use model_boss_protocol::ApiError;

use super::error::error_response;

/// A whole answer is text, and never this large.
const MAX_ANSWER: usize = 256 << 20;

/// The same answer, or error, through `reshape`; a stream becomes one of the type `stream`.
pub(super) async fn reshaped(
    answer: Result<Response, ApiError>,
    mut reshape: Box<dyn Reshape>,
    stream: &'static str,
) -> Response {
    let (mut head, body) = answer.unwrap_or_else(|error| error_response(&error)).into_parts();
    head.headers.remove(CONTENT_LENGTH);
    let is_stream =
        head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if is_stream {
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static(stream));
        return Response::from_parts(head, Body::new(Through { body, reshape: Some(reshape) }));
    }
    let whole = Limited::new(body, MAX_ANSWER).collect().await.map(http_body_util::Collected::to_bytes);
    let bytes = reshape.whole(head.status.as_u16(), &whole.unwrap_or_default());
    head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(head, Body::from(bytes))
}

/// A stream on its way through.
struct Through {
    body: Body,
    reshape: Option<Box<dyn Reshape>>,
}

impl http_body::Body for Through {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            let Some(mut reshape) = self.reshape.take() else { return Poll::Ready(None) };
            let frame = match http_body::Body::poll_frame(Pin::new(&mut self.body), cx) {
                Poll::Pending => {
                    self.reshape = Some(reshape);
                    return Poll::Pending;
                }
                Poll::Ready(frame) => frame,
            };
            let bytes = match frame {
                None => {
                    let last = reshape.end();
                    return Poll::Ready(Some(last).filter(|last| !last.is_empty()).map(|last| Ok(Frame::data(last))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => frame.into_data().map_or_else(|_| Bytes::new(), |data| reshape.piece(&data)),
            };
            self.reshape = Some(reshape);
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }
}
