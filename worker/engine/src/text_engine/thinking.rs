//! The thoughts in front of an answer.

use std::sync::Arc;

use crate::text::{AnswerPart, Detokenizer, ThinkingPlan, Thoughts, Trimmed, Vocabulary};

/// The thoughts of one answer.
pub(super) struct ThinkingState {
    pub(super) thoughts: Thoughts,
    text: Detokenizer,
    shown: Trimmed,
    /// Whether the answer behind them has begun: it does not begin with white space.
    pub(super) answer_begun: bool,
}

impl ThinkingState {
    /// The thoughts of the answer to a prompt.
    pub(super) fn new(plan: ThinkingPlan, prompt: &[u32], vocabulary: &Arc<Vocabulary>) -> Self {
        let shown = Trimmed::without(plan.tags.name());
        Self {
            thoughts: Thoughts::new(plan, prompt, vocabulary),
            text: Detokenizer::new(Arc::clone(vocabulary), prompt),
            shown,
            answer_begun: false,
        }
    }

    /// Takes a token in. Returns its part of the answer, and the text of a thought that may be shown now.
    pub(super) fn push(&mut self, token: u32, vocabulary: &Vocabulary) -> (AnswerPart, String) {
        let part = self.thoughts.push(token, vocabulary);
        match part {
            AnswerPart::Thought => (part, self.shown.push(&self.text.push(token))),
            _ => (part, String::new()),
        }
    }
}
