//! Log-probabilities as clients ask for them: of the model's own distribution, before bias, penalties and temperature.

use std::cmp::Ordering;

/// One token of a text with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token's text; not always valid on its own, then with replacement characters.
    pub text: String,
    /// The bytes it stands for.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability; absent for the first token of a prompt.
    pub logprob: Option<f32>,
    /// The most likely tokens in its place, the most likely first.
    pub top: Vec<TopLogprob>,
}

/// A token that could have stood in a place.
#[derive(Clone, Debug, PartialEq)]
pub struct TopLogprob {
    /// The token's text.
    pub text: String,
    /// The bytes it stands for.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// What is kept of one row of logits: enough to report any chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct LogprobRow {
    /// Logarithm of the sum of exponentials of the row.
    normaliser: f64,
    /// The most likely tokens and their log-probabilities.
    top: Vec<(u32, f32)>,
}

impl LogprobRow {
    /// Reads a row, keeping the `top` most likely tokens.
    pub fn new(logits: &[f32], top: usize) -> Self {
        let highest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().filter(|l| !l.is_nan()).map(|&l| (f64::from(l) - highest).exp()).sum();
        let normaliser = highest + sum.ln();
        // A sorted list of at most `top` entries: `top` is 20 or less, and nearly every token fails the first test.
        let mut best: Vec<(u32, f32)> = Vec::with_capacity(top + 1);
        for (token, &logit) in (0_u32..).zip(logits) {
            let full = best.len() == top;
            if top == 0 || logit.is_nan() || (full && best.last().is_some_and(|&(_, least)| logit <= least)) {
                continue;
            }
            let at = best.partition_point(|&(_, other)| other.total_cmp(&logit) != Ordering::Less);
            best.insert(at, (token, logit));
            best.truncate(top);
        }
        let top = best.into_iter().map(|(token, logit)| (token, logprob(logit, normaliser))).collect();
        Self { normaliser, top }
    }

    /// The log-probability of a token whose logit in this row was `logit`.
    pub fn of(&self, logit: f32) -> f32 {
        logprob(logit, self.normaliser)
    }

    /// The most likely tokens and their log-probabilities.
    pub fn top(&self) -> &[(u32, f32)] {
        &self.top
    }
}

fn logprob(logit: f32, normaliser: f64) -> f32 {
    let value = (f64::from(logit) - normaliser) as f32;
    // JSON has no infinities; OpenAI reports -9999 for tokens that cannot be.
    if value.is_finite() { value } else { -9999.0 }
}
