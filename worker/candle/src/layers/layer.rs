//! One transformer layer: attention and feed-forward, each behind a norm, each added to the stream. Immutable.

use candle_core::{Result, Tensor};

use crate::error::ModelError;
use crate::layers::attention::Attention;
use crate::layers::kv::LayerKv;
use crate::layers::mlp::Mlp;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::RmsNorm;
use crate::layers::step::StepContext;
use crate::spec::DecoderSpec;
use crate::spec::tensors;

pub(crate) struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl Layer {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &DecoderSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        let mut norm = |part: &str| RmsNorm::read(parts, &tensors::layer(index, part), spec.norm_eps);
        let attention_norm = norm("input_layernorm.weight")?;
        let mlp_norm = norm("post_attention_layernorm.weight")?;
        let attention = Attention::read(parts, spec, index)?;
        let mlp = Mlp::read(parts, spec, index)?;
        Ok(Self { attention_norm, attention, mlp_norm, mlp })
    }

    /// `[rows, hidden]` → `[rows, hidden]`; `kv` has this layer's part of every sequence of the step.
    pub(crate) fn forward(&self, x: &Tensor, kv: Vec<LayerKv<'_>>, step: &StepContext) -> Result<Tensor> {
        let x = (x + self.attention.forward(&self.attention_norm.forward(x)?, kv, step)?)?;
        &x + self.mlp.forward(&self.mlp_norm.forward(&x)?)?
    }
}
