//! The encoder: two convolutions over the spectrogram, and layers whose rows see all of the window.

use candle_core::{Result, Tensor};

use super::spec::WhisperSpec;
use crate::device;
use crate::encoder::attend::{Sight, attend};
use crate::encoder::family::{Pause, linear};
use crate::encoder::row_parts::in_parts;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::spec::{Activation, NormKind, NormSpec};

/// The norms of all layers.
pub(super) const NORM: NormSpec = NormSpec { kind: NormKind::LayerWithBias, eps: 1e-5 };

/// The function behind the convolutions. The reference has it whatever `activation_function` says of the layers.
const CONVOLVED: Activation = Activation::GeluErf;

/// Columns of a convolution's window.
const KERNEL: usize = 3;

pub(super) struct WhisperEncoder {
    convolutions: [Linear; 2],
    /// `[places, hidden]`.
    positions: Tensor,
    layers: Vec<HearingLayer>,
    norm: Norm,
    heads: usize,
    activation: Activation,
    target: WeightTarget,
    bins: usize,
}

struct HearingLayer {
    attention_norm: Norm,
    /// Query, key and value.
    inputs: [Linear; 3],
    out: Linear,
    norm: Norm,
    up: Linear,
    down: Linear,
}

impl WhisperEncoder {
    pub(super) fn read(
        reader: &mut WeightReader<'_>,
        spec: &WhisperSpec,
        target: &WeightTarget,
    ) -> std::result::Result<Self, ModelError> {
        let convolutions = [convolution(reader, "encoder.conv1")?, convolution(reader, "encoder.conv2")?];
        let positions = if reader.files().has("encoder.embed_positions.weight") {
            reader.tensor("encoder.embed_positions.weight")?
        } else {
            let waves = waves(spec.places, spec.hidden);
            let waves = Tensor::from_vec(waves, (spec.places, spec.hidden), &target.device);
            waves.and_then(|waves| waves.to_dtype(target.dtype)).map_err(failed)?
        };
        let layers = (0..spec.encoder.layers).map(|layer| HearingLayer::read(reader, layer));
        let layers = layers.collect::<std::result::Result<_, _>>()?;
        Ok(Self {
            convolutions,
            positions,
            layers,
            norm: Norm::read(reader, "encoder.layer_norm", NORM)?,
            heads: spec.encoder.heads,
            activation: spec.activation,
            target: target.clone(),
            bins: spec.bins,
        })
    }

    /// The rows of a window, `[places, hidden]`, of its spectrogram `[bins, frames]`.
    pub(super) fn forward(&self, mel: &[f32], pause: Pause<'_>) -> Result<Tensor> {
        let WeightTarget { device, dtype, .. } = &self.target;
        let frames = mel.len() / self.bins;
        let mel = Tensor::from_slice(mel, (self.bins, frames), device)?.t()?.contiguous()?.to_dtype(*dtype)?;
        let [first, second] = &self.convolutions;
        let x = CONVOLVED.in_place(first.forward(&neighbours(&mel, 1)?)?)?;
        pause();
        let x = CONVOLVED.in_place(second.forward(&neighbours(&x, 2)?)?)?;
        let mut x = (x + &self.positions)?;
        for layer in &self.layers {
            pause();
            x = layer.forward(&x, self.heads, self.activation, pause)?;
        }
        self.norm.forward(&x)
    }
}

impl HearingLayer {
    fn read(reader: &mut WeightReader<'_>, layer: usize) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| format!("encoder.layers.{layer}.{part}");
        Ok(Self {
            attention_norm: Norm::read(reader, &path("self_attn_layer_norm"), NORM)?,
            inputs: [
                linear(reader, &path("self_attn.q_proj"))?,
                linear(reader, &path("self_attn.k_proj"))?,
                linear(reader, &path("self_attn.v_proj"))?,
            ],
            out: linear(reader, &path("self_attn.out_proj"))?,
            norm: Norm::read(reader, &path("final_layer_norm"), NORM)?,
            up: linear(reader, &path("fc1"))?,
            down: linear(reader, &path("fc2"))?,
        })
    }

    fn forward(&self, x: &Tensor, heads: usize, activation: Activation, pause: Pause<'_>) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let [query, key, value] = in_parts([x], [width; 3], pause, |[x]| {
            Linear::forward_all(self.inputs.each_ref(), &self.attention_norm.forward(x)?)
        })?;
        pause();
        let sight = Sight { heads, biases: None, slopes: None, farthest: None };
        let mixed = attend([&query, &key, &value], std::slice::from_ref(&(0..rows)), &sight)?;
        pause();
        let [out] = in_parts([x, &mixed], [width], pause, |[x, mixed]| {
            let x = (x + self.out.forward(mixed)?)?;
            let inner = activation.in_place(self.up.forward(&self.norm.forward(&x)?)?)?;
            Ok([(x + self.down.forward(&inner)?)?])
        })?;
        Ok(out)
    }
}

/// A convolution as a product with each row's neighbours.
fn convolution(reader: &mut WeightReader<'_>, path: &str) -> std::result::Result<Linear, ModelError> {
    let weight = reader.tensor(&format!("{path}.weight"))?;
    let bias = reader.tensor(&format!("{path}.bias"))?;
    let columns = || {
        let (outs, ins, kernel) = weight.dims3()?;
        weight.transpose(1, 2)?.contiguous()?.reshape((outs, ins * kernel))
    };
    let columns = columns().map_err(failed)?;
    Linear::new(Matrix::Tensor(columns), Some(bias)).in_panels().map_err(failed)
}

/// Each row, or each second one, with the row before it and the one behind it, `[rows, 3 * width]`. There are zeros at
/// the ends.
fn neighbours(x: &Tensor, step: usize) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let nothing = Tensor::zeros((1, width), x.dtype(), x.device())?;
    let wide = Tensor::cat(&[&nothing, x, &nothing], 0)?;
    let count = rows.div_ceil(step);
    let shifted = (0..KERNEL).map(|shift| {
        if step == 1 {
            return wide.narrow(0, shift, count);
        }
        let numbers: Vec<u32> = (0..count).map(|row| (row * step + shift) as u32).collect();
        wide.index_select(&Tensor::from_vec(numbers, count, x.device())?, 0)
    });
    Tensor::cat(&shifted.collect::<Result<Vec<_>>>()?, 1)?.contiguous()
}

/// Sines and cosines of places, `[places, hidden]`, as OpenAI's files have them.
fn waves(places: usize, hidden: usize) -> Vec<f32> {
    let half = hidden / 2;
    let step = 10_000_f64.ln() / (half.max(2) - 1) as f64;
    let angle = |place: usize, at: usize| place as f64 * (-step * at as f64).exp();
    let row = |place: usize| {
        let sines = (0..half).map(move |at| angle(place, at).sin() as f32);
        sines.chain((0..hidden - half).map(move |at| angle(place, at).cos() as f32))
    };
    (0..places).flat_map(row).collect()
}

pub(super) fn failed(error: candle_core::Error) -> ModelError {
    ModelError::Device(device::failure(&error))
}
