//! The text side of one answer: tokens in, text that may be shown, spelled thoughts and calls of tools out.

use std::sync::Arc;

use crate::engine::FinishReason;
use crate::text::{Detokenizer, StopMatcher, Stopped, Vocabulary};
use crate::tools::{ToolEvent, ToolMarkers, ToolParser};

use super::spelled::SpelledThoughts;

/// Turns an answer's tokens into text and calls, up to its end or the first stop string.
#[derive(Debug)]
pub(super) struct TextStream {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Of a model that spells its thoughts out.
    thoughts: Option<SpelledThoughts>,
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
        Self {
            detokenizer: Detokenizer::new(vocabulary, prompt),
            stops: StopMatcher::new(stops),
            thoughts: None,
            calls: None,
        }
    }

    /// Reads calls of tools out of the text.
    #[must_use]
    pub(super) fn with_calls(self, parser: ToolParser, markers: &ToolMarkers) -> Self {
        Self { detokenizer: self.detokenizer.spelling(markers.tokens()), calls: Some(parser), ..self }
    }

    /// Tells thoughts apart that the model spells out.
    #[must_use]
    pub(super) fn with_spelled_thoughts(self) -> Self {
        Self { thoughts: Some(SpelledThoughts::default()), ..self }
    }

    /// Whether parts are cut out of the text: calls or thoughts.
    pub(super) fn is_cut(&self) -> bool {
        self.calls.is_some() || self.thoughts.is_some()
    }

    /// Whether the next token is no part of what is shown as the answer.
    pub(super) fn is_hidden(&self) -> bool {
        self.is_in_thought() || self.calls.as_ref().is_some_and(ToolParser::is_hidden)
    }

    /// Whether a thought is being read.
    pub(super) fn is_in_thought(&self) -> bool {
        self.thoughts.as_ref().is_some_and(SpelledThoughts::is_in_thought)
            || self.calls.as_ref().is_some_and(ToolParser::is_in_thought)
    }

    /// Takes one more token in.
    pub(super) fn push(&mut self, token: u32) -> TextPiece {
        let new = self.detokenizer.push(token);
        let produced = new.len();
        let parts = match &mut self.thoughts {
            Some(thoughts) => thoughts.push(&new),
            None => vec![ToolEvent::Text(new)],
        };
        let parts = self.with_calls_read(parts);
        let (parts, stopped) = self.stopped(parts);
        TextPiece { parts, produced, stopped }
    }

    /// The parts with calls read out of the texts.
    fn with_calls_read(&mut self, parts: Vec<ToolEvent>) -> Vec<ToolEvent> {
        let Some(calls) = &mut self.calls else { return parts };
        let read = |part| match part {
            ToolEvent::Text(text) => calls.push(&text),
            other => vec![other],
        };
        parts.into_iter().flat_map(read).collect()
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
        let held = self.thoughts.as_mut().map(SpelledThoughts::finish).unwrap_or_default();
        let mut rest = self.with_calls_read(held);
        rest.extend(self.calls.iter_mut().flat_map(|calls| match reason {
            FinishReason::Length => calls.cut(),
            FinishReason::Stop => calls.finish(),
        }));
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
