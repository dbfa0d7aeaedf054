//! The draft of one sequence: tokens that are evaluated with its last token, before it is known whether they are right.

use crate::drafts::{Draft, Lookup};

/// A sequence's draft, and how good its drafts were.
#[derive(Debug, Default)]
pub(super) struct Drafting {
    /// The last token of the sequence and the draft behind it; empty without a draft.
    pub(super) ahead: Vec<u32>,
    /// The chance that each token of the draft comes, with all before it.
    chances: Vec<f64>,
    /// Earlier tokens, where drafts are looked up.
    lookup: Lookup,
    /// The most tokens of the next draft.
    most: usize,
    /// The token of `ahead` whose logits are read next.
    pub(super) at: usize,
    /// Tokens found to be right since the engine last asked.
    confirmed: usize,
    /// Tokens of earlier drafts that were evaluated.
    drafted: usize,
    /// Tokens of all drafts that came.
    pub(super) accepted: usize,
    /// Tokens of drafts that were left while their logits were read, and how many of them came.
    left: (usize, usize),
}

impl Drafting {
    /// Whether the next step evaluates a draft, or the last one did and its logits are still being read.
    pub(super) fn is_there(&self) -> bool {
        self.ahead.len() > 1
    }

    /// Has a draft behind these tokens, unless it is empty.
    pub(super) fn begin(&mut self, tokens: &[u32], draft: Draft) {
        self.ahead.clear();
        if !draft.tokens.is_empty() {
            self.ahead.extend(tokens.last());
            self.ahead.extend(draft.tokens);
        }
        self.chances = draft.chances;
    }

    /// Tokens of drafts that were evaluated, those of a draft whose logits are being read included.
    pub(super) fn evaluated(&self) -> usize {
        self.drafted + self.ahead.len().saturating_sub(1)
    }

    /// Looks up a draft of at most so many tokens behind these.
    pub(super) fn look_up(&mut self, tokens: &[u32], most: usize) {
        self.leave(false);
        self.most = most;
        if most > 0 {
            let draft = self.lookup.draft(tokens, most);
            self.begin(tokens, draft);
        }
    }

    /// The most tokens of the next draft.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// The chances of the draft's tokens, each with all before it; empty without a draft.
    pub(super) fn offer(&self) -> &[f64] {
        if self.is_there() { &self.chances } else { &[] }
    }

    /// Of `share` evaluated tokens, those that are certainly of the sequence: of a draft it is not known yet.
    pub(super) fn certain(&self, share: usize) -> usize {
        if self.is_there() { share.min(1) } else { share }
    }

    /// Tokens of the draft that were found to be right since the last call. The sequence's blocks hold them.
    pub(super) fn take_confirmed(&mut self) -> usize {
        std::mem::take(&mut self.confirmed)
    }

    /// Keeps so many of the draft's tokens.
    pub(super) fn keep(&mut self, count: usize) {
        self.ahead.truncate(if count == 0 { 0 } else { count + 1 });
    }

    /// Rows of logits that were not read yet.
    pub(super) fn rows_left(&self) -> usize {
        (self.ahead.len() - self.at.min(self.ahead.len())).max(1)
    }

    /// Whether the token that came is the draft's.
    pub(super) fn confirm(&mut self, came: Option<&u32>) -> bool {
        let expected = self.ahead.get(self.at + 1);
        let is_right = expected.is_some() && expected == came;
        if is_right {
            self.at += 1;
            self.confirmed += 1;
            self.accepted += 1;
        }
        is_right
    }

    /// Ends the draft. Returns how many tokens of drafts were evaluated since the last call, and how many of them came.
    pub(super) fn end(&mut self) -> (usize, usize) {
        self.leave(true);
        std::mem::take(&mut self.left)
    }

    /// Leaves the draft, which counts where it was evaluated.
    pub(super) fn leave(&mut self, evaluated: bool) {
        if evaluated {
            let drafted = self.ahead.len().saturating_sub(1);
            self.drafted += drafted;
            self.left = (self.left.0 + drafted, self.left.1 + self.at);
        }
        self.ahead.clear();
        self.at = 0;
    }
}
