//! Translates an answer in OpenAI's shape into the shape of another API, whole or as it streams.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt;
use model_boss_config::JsonLimits;
use model_boss_dialects::{Reshape, nonsense};
use model_boss_http::json::{self, JsonError};
use model_boss_http::memory::{Admission, HeldMemory, MemoryError};
use model_boss_http::offload::offload;
use model_boss_protocol::ApiError;

use super::answer_body::BodyError;
use crate::api::context::Context as ApiContext;
use crate::refusals::of_dialect;

/// Marks a whole answer, among its extensions, that has the shape of its client's API already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedShape;

/// Translates an answer by `reshape`; a stream gets the content type `stream`.
pub(crate) async fn reshaped(
    context: &ApiContext,
    answer: Response,
    reshape: Box<dyn Reshape>,
    stream: &'static str,
) -> Result<Response, ApiError> {
    let (mut head, body) = answer.into_parts();
    head.headers.remove(CONTENT_LENGTH);
    let is_stream =
        head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if is_stream {
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static(stream));
        return Ok(Response::from_parts(head, Body::new(Through { body, reshape: Some(reshape) })));
    }
    if head.extensions.remove::<PassedShape>().is_some() {
        return Ok(Response::from_parts(head, body));
    }
    // The answer was collected before, within the memory budget.
    let whole = body.collect().await.map_err(|error| of_dialect(nonsense(error)))?.to_bytes();
    let whole = reshape_whole(reshape, head.status, whole, context.memory.holder(), context.limits.json()).await;
    let whole = whole.map_err(BodyError::into_error)?;
    head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(Response::from_parts(head, Body::from(whole)))
}

/// Translates a whole answer, off the thread that serves sockets when it is large.
pub(crate) async fn reshape_whole(
    mut reshape: Box<dyn Reshape>,
    status: StatusCode,
    answer: Bytes,
    mut memory: HeldMemory,
    limits: JsonLimits,
) -> Result<Bytes, BodyError> {
    let size = answer.len();
    let reshape = move || {
        let room = if reshape.is_document() {
            json::make_room(&answer, limits, &mut memory, Admission::Accepted)
        } else {
            memory.grow(answer.len(), Admission::Accepted).map_err(JsonError::from)
        };
        room.map_err(|error| match error {
            JsonError::Memory(busy @ MemoryError::Busy) => BodyError::Memory(busy),
            // The answer itself is too large or too deep.
            never => BodyError::Unusable(nonsense(never)),
        })?;
        Ok(memory.keep(reshape.whole(status.as_u16(), &answer)?))
    };
    offload(size, reshape).await
}

/// A stream that is being translated.
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
