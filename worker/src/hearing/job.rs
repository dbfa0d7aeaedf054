//! Requests for the text of sound, and what becomes of them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use model_boss_audio::SoundRecording;
use model_boss_engine::DecoderError;
use model_boss_engine::speech::{SpeechSegment, TranscriptWish};
use model_boss_protocol::Priority;
use tokio::sync::mpsc;

/// The sound of one request.
pub(crate) struct HearJob {
    pub(crate) recording: Arc<SoundRecording>,
    /// The chunks that are heard apart, in their order.
    pub(crate) chunks: Vec<Range<usize>>,
    pub(crate) wish: Arc<TranscriptWish>,
    /// Whether the first chunk finds the language for all.
    pub(crate) finds_language: bool,
    pub(crate) priority: Priority,
    /// The request is cancelled by closing it.
    pub(crate) events: mpsc::UnboundedSender<HearEvent>,
}

/// News of a request, in the order of the sound.
#[derive(Debug)]
pub(crate) enum HearEvent {
    /// The token of the language.
    Language(u32),
    /// Further segments.
    Segments(Vec<SpeechSegment>),
    /// All is said.
    Done(HearTotals),
    /// The request failed.
    Failed(HearError),
}

/// The cost of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HearTotals {
    /// Tokens that were computed.
    pub(crate) tokens: usize,
    /// From the first window on.
    pub(crate) took: Duration,
}

/// The reason why a request got no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HearError {
    #[error("there is no memory for this: {0}")]
    OutOfMemory(String),
    #[error("the sound could not be computed: {0}")]
    Step(String),
}

impl HearError {
    pub(super) fn of(error: &DecoderError) -> Self {
        match error {
            DecoderError::OutOfMemory(why) => Self::OutOfMemory(why.clone()),
            error => Self::Step(error.to_string()),
        }
    }
}
