//! The parameters of sampling, as a request states them.

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
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            logit_bias: Vec::new(),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
        }
    }
}
