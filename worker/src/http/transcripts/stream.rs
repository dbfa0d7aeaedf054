//! An answer as server-sent events: a delta for each piece of text, and all of it at the end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use http_body::{Body, Frame};
use model_boss_engine::text::Vocabulary;
use model_boss_protocol::{ApiError, ErrorCode, ErrorSource, sse};
use serde::Serialize;
use tokio::sync::mpsc;

use super::answer::{DurationUsage, HeardAnswer, HeardToken, SpeechTimings};
use super::task::failure;
use crate::gone::ENGINE_GONE;
use crate::hearing::HearEvent;

/// The body of a streamed answer. Dropped when the client disconnects, which ends its work.
pub(super) struct TranscriptStream {
    told: HeardAnswer,
    vocabulary: Arc<Vocabulary>,
    events: mpsc::UnboundedReceiver<HearEvent>,
    ready: VecDeque<Bytes>,
    /// Whether a delta was sent.
    has_begun: bool,
    has_ended: bool,
}

#[derive(Serialize)]
struct TranscriptDelta<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    delta: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<HeardToken>>,
}

#[derive(Serialize)]
struct TranscriptDone {
    #[serde(rename = "type")]
    kind: &'static str,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<HeardToken>>,
    usage: DurationUsage,
    timings: SpeechTimings,
}

impl TranscriptStream {
    pub(super) fn new(
        told: HeardAnswer,
        vocabulary: Arc<Vocabulary>,
        first: HearEvent,
        events: mpsc::UnboundedReceiver<HearEvent>,
    ) -> Self {
        let ready = VecDeque::new();
        let mut stream = Self { told, vocabulary, events, ready, has_begun: false, has_ended: false };
        stream.take(first);
        stream
    }

    fn take(&mut self, event: HearEvent) {
        match event {
            HearEvent::Language(token) => self.told.is_in(token),
            HearEvent::Segments(segments) => {
                for segment in segments {
                    let logprobs = self.told.logprobs(std::slice::from_ref(&segment), &self.vocabulary);
                    let text = if self.has_begun { segment.text.as_str() } else { segment.text.trim_start() };
                    self.has_begun |= !text.is_empty();
                    let delta = TranscriptDelta { kind: "transcript.text.delta", delta: text, logprobs };
                    self.ready.push_back(written(&delta));
                    self.told.heard(vec![segment]);
                }
            }
            HearEvent::Done(totals) => {
                self.told.done(totals);
                let done = TranscriptDone {
                    kind: "transcript.text.done",
                    text: self.told.text(),
                    logprobs: self.told.all_logprobs(&self.vocabulary),
                    usage: self.told.usage(),
                    timings: self.told.timings(),
                };
                self.ready.push_back(written(&done));
                self.ready.push_back(Bytes::from_static(sse::DONE.as_bytes()));
                self.has_ended = true;
            }
            HearEvent::Failed(error) => self.fail(&failure(&error)),
        }
    }

    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(written(&error.body(ErrorSource::Worker)));
        self.has_ended = true;
        self.events.close();
    }
}

impl Body for TranscriptStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            match ready!(self.events.poll_recv(context)) {
                Some(event) => self.take(event),
                None => self.fail(&ApiError::new(ErrorCode::Internal, ENGINE_GONE)),
            }
        }
    }
}

/// `data: {…}` and an empty line.
fn written(value: &impl Serialize) -> Bytes {
    // Objects of texts and finite numbers always serialise.
    Bytes::from(sse::event(serde_json::to_string(value).unwrap_or_default()))
}
