//! Log-probabilities in the words of the vocabulary.

use crate::sampling::{LogprobRow, TokenLogprob, TopLogprob};
use crate::text::Vocabulary;

/// A token without a log-probability.
pub(super) fn spelled(token: u32, vocabulary: &Vocabulary) -> TokenLogprob {
    let bytes = vocabulary.bytes(token).to_vec();
    TokenLogprob { text: String::from_utf8_lossy(&bytes).into_owned(), bytes, logprob: None, top: Vec::new() }
}

/// A token with its log-probability, and the most likely ones in its place.
pub(super) fn token_logprob(token: u32, logprob: f32, row: &LogprobRow, vocabulary: &Vocabulary) -> TokenLogprob {
    let alternative = |&(token, logprob): &(u32, f32)| {
        let TokenLogprob { text, bytes, .. } = spelled(token, vocabulary);
        TopLogprob { text, bytes, logprob }
    };
    TokenLogprob {
        logprob: Some(logprob),
        top: row.top().iter().map(alternative).collect(),
        ..spelled(token, vocabulary)
    }
}
