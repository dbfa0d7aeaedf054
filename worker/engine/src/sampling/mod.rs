//! From a row of logits to a token. Knows nothing of text, batches or devices.
//!
//! The order is: logit bias, penalties, temperature, `top_k`, `top_p`, `min_p`, draw. Everything is a function of the
//! row, the parameters, the tokens of this one sequence and its own random numbers, so what else is in the batch cannot
//! change an answer.

mod filters;
mod logprobs;
mod penalties;
mod row;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

pub use logprobs::{LogprobRow, TokenLogprob, TopLogprob};

use penalties::Penalties;
use row::{Row, Weigh, passing};

/// How tokens are chosen.
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
    /// Divides positive and multiplies negative logits of tokens in the prompt or the answer (Keskar et al. 2019,
    /// arXiv:1909.05858, section 4.1). 1 is off.
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

/// Chooses the tokens of one sequence.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    penalties: Penalties,
    rng: ChaCha8Rng,
    /// Candidates with their weights, kept between tokens for its memory.
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    /// A sampler for one answer. `choice` tells several answers to the same prompt and seed apart.
    pub fn new(params: SamplingParams, prompt: &[u32], choice: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(params.seed);
        rng.set_stream(choice);
        let penalties = Penalties::new(&params, prompt);
        Self { params, penalties, rng, candidates: Vec::new() }
    }

    /// The next token, or `None` when no logit is finite. Changes `logits`. Equal logits count as in ascending token
    /// order, so the greedy choice among equals is the lowest id.
    pub fn sample(&mut self, logits: &mut [f32]) -> Option<u32> {
        for &(token, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        self.penalties.apply(logits);
        let row = Row::new(logits);
        let (best, highest) = row.best()?;
        let token = if self.params.temperature <= 0.0 || highest == f32::INFINITY {
            best
        } else {
            let weigh = Weigh::new(highest, self.params.temperature);
            let at = unit(self.rng.next_u64());
            let drawn = if filters::are_asked_for(&self.params, &row) {
                filters::candidates(&self.params, &row, weigh, &mut self.candidates);
                let total: f64 = self.candidates.iter().map(|&(weight, _)| f64::from(weight)).sum();
                passing(self.candidates.iter().copied(), at * total)
            } else {
                row.draw(weigh.at_least(self.params.min_p), at)
            };
            drawn.unwrap_or(best)
        };
        self.penalties.count(token);
        Some(token)
    }

    /// Counts a token that stands in the answer whatever the model would have said. Draws no random number.
    pub fn accept(&mut self, token: u32) {
        self.penalties.count(token);
    }
}

/// 53 random bits as a number in [0, 1).
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests;
