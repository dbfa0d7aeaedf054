//! The bytes of an answer, from a worker or a provider, translated into the shape that the client expects.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use memchr::{memchr3_iter, memmem};
use model_boss_cloud::CloudBody;
use model_boss_dialects::{AnswerKind, BadStream, DialectError, Reshape, StreamCheck, nonsense};
use model_boss_http::memory::{Admission, HeldMemory, MemoryError};
use model_boss_http::offload::WorkPanicked;
use model_boss_http::upstream::UpstreamBody;
use model_boss_protocol::sse::{EVENT_END, event};
use model_boss_protocol::{ApiError, ErrorSource};

use crate::refusals::of_dialect;

/// The most values in an event of several frames: each may take hundreds of bytes where an event is translated.
const MAX_VALUES: usize = 20_000;
/// The size up to which an unfinished event needs no memory budget, in bytes.
const SHORT_EVENT: usize = 64 << 10;
/// The number of copies of an unfinished event: in translations, in the check, and in the annotator.
const KEEPERS: usize = 4;

/// An answer's body. If it is dropped before its end, its connection is closed.
pub(crate) struct AnswerBody {
    from: AnswerSource,
    stream: Option<Box<StreamSteps>>,
}

/// The steps that the bytes of a stream pass through.
struct StreamSteps {
    /// The origin, for errors that the translation reports.
    source: ErrorSource,
    /// The translation, until its end.
    reshape: Option<Box<dyn Reshape>>,
    check: StreamCheck,
    event: OpenEvent,
    memory: HeldMemory,
    /// Why the stream ends after its last bytes.
    failed: Option<BodyError>,
    /// Whether reading has ended.
    over: bool,
    /// Tokens as the translation counted them at the end.
    tokens: Option<TokensSoFar>,
    /// Whether the translation counts better than the bytes that are passed on.
    is_counted: bool,
}

/// Tokens as a translation counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokensSoFar {
    pub(crate) prompt: u64,
    pub(crate) answer: u64,
    /// Tokens of the prompt from a cache, where they are known.
    pub(crate) cached: Option<u64>,
}

impl TokensSoFar {
    fn of(reshape: &dyn Reshape) -> Option<Self> {
        let (prompt, answer) = reshape.tokens()?;
        Some(Self { prompt, answer, cached: reshape.cached_tokens() })
    }
}

/// The source of the bytes.
pub(crate) enum AnswerSource {
    /// A worker of this machine.
    Worker(UpstreamBody),
    /// A cloud provider.
    Cloud(CloudBody),
}

/// Why an answer does not continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The connection broke.
    #[error("the connection broke in its answer")]
    Broken(#[source] hyper::Error),
    /// The bytes are no valid answer.
    #[error(transparent)]
    Unusable(#[from] DialectError),
    /// The bytes need more memory than is free.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The translation panicked.
    #[error(transparent)]
    Panicked(#[from] WorkPanicked),
}

impl BodyError {
    /// The error that a client gets.
    pub(crate) fn into_error(self) -> ApiError {
        match self {
            Self::Broken(error) => of_dialect(nonsense(error)),
            Self::Unusable(error) => of_dialect(error),
            Self::Memory(error) => error.into(),
            Self::Panicked(error) => error.into(),
        }
    }
}

impl AnswerBody {
    /// A body whose bytes pass unchanged.
    pub(crate) const fn whole(from: AnswerSource) -> Self {
        Self { from, stream: None }
    }

    /// The events of a stream, unchanged or translated by `reshape`. Bytes that are no event stream end in an error.
    pub(crate) fn stream(
        from: AnswerSource,
        kind: AnswerKind,
        reshape: Option<Box<dyn Reshape>>,
        memory: HeldMemory,
    ) -> Self {
        let (check, event) = (StreamCheck::of(kind), OpenEvent::of(kind));
        let source = match &from {
            AnswerSource::Worker(_) => ErrorSource::Worker,
            AnswerSource::Cloud(_) => ErrorSource::Cloud,
        };
        let is_counted = kind == AnswerKind::Messages;
        let (failed, over, tokens) = (None, false, None);
        let stream = StreamSteps { source, reshape, check, event, memory, failed, over, tokens, is_counted };
        Self { from, stream: Some(Box::new(stream)) }
    }

    /// Whether a piece of an answer has arrived in the stream.
    pub(crate) fn has_begun(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.check.has_begun())
    }

    /// The tokens, if they are known independently of the bytes that are passed on.
    pub(crate) fn tokens(&self) -> Option<TokensSoFar> {
        let stream = self.stream.as_ref()?;
        stream.reshape.as_ref().map_or(stream.tokens, |reshape| TokensSoFar::of(&**reshape))
    }

    /// Whether these counts are better than those in the bytes that are passed on.
    pub(crate) fn is_counted(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_counted)
    }
}

impl StreamSteps {
    /// Translates the next bytes; the result may be empty.
    fn take(&mut self, data: Bytes) -> Bytes {
        if let Err(error) = self.event.push(&data, &mut self.memory) {
            self.failed = Some(error);
            return Bytes::new();
        }
        let bytes = match &mut self.reshape {
            Some(reshape) => with_failure(reshape.piece(&data), reshape.failure(), self.source),
            None => data,
        };
        self.look(bytes)
    }

    /// The last bytes of the translation, at the end of the stream.
    fn end(&mut self) -> Bytes {
        self.over = true;
        let source = self.source;
        let last = self.reshape.as_mut().map(|reshape| with_failure(reshape.end(), reshape.failure(), source));
        if let Some(reshape) = self.reshape.take() {
            self.tokens = TokensSoFar::of(&*reshape);
        }
        let last = self.look(last.unwrap_or_default());
        if self.failed.is_none() {
            self.failed = self.check.end().err().map(BodyError::Unusable);
        }
        last
    }

    fn look(&mut self, mut bytes: Bytes) -> Bytes {
        if let Err(BadStream { good, error }) = self.check.push(&bytes) {
            self.failed = Some(error.into());
            bytes.truncate(good);
        }
        bytes
    }
}

/// The size of an event whose end has not arrived.
struct OpenEvent {
    /// The most bytes.
    longest: usize,
    bytes: usize,
    /// Characters that begin or separate values, also those inside of texts.
    marks: usize,
    /// The last bytes, since an empty line may be split between frames.
    tail: Vec<u8>,
}

impl OpenEvent {
    fn of(kind: AnswerKind) -> Self {
        Self { longest: kind.longest_event(), bytes: 0, marks: 0, tail: Vec::new() }
    }

    /// Counts the bytes of an event, and holds memory for a long one.
    fn push(&mut self, data: &[u8], memory: &mut HeldMemory) -> Result<(), BodyError> {
        let seam = self.tail.len();
        self.tail.extend_from_slice(&data[..data.len().min(3)]);
        let at_seam = [EVENT_END, b"\n\r\n"].iter().any(|end| memmem::find(&self.tail, end).is_some());
        let within = memmem::rfind(data, EVENT_END).max(memmem::rfind(data, b"\n\r\n"));
        (self.bytes, self.marks) = match within {
            Some(at) => (data.len() - at, marks(&data[at..])),
            None if at_seam => (data.len(), marks(data)),
            None => (self.bytes + data.len(), self.marks + marks(data)),
        };
        if data.len() >= 2 {
            self.tail = data[data.len() - 2..].to_vec();
        } else {
            let over = (seam + data.len()).saturating_sub(2);
            self.tail.drain(..over);
        }
        if self.bytes > self.longest {
            return Err(nonsense("an event of its stream has no end").into());
        }
        if self.marks > MAX_VALUES {
            return Err(nonsense("an event of its stream has too many values").into());
        }
        let kept = if self.bytes > SHORT_EVENT { KEEPERS * self.bytes } else { 0 };
        Ok(memory.resize(kept, Admission::Accepted)?)
    }
}

/// Bytes of a translation, with the error that ends it as the last event.
fn with_failure(bytes: Bytes, failure: Option<DialectError>, source: ErrorSource) -> Bytes {
    match failure {
        Some(error) => [bytes, event(of_dialect(error).body(source).to_json()).into()].concat().into(),
        None => bytes,
    }
}

fn marks(text: &[u8]) -> usize {
    memchr3_iter(b'{', b'[', b',', text).count()
}

/// Whether a broken connection had sent bytes that are no HTTP.
fn is_garbled(error: &hyper::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
    error.is_parse() || matches!(io, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData))
}

impl From<hyper::Error> for BodyError {
    fn from(error: hyper::Error) -> Self {
        if is_garbled(&error) { Self::Unusable(nonsense(error)) } else { Self::Broken(error) }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            if let Some(stream) = &mut this.stream {
                if let Some(error) = stream.failed.take() {
                    stream.over = true;
                    return Poll::Ready(Some(Err(error)));
                }
                if stream.over {
                    return Poll::Ready(None);
                }
            }
            let frame = ready!(match &mut this.from {
                AnswerSource::Worker(body) => Pin::new(body).poll_frame(cx),
                AnswerSource::Cloud(CloudBody::Http(body)) => Pin::new(body).poll_frame(cx),
                AnswerSource::Cloud(CloudBody::Command(pieces)) => {
                    pieces.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
                }
                AnswerSource::Cloud(CloudBody::Whole(all)) => Poll::Ready(all.take().map(|all| Ok(Frame::data(all)))),
            });
            let frame = frame.transpose()?;
            let Some(stream) = &mut this.stream else { return Poll::Ready(frame.map(Ok)) };
            let bytes = match frame {
                Some(frame) => match frame.into_data() {
                    Ok(data) => stream.take(data),
                    Err(_) => continue,
                },
                None => stream.end(),
            };
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_boss_http::memory::MemoryBudget;
    use model_boss_protocol::ByteCount;

    #[test]
    fn a_long_event_holds_memory_until_its_end_however_it_is_cut() {
        let budget = MemoryBudget::new(ByteCount::mib(64));
        for end in ["\n\n", "\r\n\r\n"] {
            let event = format!("data: {}{end}data: x{end}", "y".repeat(100_000));
            for piece in [1, 2, 3, 7, 99_999, 200_000] {
                let (mut open, mut memory, mut most) = (OpenEvent::of(AnswerKind::Chat), budget.holder(), 0);
                for data in event.as_bytes().chunks(piece) {
                    open.push(data, &mut memory).unwrap();
                    most = most.max(budget.figures().used.0);
                }
                assert!(most >= 300_000 || piece >= 99_999, "{piece}: {most}");
                assert_eq!(budget.figures().used, ByteCount::ZERO, "in pieces of {piece}");
            }
        }
        let (mut open, mut memory) = (OpenEvent::of(AnswerKind::Chat), budget.holder());
        let many = "{},".repeat(1_000);
        assert!((0..10).all(|_| open.push(many.as_bytes(), &mut memory).is_ok()));
        assert!(open.push(many.as_bytes(), &mut memory).is_err(), "too many values");
        let (mut open, mut memory) = (OpenEvent::of(AnswerKind::Chat), budget.holder());
        let endless = vec![b'x'; AnswerKind::Chat.longest_event()];
        assert!(open.push(&endless, &mut memory).is_ok_and(|()| open.push(b"x", &mut memory).is_err()));
    }
}
