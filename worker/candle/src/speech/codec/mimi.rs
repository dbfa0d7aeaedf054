//! Mimi (Défossez et al., 2024, arXiv 2410.00037): frames of codes become samples. Every part sees the past alone, so
//! that frames are heard as they come.

use candle_core::{Device, Result as CandleResult, Tensor};

use super::codebooks::Codebooks;
use super::mimi_spec::MimiSpec;
use super::sea_net::{SeaMemory, SeaNet};
use crate::error::ModelError;
use crate::speech::causal::{CausalLayers, CausalMemory};
use crate::speech::convolution::{InputActivation, MomentsBefore, Upsampling};
use crate::speech::weights::{ConvolutionSizes, SpeechWeights};

/// The decoder of a codec.
pub(in crate::speech) struct Mimi {
    semantic: Codebooks,
    acoustic: Codebooks,
    /// None where a frame is one moment.
    up: Option<Upsampling>,
    layers: CausalLayers,
    sea_net: SeaNet,
    device: Device,
    codes: usize,
}

/// The state that frames leave for those behind them.
pub(in crate::speech) struct MimiMemory {
    up: MomentsBefore,
    layers: CausalMemory,
    sea_net: SeaMemory,
}

impl Mimi {
    /// Reads the decoder below a path.
    pub(in crate::speech) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        spec: &MimiSpec,
    ) -> Result<Self, ModelError> {
        let (semantic, hidden) = (spec.num_semantic_quantizers, spec.hidden_size);
        let mut books = |name: &str, count: usize| {
            let path = format!("{path}.quantizer.{name}_residual_vector_quantizer");
            let shape = (count, spec.codebook_size, spec.code_width());
            Codebooks::read(weights, &path, shape, (spec.vector_quantization_hidden_dimension, hidden))
        };
        let (semantic, acoustic) = (books("semantic", semantic)?, books("acoustic", spec.num_quantizers - semantic)?);
        let moments = spec.moments();
        let up = match moments {
            1 => None,
            _ => {
                let sizes = ConvolutionSizes { outs: hidden, ins: hidden, taps: 2 * moments, dilation: 1 };
                let path = format!("{path}.upsample.conv");
                Some(weights.causal_upsampling(&path, sizes, moments, spec.upsample_groups)?)
            }
        };
        let layers = CausalLayers::read(weights, &format!("{path}.decoder_transformer.layers"), &spec.layers()?)?;
        let sea_net = SeaNet::read(weights, &format!("{path}.decoder"), spec)?;
        let (device, codes) = (weights.device.clone(), spec.codebook_size);
        Ok(Self { semantic, acoustic, up, layers, sea_net, device, codes })
    }

    /// The memory of a part of which nothing has come.
    pub(in crate::speech) fn memory(&self) -> MimiMemory {
        let (layers, sea_net) = (self.layers.memory(), self.sea_net.memory());
        MimiMemory { up: MomentsBefore::default(), layers, sea_net }
    }

    /// The samples of the next frames, each a code of every codebook. Codes that no codebook has are errors.
    pub(in crate::speech) fn samples(&self, frames: &[Vec<u32>], memory: &mut MimiMemory) -> CandleResult<Vec<f32>> {
        let books = self.semantic.len() + self.acoustic.len();
        if frames.iter().any(|frame| frame.len() < books || frame.iter().any(|code| *code as usize >= self.codes)) {
            candle_core::bail!("a frame has codes that the codec does not have");
        }
        let of_book = |book: usize| {
            let codes: Vec<u32> = frames.iter().map(|frame| frame[book]).collect();
            Tensor::from_vec(codes, frames.len(), &self.device)
        };
        let codes = (0..books).map(of_book).collect::<CandleResult<Vec<_>>>()?;
        let (semantic, acoustic) = codes.split_at(self.semantic.len());
        let mut x = (self.semantic.vectors(semantic)? + self.acoustic.vectors(acoustic)?)?;
        if let Some(up) = &self.up {
            x = up.causal(&x, InputActivation::Nothing, &mut memory.up)?;
        }
        self.sea_net.samples(&self.layers.forward(&x, &mut memory.layers)?, &mut memory.sea_net)
    }
}
