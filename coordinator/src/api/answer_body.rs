//! The bytes of an answer, wherever they come from, on their way into the shape that the client asked for.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use model_boss_dialects::Reshape;

use crate::cloud::CloudBody;
use crate::upstream::UpstreamBody;

/// An answer's body. Dropped before its end, it closes the connection that it comes from.
pub(super) struct AnswerBody {
    from: Origin,
    /// What the bytes go through, until their end.
    reshape: Option<Box<dyn Reshape>>,
    /// Of prompt and answer, as what reshaped them knew at the end.
    tokens: Option<(u64, u64)>,
}

/// Where bytes come from.
enum Origin {
    Worker(UpstreamBody),
    Cloud(CloudBody),
}

impl AnswerBody {
    /// The bytes as they come, or through `reshape`.
    pub(super) fn new(from: UpstreamBody, reshape: Option<Box<dyn Reshape>>) -> Self {
        Self { from: Origin::Worker(from), reshape, tokens: None }
    }

    /// The bytes of a provider.
    pub(super) fn of_cloud(from: CloudBody, reshape: Option<Box<dyn Reshape>>) -> Self {
        Self { from: Origin::Cloud(from), reshape, tokens: None }
    }

    /// Tokens of prompt and answer, where they are told apart from the bytes that are passed on.
    pub(super) fn tokens(&self) -> Option<(u64, u64)> {
        self.reshape.as_ref().map_or(self.tokens, |reshape| reshape.tokens())
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            let frame = ready!(match &mut self.from {
                Origin::Worker(body) => Pin::new(body).poll_frame(cx),
                Origin::Cloud(CloudBody::Http(body)) => Pin::new(body).poll_frame(cx),
                Origin::Cloud(CloudBody::Command(pieces)) => {
                    pieces.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
                }
                Origin::Cloud(CloudBody::Whole(all)) => Poll::Ready(all.take().map(|all| Ok(Frame::data(all)))),
            });
            let Some(reshape) = &mut self.reshape else { return Poll::Ready(frame) };
            let bytes = match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => reshape.piece(&data),
                    Err(_) => continue,
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    let last = reshape.end();
                    self.tokens = reshape.tokens();
                    self.reshape = None;
                    return Poll::Ready(Some(last).filter(|last| !last.is_empty()).map(|last| Ok(Frame::data(last))));
                }
            };
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }
}
