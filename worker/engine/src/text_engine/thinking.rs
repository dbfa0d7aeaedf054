//! The thoughts in front of an answer.

use std::sync::Arc;

use crate::text::{AnswerPart, ChannelPlan, Detokenizer, ThinkingPlan, Thoughts, Trimmed, Vocabulary};

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

/// The limit of thoughts that are told apart in the text of one answer.
pub(super) struct ChannelState {
    plan: ChannelPlan,
    /// Tokens of thought so far.
    thought: usize,
    /// Tokens of the ending given so far.
    given: usize,
}

impl ChannelState {
    pub(super) fn new(plan: ChannelPlan) -> Self {
        Self { plan, thought: 0, given: 0 }
    }

    /// The token that comes next whatever the model would say, when there is one.
    pub(super) fn forced(&self, is_in_thought: bool) -> Option<u32> {
        let is_used_up = is_in_thought && self.thought >= self.plan.budget as usize;
        self.plan.ending.get(self.given).copied().filter(|_| is_used_up || self.given > 0)
    }

    /// Makes the channel of thoughts impossible where a forced ending is over: its name begins with an `a`, those of
    /// the others do not.
    pub(super) fn apply(&self, logits: &mut [f32], vocabulary: &Vocabulary) {
        if !self.plan.is_named || self.given == 0 || self.given < self.plan.ending.len() {
            return;
        }
        for (logit, token) in logits.iter_mut().zip(0..) {
            if vocabulary.bytes(token).starts_with(b"a") {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    /// Takes a token in.
    pub(super) fn push(&mut self, is_forced: bool, is_thought: bool) {
        self.given = if is_forced { self.given + 1 } else { 0 };
        self.thought += usize::from(is_thought);
    }
}
