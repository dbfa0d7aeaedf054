//! Times, and other numbers, as rows of sines, and what models make of them.

use candle_core::{Device, Result, Tensor};

use super::plane_weights::PlaneWeights;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::spec::Activation;
use crate::speech::weights::SpeechWeights;

/// The longest wave.
const LONGEST: f32 = 10_000.0;

/// Sines and cosines of numbers (Vaswani et al., 2017, arXiv 1706.03762).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::pictures) struct TimeSines {
    /// Numbers of a row.
    pub(in crate::pictures) width: usize,
    /// Whether cosines come first.
    pub(in crate::pictures) cosines_first: bool,
    /// Taken from the number of waves before it divides the exponent.
    pub(in crate::pictures) shift: f32,
}

impl TimeSines {
    /// `[numbers, width]`.
    pub(in crate::pictures) fn rows(&self, numbers: &[f32], device: &Device) -> Result<Tensor> {
        let half = self.width / 2;
        let wave = |at: usize| (-LONGEST.ln() * at as f32 / (half as f32 - self.shift)).exp();
        let mut rows = Vec::with_capacity(numbers.len() * self.width);
        for number in numbers {
            let angles: Vec<f32> = (0..half).map(|at| number * wave(at)).collect();
            let (sines, cosines) = (angles.iter().map(|x| x.sin()), angles.iter().map(|x| x.cos()));
            if self.cosines_first {
                rows.extend(cosines.chain(sines));
            } else {
                rows.extend(sines.chain(cosines));
            }
            rows.resize(rows.len() + self.width % 2, 0.0);
        }
        Tensor::from_vec(rows, (numbers.len(), self.width), device)
    }
}

/// Two products with SiLU between them.
pub(in crate::pictures) struct TimeEmbedding {
    first: Linear,
    second: Linear,
}

impl TimeEmbedding {
    /// Reads `PATH.linear_1` and `PATH.linear_2`.
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        [ins, width]: [usize; 2],
    ) -> std::result::Result<Self, ModelError> {
        Ok(Self {
            first: weights.panels(&format!("{path}.linear_1"), [width, ins])?,
            second: weights.panels(&format!("{path}.linear_2"), [width, width])?,
        })
    }

    /// `[rows, ins]` → `[rows, width]`.
    pub(in crate::pictures) fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.second.forward(&Activation::Silu.in_place(self.first.forward(rows)?)?)
    }
}
