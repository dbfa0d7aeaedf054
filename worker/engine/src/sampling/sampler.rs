//! Choosing the tokens of one sequence, one after the other.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::filters;
use super::params::SamplingParams;
use super::penalties::Penalties;
use super::row::{LogitRow, Weigh, passing};

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
    /// A sampler for one answer. `choice` distinguishes several answers to the same prompt and seed.
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
        let row = LogitRow::new(logits);
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

    /// Counts a token that was forced into the answer, and returns it. Draws no random number.
    pub fn accept(&mut self, token: u32) -> u32 {
        self.penalties.count(token);
        token
    }
}

/// 53 random bits as a number in [0, 1).
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
