//! Log-probabilities as clients ask for them: of the model's own distribution among the tokens that may come, before
//! bias, penalties and temperature.

use super::row::{LogitRow, Weigh};

/// One token of a text with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token's id.
    pub id: u32,
    /// The token's text; not always valid on its own, then with replacement characters.
    pub text: String,
    /// The token's bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability; absent for the first token of a prompt.
    pub logprob: Option<f32>,
    /// The most likely tokens in its place, the most likely first.
    pub top: Vec<TopLogprob>,
}

/// A token that could have stood in a place.
#[derive(Clone, Debug, PartialEq)]
pub struct TopLogprob {
    /// The token's id.
    pub id: u32,
    /// The token's text.
    pub text: String,
    /// The token's bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// The numbers of one row of logits that are kept: enough to report any chosen token.
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
        let row = LogitRow::new(logits);
        let normaliser = row.best().map_or(f64::NAN, |(_, highest)| {
            let sum: f64 = row.weights(Weigh::new(highest, 1.0)).into_iter().map(f64::from).sum();
            f64::from(highest) + sum.ln()
        });
        let mut best = Vec::new();
        row.most_likely(top, &mut best);
        // Tokens that a mask made impossible are no alternatives.
        let top = best
            .into_iter()
            .filter(|(logit, _)| *logit > f32::NEG_INFINITY)
            .map(|(logit, token)| (token, logprob(logit, normaliser)))
            .collect();
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
