//! The flow from what a text sounds like to latents of sound: pairs of halves, of which one changes the other (Dinh et
//! al., 2017, arXiv 1605.08803), by a shift alone.

use candle_core::{Device, Result as CandleResult, Tensor};

use super::spec::VitsSpec;
use super::wavenet::WaveNet;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::speech::weights::SpeechWeights;

/// The flow with its weights.
pub(super) struct CouplingFlow {
    layers: Vec<CouplingLayer>,
    /// The numbers of a frame from the last to the first.
    turned: Tensor,
    half: usize,
}

struct CouplingLayer {
    pre: Linear,
    wavenet: WaveNet,
    post: Linear,
}

impl CouplingFlow {
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, spec: &VitsSpec) -> Result<Self, ModelError> {
        let (half, width) = (spec.flow_size / 2, spec.hidden_size);
        let mut layers = Vec::new();
        for at in 0..spec.prior_encoder_num_flows {
            let path = format!("flow.flows.{at}");
            layers.push(CouplingLayer {
                pre: weights.pointwise(&format!("{path}.conv_pre"), [width, half])?,
                wavenet: WaveNet::read(weights, &format!("{path}.wavenet"), spec)?,
                post: weights.pointwise(&format!("{path}.conv_post"), [half, width])?,
            });
        }
        let turned: Vec<u32> = (0..spec.flow_size as u32).rev().collect();
        let device: &Device = weights.device;
        let turned = weights.made(Tensor::from_vec(turned, spec.flow_size, device))?;
        Ok(Self { layers, turned, half })
    }

    /// Takes latents of a text `[frames, width]` to those of sound. None if `go_on` says no in between.
    pub(super) fn invert(
        &self,
        latents: Tensor,
        speaker: Option<&Tensor>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> CandleResult<Option<Tensor>> {
        let mut x = latents;
        for layer in self.layers.iter().rev() {
            if !go_on() {
                return Ok(None);
            }
            x = x.index_select(&self.turned, 1)?;
            let (first, second) = (x.narrow(1, 0, self.half)?.contiguous()?, x.narrow(1, self.half, self.half)?);
            let shift = layer.post.forward(&layer.wavenet.forward(&layer.pre.forward(&first)?, speaker)?)?;
            x = Tensor::cat(&[&first, &(second - shift)?], 1)?;
        }
        Ok(Some(x))
    }
}
