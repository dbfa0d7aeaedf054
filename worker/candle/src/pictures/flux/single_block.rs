//! A block of one stream: attention and the products of each row side by side.

use candle_core::{Result, Tensor};

use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::pictures::layers::PlaneWeights;
use crate::pictures::streams::{Modulation, StreamAttention, StreamBlockSpec, StreamNames, StreamSight};
use crate::spec::Activation;
use crate::speech::weights::SpeechWeights;

/// A block with its weights.
pub(super) struct SingleBlock {
    change: Modulation,
    attention: StreamAttention,
    up: Linear,
    /// Of the rows behind attention, and those behind the activation.
    down: Linear,
}

impl SingleBlock {
    pub(super) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        spec: StreamBlockSpec,
    ) -> std::result::Result<Self, ModelError> {
        let StreamBlockSpec { width, heads, has_norms, .. } = spec;
        let names = StreamNames::IMAGE.without_out();
        Ok(Self {
            change: Modulation::read(weights, &format!("{path}.norm.linear"), [3, width])?,
            attention: StreamAttention::read(weights, (&format!("{path}.attn"), names), [width, heads], has_norms)?,
            up: weights.panels(&format!("{path}.proj_mlp"), [4 * width, width])?,
            down: weights.panels(&format!("{path}.proj_out"), [width, 5 * width])?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor, conditions: &Tensor, sight: &StreamSight<'_>) -> Result<Tensor> {
        let change = self.change.forward(conditions)?;
        let normed = change.normed(x, [0, 1])?;
        let mixed = sight.attend(self.attention.before(&normed)?)?;
        let inner = Activation::GeluTanh.in_place(self.up.forward(&normed)?)?;
        change.gated(x, self.down.forward(&Tensor::cat(&[mixed, inner], 1)?)?, 2)
    }
}
