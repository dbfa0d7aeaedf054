//! One measured answer, and the answers of one round.

use std::time::Duration;

/// One answer. Times count from the moment when the round's requests were sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AnswerSample {
    /// When the request was sent.
    pub(crate) sent: Duration,
    /// When the first and the last token came.
    pub(crate) first: Duration,
    pub(crate) last: Duration,
    /// The pieces of text that came.
    pub(crate) pieces: u64,
    /// The tokens of the answer, as the server counts them.
    pub(crate) tokens: Option<u64>,
    pub(crate) prompt_tokens: Option<u64>,
    /// The tokens of the prompt that came from the server's cache.
    pub(crate) cached_tokens: u64,
}

impl AnswerSample {
    /// The tokens of the answer; without the server's count, its pieces.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens.unwrap_or(self.pieces)
    }
}

/// The answers of one round of one server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RoundSample {
    pub(crate) answers: Vec<AnswerSample>,
    /// Why requests of the round failed.
    pub(crate) errors: Vec<String>,
}
