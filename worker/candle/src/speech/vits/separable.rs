//! Convolutions of each number by itself, and then of each moment, the next layer's reaching farther.

use candle_core::{Result as CandleResult, Tensor};

use super::spec::VitsSpec;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::spec::{Activation, NormKind, NormSpec};
use crate::speech::weights::SpeechWeights;

/// The norms here have PyTorch's own epsilon, whatever the configuration says.
const NORM: NormSpec = NormSpec { kind: NormKind::LayerWithBias, eps: 1e-5 };

/// The layers.
pub(super) struct SeparableLayers(Vec<SeparableLayer>);

struct SeparableLayer {
    /// `[taps, width]`
    weight: Tensor,
    bias: Tensor,
    dilation: usize,
    first_norm: Norm,
    pointwise: Linear,
    second_norm: Norm,
}

impl SeparableLayers {
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, path: &str, spec: &VitsSpec) -> Result<Self, ModelError> {
        let (width, taps) = (spec.hidden_size, spec.duration_predictor_kernel_size);
        let (mut layers, mut dilation) = (Vec::new(), 1);
        for at in 0..spec.depth_separable_num_layers {
            let [weight, bias] = weights.by_number(&format!("{path}.convs_dilated.{at}"), width, taps)?;
            layers.push(SeparableLayer {
                weight,
                bias,
                dilation,
                first_norm: weights.norm(&format!("{path}.norms_1.{at}"), width, NORM)?,
                pointwise: weights.pointwise(&format!("{path}.convs_pointwise.{at}"), [width; 2])?,
                second_norm: weights.norm(&format!("{path}.norms_2.{at}"), width, NORM)?,
            });
            dilation *= taps;
        }
        Ok(Self(layers))
    }

    /// `[moments, width]` → `[moments, width]`.
    pub(super) fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        let mut x = x.clone();
        for layer in &self.0 {
            let inner = Activation::GeluErf.in_place(layer.first_norm.forward(&layer.convolved(&x)?)?)?;
            let inner = layer.second_norm.forward(&layer.pointwise.forward(&inner)?)?;
            x = (x + Activation::GeluErf.in_place(inner)?)?;
        }
        Ok(x)
    }
}

impl SeparableLayer {
    fn convolved(&self, x: &Tensor) -> CandleResult<Tensor> {
        let (moments, taps) = (x.dim(0)?, self.weight.dim(0)?);
        let reach = (taps - 1) * self.dilation / 2;
        let x = x.pad_with_zeros(0, reach, reach)?;
        let mut sum = self.bias.unsqueeze(0)?.broadcast_as((moments, self.bias.dim(0)?))?.contiguous()?;
        for tap in 0..taps {
            let weight = self.weight.narrow(0, tap, 1)?;
            sum = (sum + x.narrow(0, tap * self.dilation, moments)?.broadcast_mul(&weight)?)?;
        }
        Ok(sum)
    }
}
