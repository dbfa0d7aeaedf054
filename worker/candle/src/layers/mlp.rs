//! The gated feed-forward part (Shazeer, 2020, arXiv 2002.05202): `down(act(gate(x)) * up(x))`. Knows rows, not
//! sequences.

use candle_core::{Result, Tensor};

use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::spec::tensors;
use crate::spec::{Activation, DecoderSpec};

pub(crate) struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Mlp {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &DecoderSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        let mut linear = |part: &str| Linear::read(parts, &tensors::layer(index, part), spec.mlp_bias.into());
        Ok(Self {
            gate: linear("mlp.gate_proj")?,
            up: linear("mlp.up_proj")?,
            down: linear("mlp.down_proj")?,
            activation: spec.activation,
        })
    }

    /// `[rows, hidden]` → `[rows, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [gate, up] = Linear::forward_all([&self.gate, &self.up], x)?;
        self.down.forward(&self.activation.gated(&gate, &up)?)
    }
}
