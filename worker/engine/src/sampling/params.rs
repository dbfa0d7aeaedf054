//! The parameters of sampling, as a request states them.

use super::dry::DryParams;

/// The parameters by which tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; zero always takes the most likely token.
    pub temperature: f32,
    /// Keep the most likely tokens that together have this probability. 1 keeps all.
    pub top_p: f32,
    /// Keep this many of the most likely tokens. 0 keeps all.
    pub top_k: usize,
    /// Keep tokens at least this likely relative to the most likely one. 0 keeps all.
    pub min_p: f32,
    /// Keep the tokens of expected surprise that together have this probability. 1 keeps all.
    pub typical_p: f32,
    /// Keep tokens whose logit is at most so many standard deviations below the highest. Not positive keeps all.
    pub top_n_sigma: f32,
    /// The chance for each token that `xtc` removes the most likely candidates. 0 is off.
    pub xtc_probability: f32,
    /// The probability from which `xtc` counts a candidate as likely.
    pub xtc_threshold: f32,
    /// Candidates that `top_p`, `typical_p`, `min_p` and `xtc` leave at least.
    pub min_keep: usize,
    /// Seed of this sequence's random numbers.
    pub seed: u64,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Taken from the logit of every token the answer already has.
    pub presence_penalty: f32,
    /// Taken from the logit of a token once for each time the answer already has it.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the answer. 1 is off. Source:
    /// Keskar et al. 2019, arXiv:1909.05858, section 4.1.
    pub repetition_penalty: f32,
    /// All three penalties look at so many tokens at the end of the prompt and the answer, as in llama.cpp.
    pub penalty_window: Option<usize>,
    /// The penalty on runs that the text has already.
    pub dry: Option<DryParams>,
}

impl SamplingParams {
    /// Whether a penalty looks at the order of the text's tokens.
    pub(super) fn reads_text(&self) -> bool {
        self.dry.is_some() || self.penalty_window.is_some()
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            min_keep: 0,
            seed: 0,
            logit_bias: Vec::new(),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            penalty_window: None,
            dry: None,
        }
    }
}
