//! One layer of the decoder: attention to the moments before, attention to the description, and a feed-forward part,
//! each added to the stream.

use candle_core::{Result as CandleResult, Tensor};
use candle_nn::rotary_emb::rope;

use super::parler_spec::ParlerDecoderSpec;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::spec::Activation;
use crate::speech::causal::mixed;
use crate::speech::weights::SpeechWeights;

/// Keys and values, `[heads, moments, head]` each.
pub(super) type KeysAndValues = [Tensor; 2];

/// A layer with its weights.
pub(super) struct DescribedLayer {
    own: AttentionPart,
    described: AttentionPart,
    feed_norm: Norm,
    up: Linear,
    down: Linear,
    activation: Activation,
}

struct AttentionPart {
    norm: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    heads: usize,
    kv_heads: usize,
    head: usize,
}

/// The parts of a step that layers share.
pub(super) struct DescribedStep {
    /// The angles of the moments, `[moments, planes]` each; none of a model whose rows have sines of their places.
    pub(super) angles: Option<[Tensor; 2]>,
    /// The numbers that are added to scores of moments, `[moments, keys]`; none where each sees all.
    pub(super) mask: Option<Tensor>,
}

impl DescribedLayer {
    pub(super) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        spec: &ParlerDecoderSpec,
    ) -> Result<Self, ModelError> {
        let (width, inner) = (spec.width, spec.ffn_dim);
        Ok(Self {
            own: AttentionPart::read(weights, path, "self_attn", (spec, spec.kv_heads()))?,
            described: AttentionPart::read(weights, path, "encoder_attn", (spec, spec.cross_kv_heads()))?,
            feed_norm: weights.norm(&format!("{path}.final_layer_norm"), width, spec.norm())?,
            up: weights.product(&format!("{path}.fc1"), [inner, width])?,
            down: weights.product(&format!("{path}.fc2"), [width, inner])?,
            activation: spec.activation()?,
        })
    }

    /// The keys and values of a description's rows.
    pub(super) fn described(&self, states: &Tensor) -> CandleResult<KeysAndValues> {
        let part = &self.described;
        let [key, value] = Linear::forward_all([&part.key, &part.value], states)?;
        Ok([part.split(key, part.kv_heads)?, part.split(value, part.kv_heads)?])
    }

    /// `[moments, width]` → `[moments, width]`; keys and values of the moments are kept for those behind them.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        kept: &mut Option<KeysAndValues>,
        description: &KeysAndValues,
        step: &DescribedStep,
    ) -> CandleResult<Tensor> {
        let x = (x + self.own.attend_to_before(x, kept, step)?)?;
        let x = (&x + self.described.attend(&x, description, step)?)?;
        let inner = self.activation.in_place(self.up.forward(&self.feed_norm.forward(&x)?)?)?;
        x + self.down.forward(&inner)?
    }
}

impl AttentionPart {
    fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        name: &str,
        (spec, kv_heads): (&ParlerDecoderSpec, usize),
    ) -> Result<Self, ModelError> {
        let (width, heads, head) = (spec.width, spec.heads, spec.width / spec.heads);
        let norm = weights.norm(&format!("{path}.{name}_layer_norm"), width, spec.norm())?;
        let mut product = |part: &str, outs| weights.product(&format!("{path}.{name}.{part}"), [outs, width]);
        let (query, key) = (product("q_proj", width)?, product("k_proj", kv_heads * head)?);
        let (value, out) = (product("v_proj", kv_heads * head)?, product("out_proj", width)?);
        Ok(Self { norm, query, key, value, out, heads, kv_heads, head })
    }

    fn split(&self, rows: Tensor, heads: usize) -> CandleResult<Tensor> {
        rows.reshape((rows.dim(0)?, heads, self.head))?.transpose(0, 1)?.contiguous()
    }

    fn queries(&self, rows: Tensor, step: &DescribedStep) -> CandleResult<Tensor> {
        turned(self.split((rows * (self.head as f64).powf(-0.5))?, self.heads)?, step)
    }

    fn attend_to_before(
        &self,
        x: &Tensor,
        kept: &mut Option<KeysAndValues>,
        step: &DescribedStep,
    ) -> CandleResult<Tensor> {
        let x = self.norm.forward(x)?;
        let [query, key, value] = Linear::forward_all([&self.query, &self.key, &self.value], &x)?;
        let query = self.queries(query, step)?;
        let (mut key, mut value) = (turned(self.split(key, self.kv_heads)?, step)?, self.split(value, self.kv_heads)?);
        if let Some([keys, values]) = kept.take() {
            (key, value) = (Tensor::cat(&[keys, key], 1)?, Tensor::cat(&[values, value], 1)?);
        }
        let mixed = mixed(&query, &key, &value, step.mask.as_ref())?;
        *kept = Some([key, value]);
        self.out.forward(&mixed)
    }

    /// As in the reference, queries are turned by their places here too, and the description's keys are not.
    fn attend(&self, x: &Tensor, [key, value]: &KeysAndValues, step: &DescribedStep) -> CandleResult<Tensor> {
        let query = self.queries(self.query.forward(&self.norm.forward(x)?)?, step)?;
        self.out.forward(&mixed(&query, key, value, None)?)
    }
}

fn turned(rows: Tensor, step: &DescribedStep) -> CandleResult<Tensor> {
    match &step.angles {
        Some([cos, sin]) => rope(&rows.unsqueeze(0)?, cos, sin)?.squeeze(0),
        None => Ok(rows),
    }
}
