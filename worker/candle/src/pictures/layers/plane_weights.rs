//! Reading the parts of models of pictures.

use candle_core::Tensor;

use super::fields::misfit;
use super::plane_conv::{Border, PlaneConv};
use super::plane_norm::PlaneNorm;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::matrix::Matrix;
use crate::speech::weights::SpeechWeights;

/// Parts by their paths.
pub(in crate::pictures) trait PlaneWeights {
    /// A convolution of `[outs, ins, taps]` with a stride and a border.
    fn plane_conv(&mut self, path: &str, sizes: [usize; 3], form: (usize, Border)) -> Result<PlaneConv, ModelError>;

    /// A norm of so many channels in groups.
    fn plane_norm(&mut self, path: &str, channels: usize, groups: (usize, f64)) -> Result<PlaneNorm, ModelError>;

    /// A product for many rows, in the type in which its matrix is stored.
    fn panels(&mut self, path: &str, shape: [usize; 2]) -> Result<Linear, ModelError>;

    /// The same, stored as a product or as a convolution of single pixels.
    fn pixel_product(&mut self, path: &str, shape: [usize; 2]) -> Result<Linear, ModelError>;

    /// The two halves of a product's results, by themselves.
    fn halves(&mut self, path: &str, shape: [usize; 2]) -> Result<[Linear; 2], ModelError>;
}

impl PlaneWeights for SpeechWeights<'_, '_> {
    fn plane_conv(
        &mut self,
        path: &str,
        [outs, ins, taps]: [usize; 3],
        form: (usize, Border),
    ) -> Result<PlaneConv, ModelError> {
        let weight = self.tensor(&format!("{path}.weight"), &[outs, ins, taps, taps])?;
        let bias = self.bias(path, outs)?;
        self.made(PlaneConv::new(&weight, bias.as_ref(), form))
    }

    fn plane_norm(
        &mut self,
        path: &str,
        channels: usize,
        (groups, eps): (usize, f64),
    ) -> Result<PlaneNorm, ModelError> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(misfit(path, format!("{groups} groups do not divide {channels} channels")));
        }
        let weight = self.tensor(&format!("{path}.weight"), &[channels])?;
        let bias = self.tensor(&format!("{path}.bias"), &[channels])?;
        Ok(PlaneNorm::new(weight, bias, groups, eps))
    }

    fn panels(&mut self, path: &str, shape: [usize; 2]) -> Result<Linear, ModelError> {
        let linear = self.product(path, shape)?.in_panels();
        self.made(linear)
    }

    fn pixel_product(&mut self, path: &str, [outs, ins]: [usize; 2]) -> Result<Linear, ModelError> {
        let name = format!("{path}.weight");
        if self.reader.files().get(&name)?.shape.len() < 4 {
            return self.panels(path, [outs, ins]);
        }
        let weight = self.tensor(&name, &[outs, ins, 1, 1])?;
        let weight = self.made(weight.reshape((outs, ins)))?;
        let linear = Linear::new(Matrix::Tensor(weight), self.bias(path, outs)?).in_panels();
        self.made(linear)
    }

    fn halves(&mut self, path: &str, [outs, ins]: [usize; 2]) -> Result<[Linear; 2], ModelError> {
        let weight = self.tensor(&format!("{path}.weight"), &[outs, ins])?;
        let bias = self.bias(path, outs)?;
        let half = |at: usize| {
            let part = |tensor: &Tensor| tensor.narrow(0, at * (outs / 2), outs / 2)?.force_contiguous();
            let bias = bias.as_ref().map(part).transpose()?;
            Linear::new(Matrix::Tensor(part(&weight)?), bias).in_panels()
        };
        let halves = half(0).and_then(|first| Ok([first, half(1)?]));
        self.made(halves)
    }
}
