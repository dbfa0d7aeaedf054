//! The encoder and the decoder with their weights.

use candle_core::{Device, Result as CandleResult};

use super::vae_blocks::{BlockEnd, EPS, VaeBlock, VaeMiddle};
use super::vae_spec::VaeSpec;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::pictures::layers::{AfterNorm, Border, PlaneConv, PlaneNorm, PlaneWeights, Planes};
use crate::speech::weights::SpeechWeights;

/// An autoencoder.
pub(in crate::pictures) struct Autoencoder {
    spec: VaeSpec,
    encoder: Coder,
    decoder: Coder,
    quant: Option<Linear>,
    post_quant: Option<Linear>,
    device: Device,
}

/// One of the two, of which the encoder has its middle at the end, and the decoder at the beginning.
struct Coder {
    first: PlaneConv,
    blocks: Vec<VaeBlock>,
    middle: VaeMiddle,
    norm: PlaneNorm,
    last: PlaneConv,
}

/// The latent pictures that a picture may become: normal around a mean. Numbers lie channel by channel.
pub(in crate::pictures) struct Posterior {
    mean: Vec<f32>,
    deviation: Vec<f32>,
}

impl Posterior {
    /// One of them.
    pub(in crate::pictures) fn with(&self, noise: &[f32]) -> Vec<f32> {
        let all = self.mean.iter().zip(&self.deviation).zip(noise);
        all.map(|((mean, deviation), noise)| mean + deviation * noise).collect()
    }

    /// The numbers of a latent picture.
    pub(in crate::pictures) fn len(&self) -> usize {
        self.mean.len()
    }
}

impl Autoencoder {
    pub(in crate::pictures) fn read(weights: &mut SpeechWeights<'_, '_>, spec: &VaeSpec) -> Result<Self, ModelError> {
        let latent = spec.latent_channels;
        Ok(Self {
            encoder: Coder::encoder(weights, spec)?,
            decoder: Coder::decoder(weights, spec)?,
            quant: match spec.has_quant {
                true => Some(weights.pixel_product("quant_conv", [2 * latent, 2 * latent])?),
                false => None,
            },
            post_quant: match spec.has_post_quant {
                true => Some(weights.pixel_product("post_quant_conv", [latent, latent])?),
                false => None,
            },
            spec: spec.clone(),
            device: weights.device.clone(),
        })
    }

    pub(in crate::pictures) fn spec(&self) -> &VaeSpec {
        &self.spec
    }

    /// Encodes one picture, whose numbers are between -1 and 1 and lie channel by channel.
    pub(in crate::pictures) fn encode(&self, picture: &[f32], [height, width]: [usize; 2]) -> CandleResult<Posterior> {
        let x = Planes::of_channels(picture, [1, 3, height, width], &self.device)?;
        let mut x = self.encoder.forward(&x)?;
        if let Some(quant) = &self.quant {
            x = x.with(quant.forward(&x.rows)?);
        }
        let mut mean = x.to_channels()?;
        let half = mean.len() / 2;
        let deviation = mean.split_off(half).iter().map(|log| (0.5 * log.clamp(-30.0, 20.0)).exp()).collect();
        Ok(Posterior { mean, deviation })
    }

    /// Decodes latent pictures to numbers around -1 to 1, channel by channel.
    pub(in crate::pictures) fn decode(&self, latents: &[f32], [height, width]: [usize; 2]) -> CandleResult<Vec<f32>> {
        let one = self.spec.latent_channels * height * width;
        let mut all = Vec::new();
        // One after the other: activations are much larger than those of other parts.
        for latent in latents.chunks_exact(one) {
            let shape = [1, self.spec.latent_channels, height, width];
            let mut x = Planes::of_channels(latent, shape, &self.device)?;
            if let Some(product) = &self.post_quant {
                x = x.with(product.forward(&x.rows)?);
            }
            all.extend(self.decoder.forward_from_middle(&x)?.to_channels()?);
        }
        Ok(all)
    }
}

impl Coder {
    fn encoder(weights: &mut SpeechWeights<'_, '_>, spec: &VaeSpec) -> Result<Self, ModelError> {
        let (widths, count) = (&spec.widths, spec.widths.len());
        let widest = widths[count - 1];
        let block = |at: usize, weights: &mut SpeechWeights<'_, '_>| {
            let end = if at + 1 == count { BlockEnd::Same } else { BlockEnd::Half };
            let sizes = [widths[at.saturating_sub(1)], widths[at]];
            VaeBlock::read(weights, &format!("encoder.down_blocks.{at}"), (spec, spec.layers), (sizes, end))
        };
        let plain = (1, Border::ONE);
        Ok(Self {
            first: weights.plane_conv("encoder.conv_in", [widths[0], 3, 3], plain)?,
            blocks: (0..count).map(|at| block(at, weights)).collect::<Result<_, _>>()?,
            middle: VaeMiddle::read(weights, "encoder.mid_block", spec, widest)?,
            norm: weights.plane_norm("encoder.conv_norm_out", widest, (spec.groups, EPS))?,
            last: weights.plane_conv("encoder.conv_out", [2 * spec.latent_channels, widest, 3], plain)?,
        })
    }

    fn decoder(weights: &mut SpeechWeights<'_, '_>, spec: &VaeSpec) -> Result<Self, ModelError> {
        let widths: Vec<usize> = spec.widths.iter().rev().copied().collect();
        let count = widths.len();
        let block = |at: usize, weights: &mut SpeechWeights<'_, '_>| {
            let end = if at + 1 == count { BlockEnd::Same } else { BlockEnd::Double };
            let sizes = [widths[at.saturating_sub(1)], widths[at]];
            VaeBlock::read(weights, &format!("decoder.up_blocks.{at}"), (spec, spec.layers + 1), (sizes, end))
        };
        let plain = (1, Border::ONE);
        let last = widths[count - 1];
        Ok(Self {
            first: weights.plane_conv("decoder.conv_in", [widths[0], spec.latent_channels, 3], plain)?,
            middle: VaeMiddle::read(weights, "decoder.mid_block", spec, widths[0])?,
            blocks: (0..count).map(|at| block(at, weights)).collect::<Result<_, _>>()?,
            norm: weights.plane_norm("decoder.conv_norm_out", last, (spec.groups, EPS))?,
            last: weights.plane_conv("decoder.conv_out", [3, last, 3], plain)?,
        })
    }

    fn forward(&self, x: &Planes) -> CandleResult<Planes> {
        let mut x = self.first.forward(x)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.ended(&self.middle.forward(&x)?)
    }

    fn forward_from_middle(&self, x: &Planes) -> CandleResult<Planes> {
        let mut x = self.middle.forward(&self.first.forward(x)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.ended(&x)
    }

    fn ended(&self, x: &Planes) -> CandleResult<Planes> {
        self.last.forward(&self.norm.forward(x, AfterNorm::Silu)?)
    }
}
