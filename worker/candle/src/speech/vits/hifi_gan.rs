//! HiFi-GAN: from latents to samples, by convolutions that make several moments of each. Each sample is made of few
//! frames around its own, so a long sound is made in pieces, and the first one is heard early.

use candle_core::{Result as CandleResult, Tensor};

use super::spec::VitsSpec;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::speech::convolution::{InputActivation, TimeConvolution, Upsampling};
use crate::speech::weights::{ConvolutionSizes, SpeechWeights};

/// Taps of the first and the last convolution.
const TAPS: usize = 7;

/// PyTorch's own slope, which the last activation has.
const LAST_SLOPE: f32 = 0.01;

/// Frames of the first piece, and the most of a later one.
const FIRST_PIECE: usize = 32;
const LARGEST_PIECE: usize = 256;

/// The decoder with its weights.
pub(super) struct HifiGan {
    pre: TimeConvolution,
    speaker: Option<Linear>,
    stages: Vec<UpsamplingStage>,
    post: TimeConvolution,
    before: InputActivation,
    hop: usize,
    /// Frames on each side that have an effect on a frame's samples; none where pieces cannot be put together.
    reach: Option<usize>,
}

struct UpsamplingStage {
    upsampling: Upsampling,
    blocks: Vec<ResidualBlock>,
}

/// Pairs of convolutions, each with a way around.
struct ResidualBlock(Vec<[TimeConvolution; 2]>);

impl HifiGan {
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, spec: &VitsSpec) -> Result<Self, ModelError> {
        let first = spec.upsample_initial_channel;
        let sizes = ConvolutionSizes { outs: first, ins: spec.flow_size, taps: TAPS, dilation: 1 };
        let pre = weights.convolution("decoder.conv_pre", sizes)?;
        let speaker = spec.speaker().map(|size| weights.pointwise("decoder.cond", [first, size])).transpose()?;
        let mut stages = Vec::new();
        let kernels = spec.resblock_kernel_sizes.iter().zip(&spec.resblock_dilation_sizes);
        for (at, (rate, taps)) in spec.upsample_rates.iter().zip(&spec.upsample_kernel_sizes).enumerate() {
            let (ins, outs) = (first >> at, first >> (at + 1));
            let sizes = ConvolutionSizes { outs, ins, taps: *taps, dilation: 1 };
            let upsampling = weights.upsampling(&format!("decoder.upsampler.{at}"), sizes, *rate)?;
            let mut blocks = Vec::new();
            for (kernel, (taps, dilations)) in kernels.clone().enumerate() {
                let number = at * spec.resblock_kernel_sizes.len() + kernel;
                blocks.push(ResidualBlock::read(weights, number, outs, (*taps, dilations))?);
            }
            stages.push(UpsamplingStage { upsampling, blocks });
        }
        let last = first >> spec.upsample_rates.len();
        let sizes = ConvolutionSizes { outs: 1, ins: last, taps: TAPS, dilation: 1 };
        let post = weights.convolution("decoder.conv_post", sizes)?;
        let before = InputActivation::Leaky(spec.leaky_relu_slope);
        Ok(Self { pre, speaker, stages, post, before, hop: spec.hop(), reach: reach(spec) })
    }

    /// The samples of latents `[frames, width]`, piece by piece. Whether they were heard to the end: `go_on` may say no
    /// in between.
    pub(super) fn samples(
        &self,
        latents: &Tensor,
        speaker: Option<&Tensor>,
        hear: &mut dyn FnMut(&[f32]),
        go_on: &mut dyn FnMut() -> bool,
    ) -> CandleResult<bool> {
        let frames = latents.dim(0)?;
        let spoken = match self.speaker.as_ref().zip(speaker) {
            Some((by, speaker)) => Some(by.forward(speaker)?),
            None => None,
        };
        let Some(reach) = self.reach else {
            let Some(samples) = self.piece(latents, spoken.as_ref(), go_on)? else { return Ok(false) };
            hear(&samples);
            return Ok(true);
        };
        let (mut at, mut length) = (0, FIRST_PIECE);
        while at < frames {
            // A short rest would cost more around it than in it.
            let end = if frames - at < length + length / 2 { frames } else { at + length };
            let (from, to) = (at.saturating_sub(reach), frames.min(end + reach));
            let around = latents.narrow(0, from, to - from)?;
            let Some(samples) = self.piece(&around, spoken.as_ref(), go_on)? else { return Ok(false) };
            hear(&samples[(at - from) * self.hop..(end - from) * self.hop]);
            (at, length) = (end, (2 * length).min(LARGEST_PIECE));
        }
        Ok(true)
    }

    fn piece(
        &self,
        latents: &Tensor,
        spoken: Option<&Tensor>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> CandleResult<Option<Vec<f32>>> {
        let mut x = self.pre.same(latents, InputActivation::Nothing)?;
        if let Some(spoken) = spoken {
            x = x.broadcast_add(spoken)?;
        }
        for stage in &self.stages {
            x = stage.upsampling.forward(&x, self.before)?;
            let mut sum: Option<Tensor> = None;
            for block in &stage.blocks {
                let Some(passed) = block.forward(&x, self.before, go_on)? else { return Ok(None) };
                sum = Some(match sum {
                    Some(sum) => (sum + passed)?,
                    None => passed,
                });
            }
            if let Some(sum) = sum {
                x = (sum / stage.blocks.len() as f64)?;
            }
        }
        let samples = self.post.same(&x, InputActivation::Leaky(LAST_SLOPE))?.tanh()?;
        samples.flatten_all()?.to_vec1().map(Some)
    }
}

impl ResidualBlock {
    fn read(
        weights: &mut SpeechWeights<'_, '_>,
        number: usize,
        width: usize,
        (taps, dilations): (usize, &[usize]),
    ) -> Result<Self, ModelError> {
        let mut pairs = Vec::new();
        for (at, dilation) in dilations.iter().enumerate() {
            let mut read = |part: &str, dilation| {
                let sizes = ConvolutionSizes { outs: width, ins: width, taps, dilation };
                weights.convolution(&format!("decoder.resblocks.{number}.{part}.{at}"), sizes)
            };
            pairs.push([read("convs1", *dilation)?, read("convs2", 1)?]);
        }
        Ok(Self(pairs))
    }

    fn forward(
        &self,
        x: &Tensor,
        before: InputActivation,
        go_on: &mut dyn FnMut() -> bool,
    ) -> CandleResult<Option<Tensor>> {
        let mut x = x.clone();
        for [first, second] in &self.0 {
            if !go_on() {
                return Ok(None);
            }
            let inner = second.same(&first.same(&x, before)?, before)?;
            x = (inner + x)?;
        }
        Ok(Some(x))
    }
}

/// Frames on each side of a frame that have an effect on its samples. None where a stage makes a sample more than its
/// rate says, so that samples of pieces have other places.
fn reach(spec: &VitsSpec) -> Option<usize> {
    let stages = spec.upsample_rates.iter().zip(&spec.upsample_kernel_sizes);
    if stages.clone().any(|(rate, taps)| (taps - rate) % 2 == 1) {
        return None;
    }
    let of_block = |(taps, dilations): (&usize, &Vec<usize>)| -> usize {
        dilations.iter().map(|dilation| (taps - 1) / 2 * (dilation + 1)).sum()
    };
    let blocks = spec.resblock_kernel_sizes.iter().zip(&spec.resblock_dilation_sizes).map(of_block).max().unwrap_or(0);
    // From the samples back to the frames.
    let of_samples = stages.rev().fold(TAPS / 2, |reach, (rate, taps)| (reach + blocks + taps).div_ceil(*rate) + 1);
    Some(of_samples + TAPS / 2)
}
