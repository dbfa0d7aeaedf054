//! The text side of one answer: tokens in, text that may be shown out.

use std::sync::Arc;

use super::detokenize::Detokenizer;
use super::stop::{StopMatcher, Stopped};
use super::vocabulary::Vocabulary;

/// Turns an answer's tokens into text up to its end or the first stop string.
#[derive(Debug)]
pub struct TextStream {
    detokenizer: Detokenizer,
    stops: StopMatcher,
}

/// The text that one token added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPiece {
    /// Text that may be shown now.
    pub text: String,
    /// Bytes of text the token itself gave, shown or held back.
    pub produced: usize,
    /// Whether a stop string came.
    pub stopped: Stopped,
}

impl TextStream {
    /// A stream for the answer to a prompt.
    pub fn new(vocabulary: Arc<Vocabulary>, prompt: &[u32], stops: Vec<String>) -> Self {
        Self { detokenizer: Detokenizer::new(vocabulary, prompt), stops: StopMatcher::new(stops) }
    }

    /// Takes one more token in.
    pub fn push(&mut self, token: u32) -> TextPiece {
        let new = self.detokenizer.push(token);
        let (text, stopped) = self.stops.push(&new);
        TextPiece { text, produced: new.len(), stopped }
    }

    /// The stop string that came.
    pub fn stopped_by(&self) -> Option<&str> {
        self.stops.came()
    }

    /// The text that was held back, when the answer ends without a stop string.
    pub fn finish(&mut self) -> String {
        self.stops.finish()
    }
}
