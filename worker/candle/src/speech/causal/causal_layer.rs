//! One layer: attention to the moments before, and a feed-forward part, each added to the stream.

use candle_core::{Result as CandleResult, Tensor};
use candle_nn::rotary_emb::rope;

use super::causal_spec::CausalSpec;
use super::causal_step::CausalStep;
use super::mixing::mixed;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::spec::Activation;
use crate::speech::weights::SpeechWeights;

/// A layer with its weights.
pub(super) struct CausalLayer {
    norm: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    feed_norm: Norm,
    feed: FeedForwardPart,
    activation: Activation,
    /// The factors on the results of both parts.
    factors: Option<[Tensor; 2]>,
    heads: usize,
    kv_heads: usize,
    head: usize,
}

enum FeedForwardPart {
    Gated { gate: Linear, up: Linear, down: Linear },
    Plain { up: Linear, down: Linear },
}

impl CausalLayer {
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, path: &str, spec: &CausalSpec) -> Result<Self, ModelError> {
        let &CausalSpec { width, heads, kv_heads, head, inner, norm, .. } = spec;
        let (queries, keys) = (heads * head, kv_heads * head);
        let mut linear = |name: &str, shape| weights.product(&format!("{path}.{name}"), shape);
        let feed = if spec.gated {
            FeedForwardPart::Gated {
                gate: linear("mlp.gate_proj", [inner, width])?,
                up: linear("mlp.up_proj", [inner, width])?,
                down: linear("mlp.down_proj", [width, inner])?,
            }
        } else {
            FeedForwardPart::Plain { up: linear("mlp.fc1", [inner, width])?, down: linear("mlp.fc2", [width, inner])? }
        };
        let (query, key) = (linear("self_attn.q_proj", [queries, width])?, linear("self_attn.k_proj", [keys, width])?);
        let (value, out) = (linear("self_attn.v_proj", [keys, width])?, linear("self_attn.o_proj", [width, queries])?);
        let mut factor = |part: &str| weights.tensor(&format!("{path}.{part}_layer_scale.scale"), &[width]);
        let factors = if spec.scaled { Some([factor("self_attn")?, factor("mlp")?]) } else { None };
        Ok(Self {
            norm: weights.norm(&format!("{path}.input_layernorm"), width, norm)?,
            feed_norm: weights.norm(&format!("{path}.post_attention_layernorm"), width, norm)?,
            query,
            key,
            value,
            out,
            feed,
            activation: spec.activation,
            factors,
            heads,
            kv_heads,
            head,
        })
    }

    /// `[moments, width]` → `[moments, width]`; keys and values of the moments are kept for those behind them.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        kept: &mut Option<[Tensor; 2]>,
        step: &CausalStep,
    ) -> CandleResult<Tensor> {
        let attended = self.attend(&self.norm.forward(x)?, kept, step)?;
        let x = (x + self.scaled(attended, 0)?)?;
        let normed = self.feed_norm.forward(&x)?;
        let fed = match &self.feed {
            FeedForwardPart::Gated { gate, up, down } => {
                let [gate, up] = Linear::forward_all([gate, up], &normed)?;
                down.forward(&self.activation.gated(&gate, &up)?)?
            }
            FeedForwardPart::Plain { up, down } => down.forward(&self.activation.in_place(up.forward(&normed)?)?)?,
        };
        x + self.scaled(fed, 1)?
    }

    fn scaled(&self, rows: Tensor, part: usize) -> CandleResult<Tensor> {
        match &self.factors {
            Some(factors) => rows.broadcast_mul(&factors[part]),
            None => Ok(rows),
        }
    }

    fn attend(&self, x: &Tensor, kept: &mut Option<[Tensor; 2]>, step: &CausalStep) -> CandleResult<Tensor> {
        let &Self { heads, kv_heads, head, .. } = self;
        let moments = x.dim(0)?;
        let [query, key, value] = Linear::forward_all([&self.query, &self.key, &self.value], x)?;
        let split = |rows: Tensor, heads| rows.reshape((moments, heads, head))?.transpose(0, 1)?.contiguous();
        let turned = |rows: Tensor| rope(&rows.unsqueeze(0)?, &step.cos, &step.sin)?.squeeze(0);
        let query = turned(split((query * (head as f64).powf(-0.5))?, heads)?)?;
        let (mut key, mut value) = (turned(split(key, kv_heads)?)?, split(value, kv_heads)?);
        if let Some([keys, values]) = kept.take() {
            (key, value) = (Tensor::cat(&[keys, key], 1)?, Tensor::cat(&[values, value], 1)?);
        }
        let keys = key.dim(1)?;
        let last = |rows: &Tensor| rows.narrow(1, keys - step.kept.min(keys), step.kept.min(keys));
        *kept = Some([last(&key)?, last(&value)?]);
        self.out.forward(&mixed(&query, &key, &value, step.mask.as_ref())?)
    }
}
