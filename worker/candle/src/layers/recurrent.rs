//! Parts with a state have some steps in common: the convolution over the last few tokens, and rows in the host's
//! memory, where states are. Knows no state but that of the convolution.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};
use std::ops::Deref;

use candle_core::cpu::erf::erf_f32;
use candle_core::{DType, Device, Layout, Result, Storage, Tensor, bail};
use rayon::prelude::*;

use crate::device;
use crate::error::ModelError;
use crate::layers::named_weights::NamedWeights;
use crate::matrix::tensor_products::contiguous;
use crate::spec::{Activation, StoredDecay};

/// Products of a convolution that one core computes. Fewer are not worth waking other cores for.
const PIECE: usize = 1 << 15;

/// A convolution of each channel by itself over the last tokens.
pub(crate) struct CausalConv {
    /// `[taps, width]`, the present token last.
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
    width: usize,
}

impl CausalConv {
    /// Reads `PATH.weight`, `[width, 1, taps]`, and `PATH.bias` if there is one.
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        path: &str,
        width: usize,
        bias: bool,
    ) -> std::result::Result<Self, ModelError> {
        let stored = values(parts, &format!("{path}.weight"))?;
        let bias = if bias { Some(values(parts, &format!("{path}.bias"))?) } else { None };
        let taps = stored.len() / width.max(1);
        let mut weights = vec![0.0; stored.len()];
        for (channel, of_channel) in stored.chunks_exact(taps.max(1)).enumerate() {
            for (tap, weight) in of_channel.iter().enumerate() {
                weights[tap * width + channel] = *weight;
            }
        }
        Ok(Self { weights, bias, width })
    }

    /// `[rows, width]` → the same. `window` has the tokens before these, `[taps - 1, width]`, and then those before the
    /// next. A row's sum is in the order of taps, wherever a piece begins.
    pub(crate) fn forward(&self, rows: &[f32], window: &mut [f32]) -> Vec<f32> {
        let width = self.width;
        let held = window.len() / width;
        let mut out = vec![0.0; rows.len()];
        let row = |(at, out): (usize, &mut [f32])| {
            match &self.bias {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            for (tap, weights) in self.weights.chunks_exact(width).enumerate() {
                let from = at + tap;
                let source = match from.checked_sub(held) {
                    Some(row) => &rows[row * width..][..width],
                    None => &window[from * width..][..width],
                };
                for ((out, x), weight) in out.iter_mut().zip(source).zip(weights) {
                    *out += x * weight;
                }
            }
        };
        let together = PIECE.div_ceil(self.weights.len().max(1));
        if rows.len() / width <= together {
            out.chunks_exact_mut(width).enumerate().for_each(row);
        } else {
            out.par_chunks_exact_mut(width).with_min_len(together).enumerate().for_each(row);
        }
        let count = rows.len() / width;
        if count >= held {
            window.copy_from_slice(&rows[(count - held) * width..]);
        } else {
            window.copy_within(rows.len().., 0);
            window[(held - count) * width..].copy_from_slice(rows);
        }
        out
    }
}

/// A tensor's numbers in the host's memory.
pub(crate) fn values(parts: &mut dyn NamedWeights, name: &str) -> std::result::Result<Vec<f32>, ModelError> {
    let read = |tensor: Tensor| on_host(&tensor)?.flatten_all()?.to_vec1::<f32>();
    read(parts.tensor(name)?).map_err(|error| ModelError::Device(device::failure(&error)))
}

/// The decays of heads, negative numbers.
pub(crate) fn decays(
    parts: &mut dyn NamedWeights,
    name: &str,
    stored: StoredDecay,
) -> std::result::Result<Vec<f32>, ModelError> {
    let mut decays = values(parts, name)?;
    if stored == StoredDecay::Log {
        decays.iter_mut().for_each(|decay| *decay = -decay.exp());
    }
    Ok(decays)
}

/// Rows in the host's memory, in f32; a free clone where they are.
pub(crate) fn on_host(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.contiguous()
}

/// Rows of the host where others are, in their type.
pub(crate) fn beside(rows: Vec<f32>, width: usize, other: &Tensor) -> Result<Tensor> {
    let shape = (rows.len() / width.max(1), width);
    Tensor::from_vec(rows, shape, &Device::Cpu)?.to_device(other.device())?.to_dtype(other.dtype())
}

/// A tensor's numbers where they lie.
pub(crate) fn floats<'a>((storage, layout): &'a (impl Deref<Target = Storage>, &Layout)) -> Result<&'a [f32]> {
    match &**storage {
        Storage::Cpu(storage) => contiguous(storage, layout),
        _ => bail!("rows are not in the host's memory"),
    }
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// The activation of each element. Those that need a whole row are refused before.
pub(crate) fn activate(activation: Activation, values: &mut [f32]) {
    let each = |values: &mut [f32], of: fn(f32) -> f32| values.iter_mut().for_each(|x| *x = of(*x));
    match activation {
        Activation::Silu | Activation::SwigluClamped { .. } => each(values, silu),
        Activation::GeluErf => each(values, |x| 0.5 * x * (1.0 + erf_f32(x / SQRT_2))),
        Activation::GeluTanh | Activation::GeluTanhAbove { .. } => {
            each(values, |x| 0.5 * x * (1.0 + (FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (x + 0.044_715 * x * x * x)).tanh()));
        }
        Activation::GeluQuick => each(values, |x| x * sigmoid(1.702 * x)),
        Activation::Relu => each(values, |x| x.max(0.0)),
        Activation::ReluSquared => each(values, |x| x.max(0.0) * x.max(0.0)),
    }
}

/// `ln(1 + e^x)`, which is `x` where it would overflow.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// The factor that normalises a row: the inverse of the root of its mean square.
pub(crate) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let sum: f32 = x.iter().map(|x| x * x).sum();
    (sum / x.len() as f32 + eps).sqrt().recip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_convolution_gives_the_same_in_any_pieces() {
        let (taps, width, rows) = (4, 3, 11);
        let numbers = |count: usize, step: f32| (0..count).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
        let conv = CausalConv { weights: numbers(taps * width, 0.7), bias: Some(numbers(width, 1.3)), width };
        let x = numbers(rows * width, 0.31);
        let mut window = vec![0.0; (taps - 1) * width];
        let whole = conv.forward(&x, &mut window);
        for piece in [1, 2, 3, 5] {
            let mut other = vec![0.0; (taps - 1) * width];
            let parts: Vec<f32> = x.chunks(piece * width).flat_map(|rows| conv.forward(rows, &mut other)).collect();
            assert_eq!((parts, &other), (whole.clone(), &window), "pieces of {piece}");
        }
    }
}
