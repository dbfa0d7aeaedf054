//! Choosing the tokens of one sequence, one after the other.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::dry;
use super::filters;
use super::params::SamplingParams;
use super::penalties::Penalties;
use super::row::{LogitRow, Weigh, passing};
use super::truncation::top_n_sigma;

/// Chooses the tokens of one sequence.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    penalties: Penalties,
    rng: ChaCha8Rng,
    /// Candidates with their weights, kept between tokens for its memory.
    candidates: Vec<(f32, u32)>,
    /// The prompt and the answer so far, where a penalty looks at their order.
    text: Vec<u32>,
}

impl Sampler {
    /// A sampler for one answer. `choice` distinguishes several answers to the same prompt and seed.
    pub fn new(params: SamplingParams, prompt: &[u32], choice: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(params.seed);
        rng.set_stream(choice);
        let penalties = Penalties::new(&params, prompt);
        let text = if params.reads_text() { prompt.to_vec() } else { Vec::new() };
        Self { params, penalties, rng, candidates: Vec::new(), text }
    }

    /// Whether the likeliest token is taken each time.
    pub fn is_greedy(&self) -> bool {
        self.params.temperature <= 0.0 || self.params.top_k == 1
    }

    /// The next token, or `None` when no logit is finite. Changes `logits`. Equal logits count as in ascending token
    /// order, so the greedy choice among equals is the lowest id.
    pub fn sample(&mut self, logits: &mut [f32]) -> Option<u32> {
        for &(token, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        match self.params.penalty_window {
            Some(window) => self.penalties.apply_within(&self.text[self.text.len().saturating_sub(window)..], logits),
            None => self.penalties.apply(logits),
        }
        if let Some(params) = &self.params.dry {
            dry::apply(params, &self.text, logits);
        }
        let greedy = self.params.temperature <= 0.0;
        if self.params.top_n_sigma > 0.0 && !greedy {
            top_n_sigma(self.params.top_n_sigma, logits);
        }
        let row = LogitRow::new(logits);
        let (best, highest) = row.best()?;
        let token = if greedy || highest == f32::INFINITY {
            best
        } else {
            let weigh = Weigh::new(highest, self.params.temperature);
            let at = unit(self.rng.next_u64());
            // A second number is drawn only for those that need it: other answers keep theirs.
            let excludes = filters::may_exclude(&self.params)
                && unit(self.rng.next_u64()) <= f64::from(self.params.xtc_probability);
            let drawn = if filters::are_asked_for(&self.params, &row) {
                filters::candidates(&self.params, &row, weigh, excludes, &mut self.candidates);
                let total: f64 = self.candidates.iter().map(|&(weight, _)| f64::from(weight)).sum();
                passing(self.candidates.iter().copied(), at * total)
            } else {
                row.draw(weigh.at_least(self.params.min_p), at)
            };
            drawn.unwrap_or(best)
        };
        Some(self.accept(token))
    }

    /// Counts a token that was forced into the answer, and returns it. Draws no random number.
    pub fn accept(&mut self, token: u32) -> u32 {
        self.penalties.count(token);
        if self.params.reads_text() {
            self.text.push(token);
        }
        token
    }
}

/// 53 random bits as a number in [0, 1).
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
