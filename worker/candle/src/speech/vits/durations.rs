//! How long each symbol is heard: by a flow from noise, or by two convolutions.

use candle_core::{Result as CandleResult, Tensor};
use model_boss_engine::TorchGenerator;

use super::separable::SeparableLayers;
use super::spec::VitsSpec;
use super::spline;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::spec::Activation;
use crate::speech::convolution::{InputActivation, TimeConvolution};
use crate::speech::weights::{ConvolutionSizes, SpeechWeights};

const PATH: &str = "duration_predictor";

/// The predictor of durations.
pub(super) enum Durations {
    Drawn(Box<DrawnDurations>),
    Plain(Box<PlainDurations>),
}

/// Durations that are drawn: noise goes through flows that see the text.
pub(super) struct DrawnDurations {
    pre: Linear,
    separable: SeparableLayers,
    project: Linear,
    speaker: Option<Linear>,
    /// The shift and the logarithm of the scale of both numbers.
    affine: [[f32; 2]; 2],
    /// In the order of the files; the first is not used when durations are drawn.
    flows: Vec<SplineFlow>,
    noise: f32,
}

/// A flow that changes one number of a symbol by what the other one and the text are.
struct SplineFlow {
    pre: Linear,
    separable: SeparableLayers,
    project: Linear,
    bins: usize,
    bound: f32,
    /// The square root of the width, by which widths and heights are divided.
    root: f32,
}

/// Durations by two convolutions.
pub(super) struct PlainDurations {
    convolutions: [TimeConvolution; 2],
    norms: [Norm; 2],
    project: Linear,
    speaker: Option<Linear>,
}

impl Durations {
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, spec: &VitsSpec) -> Result<Self, ModelError> {
        Ok(match spec.use_stochastic_duration_prediction {
            true => Self::Drawn(Box::new(DrawnDurations::read(weights, spec)?)),
            false => Self::Plain(Box::new(PlainDurations::read(weights, spec)?)),
        })
    }

    /// The logarithms of durations in frames. `speaker` is `[1, width]`.
    pub(super) fn logarithms(
        &self,
        states: &Tensor,
        speaker: Option<&Tensor>,
        random: &mut TorchGenerator,
    ) -> CandleResult<Vec<f32>> {
        match self {
            Self::Drawn(drawn) => drawn.logarithms(states, speaker, random),
            Self::Plain(plain) => plain.logarithms(states, speaker),
        }
    }
}

/// Adds what a speaker means to each row.
fn spoken_by(x: Tensor, by: Option<&Linear>, speaker: Option<&Tensor>) -> CandleResult<Tensor> {
    match by.zip(speaker) {
        Some((by, speaker)) => x.broadcast_add(&by.forward(speaker)?),
        None => Ok(x),
    }
}

impl DrawnDurations {
    fn read(weights: &mut SpeechWeights<'_, '_>, spec: &VitsSpec) -> Result<Self, ModelError> {
        let width = spec.hidden_size;
        let speaker = spec.speaker().map(|size| weights.pointwise(&format!("{PATH}.cond"), [width, size]));
        let mut pair = |name: &str| -> Result<[f32; 2], ModelError> {
            let tensor = weights.tensor(&format!("{PATH}.flows.0.{name}"), &[2, 1])?;
            let numbers = tensor.flatten_all().and_then(|numbers| numbers.to_vec1::<f32>());
            let numbers = numbers.map_err(|error| ModelError::Device(crate::device::failure(&error)))?;
            Ok([numbers[0], numbers[1]])
        };
        let affine = [pair("translate")?, pair("log_scale")?];
        let flow = |at| SplineFlow::read(weights, &format!("{PATH}.flows.{at}"), spec);
        Ok(Self {
            speaker: speaker.transpose()?,
            affine,
            flows: (1..=spec.duration_predictor_num_flows).map(flow).collect::<Result<_, _>>()?,
            pre: weights.pointwise(&format!("{PATH}.conv_pre"), [width; 2])?,
            separable: SeparableLayers::read(weights, &format!("{PATH}.conv_dds"), spec)?,
            project: weights.pointwise(&format!("{PATH}.conv_proj"), [width; 2])?,
            noise: spec.noise_scale_duration,
        })
    }

    fn logarithms(
        &self,
        states: &Tensor,
        speaker: Option<&Tensor>,
        random: &mut TorchGenerator,
    ) -> CandleResult<Vec<f32>> {
        let seen = spoken_by(self.pre.forward(states)?, self.speaker.as_ref(), speaker)?;
        let seen = self.project.forward(&self.separable.forward(&seen)?)?;
        let symbols = states.dim(0)?;
        let mut first: Vec<f32> = random.normals(2 * symbols).into_iter().map(|noise| noise * self.noise).collect();
        let mut second = first.split_off(symbols);
        // The flow of the file that is next to the first one changes what is thrown away.
        for flow in self.flows.iter().skip(1).rev() {
            std::mem::swap(&mut first, &mut second);
            flow.invert(&first, &mut second, &seen)?;
        }
        // The first of both numbers, turned over once more.
        let [[shift, _], [scale, _]] = self.affine;
        Ok(second.into_iter().map(|number| (number - shift) * (-scale).exp()).collect())
    }
}

impl SplineFlow {
    fn read(weights: &mut SpeechWeights<'_, '_>, path: &str, spec: &VitsSpec) -> Result<Self, ModelError> {
        let (width, bins) = (spec.hidden_size, spec.duration_predictor_flow_bins);
        Ok(Self {
            pre: weights.pointwise(&format!("{path}.conv_pre"), [width, 1])?,
            separable: SeparableLayers::read(weights, &format!("{path}.conv_dds"), spec)?,
            project: weights.pointwise(&format!("{path}.conv_proj"), [3 * bins - 1, width])?,
            bins,
            bound: spec.duration_predictor_tail_bound,
            root: (width as f32).sqrt(),
        })
    }

    /// Takes the second number of each symbol back, by its first one and what was seen of the text.
    fn invert(&self, first: &[f32], second: &mut [f32], seen: &Tensor) -> CandleResult<()> {
        let column = Tensor::from_slice(first, (first.len(), 1), seen.device())?;
        let inner = (self.pre.forward(&column)? + seen)?;
        let numbers = self.project.forward(&self.separable.forward(&inner)?)?.to_vec2::<f32>()?;
        for (number, row) in second.iter_mut().zip(numbers) {
            let scaled = |part: &[f32]| part.iter().map(|number| number / self.root).collect::<Vec<f32>>();
            let (widths, heights) = (scaled(&row[..self.bins]), scaled(&row[self.bins..2 * self.bins]));
            *number = spline::inverse(*number, [&widths, &heights], &row[2 * self.bins..], self.bound);
        }
        Ok(())
    }
}

impl PlainDurations {
    fn read(weights: &mut SpeechWeights<'_, '_>, spec: &VitsSpec) -> Result<Self, ModelError> {
        let (width, inner) = (spec.hidden_size, spec.duration_predictor_filter_channels);
        let taps = spec.duration_predictor_kernel_size;
        let sizes = |ins| ConvolutionSizes { outs: inner, ins, taps, dilation: 1 };
        let speaker = spec.speaker().map(|size| weights.pointwise(&format!("{PATH}.cond"), [width, size]));
        Ok(Self {
            speaker: speaker.transpose()?,
            convolutions: [
                weights.convolution(&format!("{PATH}.conv_1"), sizes(width))?,
                weights.convolution(&format!("{PATH}.conv_2"), sizes(inner))?,
            ],
            norms: [
                weights.norm(&format!("{PATH}.norm_1"), inner, spec.norm())?,
                weights.norm(&format!("{PATH}.norm_2"), inner, spec.norm())?,
            ],
            project: weights.pointwise(&format!("{PATH}.proj"), [1, inner])?,
        })
    }

    fn logarithms(&self, states: &Tensor, speaker: Option<&Tensor>) -> CandleResult<Vec<f32>> {
        let mut x = spoken_by(states.clone(), self.speaker.as_ref(), speaker)?;
        for (convolution, norm) in self.convolutions.iter().zip(&self.norms) {
            x = norm.forward(&Activation::Relu.in_place(convolution.same(&x, InputActivation::Nothing)?)?)?;
        }
        self.project.forward(&x)?.flatten_all()?.to_vec1()
    }
}
