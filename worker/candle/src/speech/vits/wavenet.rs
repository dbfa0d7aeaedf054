//! Gated convolutions with a way around each (van den Oord et al., 2016, arXiv 1609.03499).

use candle_core::{Result as CandleResult, Tensor};

use super::spec::VitsSpec;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::speech::convolution::{InputActivation, TimeConvolution};
use crate::speech::weights::{ConvolutionSizes, SpeechWeights};

/// The layers.
pub(super) struct WaveNet {
    layers: Vec<(TimeConvolution, Linear)>,
    speaker: Option<Linear>,
    width: usize,
}

impl WaveNet {
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, path: &str, spec: &VitsSpec) -> Result<Self, ModelError> {
        let (width, count) = (spec.hidden_size, spec.prior_encoder_num_wavenet_layers);
        let shape = |size| [2 * width * count, size];
        let speaker = spec.speaker().map(|size| weights.pointwise(&format!("{path}.cond_layer"), shape(size)));
        let (mut layers, mut dilation) = (Vec::new(), 1);
        for at in 0..count {
            let sizes = ConvolutionSizes { outs: 2 * width, ins: width, taps: spec.wavenet_kernel_size, dilation };
            let convolution = weights.convolution(&format!("{path}.in_layers.{at}"), sizes)?;
            let outs = if at + 1 < count { 2 * width } else { width };
            layers.push((convolution, weights.pointwise(&format!("{path}.res_skip_layers.{at}"), [outs, width])?));
            dilation *= spec.wavenet_dilation_rate;
        }
        Ok(Self { layers, speaker: speaker.transpose()?, width })
    }

    /// `[frames, width]` → `[frames, width]`. `speaker` is `[1, width]`.
    pub(super) fn forward(&self, x: &Tensor, speaker: Option<&Tensor>) -> CandleResult<Tensor> {
        let spoken = match self.speaker.as_ref().zip(speaker) {
            Some((by, speaker)) => Some(by.forward(speaker)?),
            None => None,
        };
        let (mut x, mut sum) = (x.clone(), None);
        for (at, (convolution, pointwise)) in self.layers.iter().enumerate() {
            let mut inner = convolution.same(&x, InputActivation::Nothing)?;
            if let Some(spoken) = &spoken {
                inner = inner.broadcast_add(&spoken.narrow(1, at * 2 * self.width, 2 * self.width)?)?;
            }
            let open = candle_nn::ops::sigmoid(&inner.narrow(1, self.width, self.width)?.contiguous()?)?;
            let gated = (inner.narrow(1, 0, self.width)?.contiguous()?.tanh()? * open)?;
            let mut skipped = pointwise.forward(&gated)?;
            if at + 1 < self.layers.len() {
                x = (x + skipped.narrow(1, 0, self.width)?)?;
                skipped = skipped.narrow(1, self.width, self.width)?.contiguous()?;
            }
            sum = Some(match sum {
                Some(sum) => (sum + skipped)?,
                None => skipped,
            });
        }
        sum.ok_or_else(|| candle_core::Error::msg("a WaveNet has no layer"))
    }
}
