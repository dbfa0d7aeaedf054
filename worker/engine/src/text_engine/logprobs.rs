//! Log-probabilities in the words of the vocabulary.

use crate::sampling::{LogprobRow, TokenLogprob, TopLogprob};
use crate::text::Vocabulary;

/// The most logits that one step may return for one sequence (128 MiB). Log-probabilities of a prompt over a large
/// vocabulary would otherwise need more memory than the model.
const MOST_LOGITS: usize = 32 << 20;

/// The most rows of logits that one step may return for one sequence.
pub(super) fn most_rows(vocab_size: usize) -> usize {
    (MOST_LOGITS / vocab_size.max(1)).max(1)
}

/// A token without a log-probability.
fn spelled(token: u32, vocabulary: &Vocabulary) -> TokenLogprob {
    let bytes = vocabulary.bytes(token).to_vec();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    TokenLogprob { id: token, text, bytes, logprob: None, top: Vec::new() }
}

/// A token with its log-probability, and the most likely ones in its place.
pub(super) fn token_logprob(token: u32, logprob: f32, row: &LogprobRow, vocabulary: &Vocabulary) -> TokenLogprob {
    let alternative = |&(token, logprob): &(u32, f32)| {
        let TokenLogprob { id, text, bytes, .. } = spelled(token, vocabulary);
        TopLogprob { id, text, bytes, logprob }
    };
    TokenLogprob {
        logprob: Some(logprob),
        top: row.top().iter().map(alternative).collect(),
        ..spelled(token, vocabulary)
    }
}

/// Records log-probabilities of a prompt, of which a step evaluated `share` tokens behind the first `behind`: row `i`
/// gives that of the token after the step's token `i`. Those that are known from before blocks had to be given back
/// stay.
pub(super) fn note_prompt(
    known: &mut Vec<TokenLogprob>,
    prompt: &[u32],
    (behind, share): (usize, usize),
    (rows, top): (&[f32], usize),
    vocabulary: &Vocabulary,
) {
    let vocab_size = rows.len() / share;
    if known.is_empty() {
        known.push(TokenLogprob { logprob: None, ..spelled(prompt[0], vocabulary) });
    }
    let there = known.len().saturating_sub(behind + 1);
    for (row, &token) in rows.chunks_exact(vocab_size).zip(&prompt[behind + 1..]).skip(there) {
        let reading = LogprobRow::new(row, top);
        let logprob = reading.of(row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY));
        known.push(token_logprob(token, logprob, &reading, vocabulary));
    }
}
