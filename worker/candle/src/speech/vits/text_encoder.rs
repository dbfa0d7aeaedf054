//! The encoder of texts: from symbols to what they sound like, as means and spreads of latents.

use candle_core::{Device, Result as CandleResult, Tensor};

use super::attention::{Distances, RelativeAttention};
use super::spec::VitsSpec;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::spec::Activation;
use crate::speech::convolution::{InputActivation, TimeConvolution};
use crate::speech::weights::{ConvolutionSizes, SpeechWeights};

/// The encoder with its weights.
pub(super) struct TextEncoderLayers {
    words: Tensor,
    layers: Vec<TextEncoderLayer>,
    project: Linear,
    width: usize,
    window: usize,
    device: Device,
}

struct TextEncoderLayer {
    attention: RelativeAttention,
    attention_norm: Norm,
    up: TimeConvolution,
    down: TimeConvolution,
    activation: Activation,
    norm: Norm,
    /// Silence on both sides of the convolutions.
    padding: (usize, usize),
}

/// A text that was encoded. All are `[symbols, …]`.
pub(super) struct EncodedText {
    /// The input of the durations' model.
    pub(super) states: Tensor,
    pub(super) means: Tensor,
    /// Logarithms of the spreads.
    pub(super) spreads: Tensor,
}

impl TextEncoderLayers {
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, spec: &VitsSpec) -> Result<Self, ModelError> {
        let width = spec.hidden_size;
        let words = weights.tensor("text_encoder.embed_tokens.weight", &[spec.vocab_size, width])?;
        let words = weights.made(words * (width as f64).sqrt())?;
        let layer = |at| TextEncoderLayer::read(weights, &format!("text_encoder.encoder.layers.{at}"), spec);
        let layers = (0..spec.num_hidden_layers).map(layer).collect::<Result<Vec<_>, _>>()?;
        let project = weights.pointwise("text_encoder.project", [2 * spec.flow_size, width])?;
        let window = spec.window().unwrap_or(0);
        Ok(Self { words, layers, project, width: spec.flow_size, window, device: weights.device.clone() })
    }

    /// The number of layers.
    pub(super) fn len(&self) -> usize {
        self.layers.len()
    }

    /// Encodes symbols of the vocabulary, of which there is at least one.
    pub(super) fn forward(&self, symbols: &[u32]) -> CandleResult<EncodedText> {
        let distances = Distances::new(symbols.len(), self.window, &self.device)?;
        let mut x = self.words.index_select(&Tensor::new(symbols, &self.device)?, 0)?;
        for layer in &self.layers {
            x = layer.forward(&x, &distances)?;
        }
        let stats = self.project.forward(&x)?;
        Ok(EncodedText {
            states: x,
            means: stats.narrow(1, 0, self.width)?.contiguous()?,
            spreads: stats.narrow(1, self.width, self.width)?.contiguous()?,
        })
    }
}

impl TextEncoderLayer {
    fn read(weights: &mut SpeechWeights<'_, '_>, path: &str, spec: &VitsSpec) -> Result<Self, ModelError> {
        let (width, inner, taps) = (spec.hidden_size, spec.ffn_dim, spec.ffn_kernel_size);
        Ok(Self {
            attention: RelativeAttention::read(weights, &format!("{path}.attention"), spec)?,
            attention_norm: weights.norm(&format!("{path}.layer_norm"), width, spec.norm())?,
            up: weights.convolution(
                &format!("{path}.feed_forward.conv_1"),
                ConvolutionSizes { outs: inner, ins: width, taps, dilation: 1 },
            )?,
            down: weights.convolution(
                &format!("{path}.feed_forward.conv_2"),
                ConvolutionSizes { outs: width, ins: inner, taps, dilation: 1 },
            )?,
            activation: spec.activation()?,
            norm: weights.norm(&format!("{path}.final_layer_norm"), width, spec.norm())?,
            padding: ((taps - 1) / 2, taps / 2),
        })
    }

    fn forward(&self, x: &Tensor, distances: &Distances) -> CandleResult<Tensor> {
        let x = self.attention_norm.forward(&(x + self.attention.forward(x, distances)?)?)?;
        let inner = self.up.padded(&x, InputActivation::Nothing, self.padding)?;
        let inner = self.activation.in_place(inner)?;
        let inner = self.down.padded(&inner, InputActivation::Nothing, self.padding)?;
        self.norm.forward(&(x + inner)?)
    }
}
