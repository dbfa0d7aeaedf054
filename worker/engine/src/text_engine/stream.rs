//! The text side of one answer: tokens in, text that may be shown and calls of tools out.

use std::sync::Arc;

use crate::engine::FinishReason;
use crate::text::{Detokenizer, StopMatcher, Stopped, Vocabulary};
use crate::tools::{ToolEvent, ToolMarkers, ToolParser};

/// Turns an answer's tokens into text and calls, up to its end or the first stop string.
#[derive(Debug)]
pub(super) struct TextStream {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    calls: Option<ToolParser>,
}

/// The parts of the answer that one token added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextPiece {
    /// Text that may be shown now, and calls, in order.
    pub(super) parts: Vec<ToolEvent>,
    /// Bytes of text the token itself gave, shown or held back.
    pub(super) produced: usize,
    /// Whether a stop string came.
    pub(super) stopped: Stopped,
}

impl TextStream {
    /// A stream for the answer to a prompt.
    pub(super) fn new(vocabulary: Arc<Vocabulary>, prompt: &[u32], stops: Vec<String>) -> Self {
        Self { detokenizer: Detokenizer::new(vocabulary, prompt), stops: StopMatcher::new(stops), calls: None }
    }

    /// Reads calls of tools out of the text.
    #[must_use]
    pub(super) fn with_calls(self, parser: ToolParser, markers: &ToolMarkers) -> Self {
        Self { detokenizer: self.detokenizer.spelling(markers.tokens()), stops: self.stops, calls: Some(parser) }
    }

    /// Whether calls are read.
    pub(super) fn reads_calls(&self) -> bool {
        self.calls.is_some()
    }

    /// Whether the next token is no part of what is shown as the answer.
    pub(super) fn is_hidden(&self) -> bool {
        self.calls.as_ref().is_some_and(ToolParser::is_hidden)
    }

    /// Whether a thought is being read.
    pub(super) fn is_in_thought(&self) -> bool {
        self.calls.as_ref().is_some_and(ToolParser::is_in_thought)
    }

    /// Takes one more token in.
    pub(super) fn push(&mut self, token: u32) -> TextPiece {
        let new = self.detokenizer.push(token);
        let produced = new.len();
        let parts = match &mut self.calls {
            Some(calls) => calls.push(&new),
            None => vec![ToolEvent::Text(new)],
        };
        let (parts, stopped) = self.stopped(parts);
        TextPiece { parts, produced, stopped }
    }

    /// The parts up to the first stop string. Calls are not searched for them.
    fn stopped(&mut self, parts: Vec<ToolEvent>) -> (Vec<ToolEvent>, Stopped) {
        let mut kept = Vec::with_capacity(parts.len());
        for part in parts {
            let ToolEvent::Text(text) = part else {
                // Text in front of a call cannot be the start of a stop string behind it.
                let held = self.stops.finish();
                if !held.is_empty() {
                    kept.push(ToolEvent::Text(held));
                }
                kept.push(part);
                continue;
            };
            let (text, stopped) = self.stops.push(&text);
            kept.push(ToolEvent::Text(text));
            if stopped == Stopped::Yes {
                return (kept, stopped);
            }
        }
        (kept, Stopped::No)
    }

    /// The stop string that came.
    pub(super) fn stopped_by(&self) -> Option<&str> {
        self.stops.came()
    }

    /// The parts that were held back, when the answer ends without a stop string.
    pub(super) fn finish(&mut self, reason: FinishReason) -> Vec<ToolEvent> {
        let rest = self.calls.as_mut().map(|calls| match reason {
            FinishReason::Length => calls.cut(),
            FinishReason::Stop => calls.finish(),
        });
        let rest = rest.unwrap_or_default();
        let mut parts = match self.stops.came() {
            Some(_) => Vec::new(),
            None => self.stopped(rest).0,
        };
        let held = self.stops.finish();
        if !held.is_empty() {
            parts.push(ToolEvent::Text(held));
        }
        parts
    }
}
