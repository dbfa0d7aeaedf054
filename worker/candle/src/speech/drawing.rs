//! How codes are drawn.

use candle_core::{Device, Result as CandleResult, Tensor};
use model_boss_engine::sampling::{Sampler, SamplingParams};

/// The usual number of most likely codes to draw from, as in `transformers`.
const USUAL_TOP_K: usize = 50;

/// The rules of a `generation_config.json`: the most likely code where `sampled` is false.
pub(super) fn rules(
    sampled: bool,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
) -> SamplingParams {
    let positive = |number: &f32| number.is_finite() && *number > 0.0;
    SamplingParams {
        temperature: if sampled { temperature.filter(positive).unwrap_or(1.0) } else { 0.0 },
        top_k: top_k.unwrap_or(USUAL_TOP_K),
        top_p: top_p.filter(positive).unwrap_or(1.0),
        ..SamplingParams::default()
    }
}

/// Draws codes, of which the codec has the first ones only.
pub(super) struct CodeDraw {
    sampler: Sampler,
    codes: usize,
}

impl CodeDraw {
    /// A draw of one of the first `codes` codes by these rules. Draws of the same seed differ by their `choice`.
    pub(super) fn new(rules: &SamplingParams, seed: u64, choice: u64, codes: usize) -> Self {
        Self { sampler: Sampler::new(SamplingParams { seed, ..rules.clone() }, &[], choice), codes }
    }

    /// A code by its logits, `[1, codes]`.
    pub(super) fn code(&mut self, logits: &Tensor) -> CandleResult<u32> {
        self.code_of(logits.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?)
    }

    /// A code by logits in the host's memory.
    pub(super) fn code_of(&mut self, mut logits: Vec<f32>) -> CandleResult<u32> {
        logits.truncate(self.codes);
        self.sampler.sample(&mut logits).ok_or_else(|| candle_core::Error::msg("the model's numbers are not finite"))
    }
}
