//! Penalties that make a token less likely because the sequence already has it.

use std::collections::{HashMap, HashSet};

use super::params::SamplingParams;

/// Counts tokens and applies the three penalties. Costs nothing when all are off.
///
/// Presence and frequency penalties look at the answer alone, as OpenAI describes them. The repetition penalty looks at
/// the prompt too, as its paper and `transformers` do.
#[derive(Debug)]
pub(super) struct Penalties {
    presence: f32,
    frequency: f32,
    repetition: f32,
    answer: HashMap<u32, u32>,
    seen: HashSet<u32>,
}

impl Penalties {
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> Self {
        let repetition = params.repetition_penalty;
        let seen = if repetition == 1.0 { HashSet::new() } else { prompt.iter().copied().collect() };
        Self {
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            repetition,
            answer: HashMap::new(),
            seen,
        }
    }

    fn additive(&self) -> bool {
        self.presence != 0.0 || self.frequency != 0.0
    }

    pub(super) fn apply(&self, logits: &mut [f32]) {
        for &token in &self.seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
            }
        }
        for (&token, &count) in &self.answer {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= self.presence + self.frequency * count as f32;
            }
        }
    }

    /// Applies all three penalties by the tokens of `window` alone: prompt and answer count alike. Source: llama.cpp's
    /// sampler `penalties`.
    pub(super) fn apply_within(&self, window: &[u32], logits: &mut [f32]) {
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for &token in window {
            *counts.entry(token).or_default() += 1;
        }
        for (token, count) in counts {
            if let Some(logit) = logits.get_mut(token as usize) {
                let divided = if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
                *logit = divided - self.presence - self.frequency * count as f32;
            }
        }
    }

    pub(super) fn count(&mut self, token: u32) {
        if self.additive() {
            *self.answer.entry(token).or_default() += 1;
        }
        if self.repetition != 1.0 {
            self.seen.insert(token);
        }
    }
}
