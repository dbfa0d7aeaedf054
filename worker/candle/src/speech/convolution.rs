//! Convolutions along time, on rows that are moments: `[moments, ins]` → `[moments, outs]`.

use candle_core::{Device, Result, Storage, Tensor, bail};
use model_boss_kernels::{Convolution, ConvolutionShape};

use crate::layers::linear::Linear;
use crate::matrix::Matrix;
use crate::matrix::tensor_products::contiguous;

/// The change of each number before a convolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum InputActivation {
    Nothing,
    /// Negative numbers are multiplied by this.
    Leaky(f32),
    /// Negative numbers become their exponential less 1 (ELU: Clevert et al., 2015, arXiv 1511.07289).
    Elu,
}

impl InputActivation {
    fn of(self, x: f32) -> f32 {
        match self {
            Self::Leaky(slope) if x < 0.0 => x * slope,
            Self::Elu if x < 0.0 => x.exp_m1(),
            _ => x,
        }
    }

    fn of_all(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Nothing => Ok(x.clone()),
            Self::Leaky(slope) => x.maximum(&(x * f64::from(slope))?),
            Self::Elu => x.elu(1.0),
        }
    }
}

/// The last moments before those of a piece of sound, for one convolution of one part. They are silence at first.
#[derive(Default)]
pub(super) struct MomentsBefore(Option<Tensor>);

impl MomentsBefore {
    /// The moments of a piece with so many before them, of which the last are kept for the next piece.
    fn joined(&mut self, x: &Tensor, before: usize) -> Result<Tensor> {
        if before == 0 {
            return Ok(x.clone());
        }
        let (moments, width) = x.dims2()?;
        let earlier = match self.0.take() {
            Some(earlier) => earlier,
            None => Tensor::zeros((before, width), x.dtype(), x.device())?,
        };
        let joined = Tensor::cat(&[&earlier, x], 0)?;
        // A copy: the whole piece need not stay.
        self.0 = Some(joined.narrow(0, moments, before)?.force_contiguous()?);
        Ok(joined)
    }
}

/// A convolution of which each result is made of some moments around its own.
pub(super) struct TimeConvolution {
    form: ConvolutionForm,
    shape: ConvolutionShape,
}

enum ConvolutionForm {
    /// In the host's memory.
    Host(Convolution),
    /// On a device with memory of its own: the moments of a result are put side by side.
    Device(Linear),
}

impl TimeConvolution {
    /// Of a weight `[outs, taps, ins]`.
    pub(super) fn new(weight: &Tensor, bias: Option<Tensor>, dilation: usize) -> Result<Self> {
        let (outs, taps, ins) = weight.dims3()?;
        if outs == 0 || taps == 0 || ins == 0 || dilation == 0 {
            bail!("a convolution of {outs} x {taps} x {ins}, {dilation} apart, is none");
        }
        let shape = ConvolutionShape { outs, taps, ins, dilation };
        if !weight.device().is_cpu() {
            let weight = weight.reshape((outs, taps * ins))?;
            return Ok(Self { form: ConvolutionForm::Device(Linear::new(Matrix::Tensor(weight), bias)), shape });
        }
        let bias = bias.map(|bias| bias.to_vec1::<f32>()).transpose()?;
        let convolution = Convolution::new(&weight.flatten_all()?.to_vec1::<f32>()?, bias, shape);
        Ok(Self { form: ConvolutionForm::Host(convolution), shape })
    }

    /// As many moments as there are, with silence at both ends: the same number, or one more on the right.
    pub(super) fn same(&self, x: &Tensor, before: InputActivation) -> Result<Tensor> {
        let more = self.shape.more();
        self.padded(x, before, (more / 2, more.div_ceil(2)))
    }

    /// As many moments as the piece has, each made of those before it.
    pub(super) fn causal(&self, x: &Tensor, before: InputActivation, earlier: &mut MomentsBefore) -> Result<Tensor> {
        self.padded(&earlier.joined(x, self.shape.more())?, before, (0, 0))
    }

    /// With so many moments of silence on the left and the right.
    pub(super) fn padded(&self, x: &Tensor, before: InputActivation, (left, right): (usize, usize)) -> Result<Tensor> {
        let (moments, ins) = x.dims2()?;
        if ins != self.shape.ins {
            bail!("moments of {ins} numbers cannot be convolved by {}", self.shape.ins);
        }
        match &self.form {
            ConvolutionForm::Host(convolution) => {
                let x = x.contiguous()?;
                let (storage, layout) = x.storage_and_layout();
                let Storage::Cpu(storage) = &*storage else { bail!("the moments are not in the host's memory") };
                let mut wide = vec![0.0; (left + moments + right) * ins];
                let inner = &mut wide[left * ins..(left + moments) * ins];
                let numbers = contiguous(storage, layout)?;
                match before {
                    InputActivation::Nothing => inner.copy_from_slice(numbers),
                    before => inner.iter_mut().zip(numbers).for_each(|(y, x)| *y = before.of(*x)),
                }
                let y = convolution.forward(&wide);
                let moments = y.len() / self.shape.outs;
                Tensor::from_vec(y, (moments, self.shape.outs), &Device::Cpu)
            }
            ConvolutionForm::Device(linear) => {
                let x = before.of_all(x)?.pad_with_zeros(0, left, right)?;
                let moments = (left + moments + right).saturating_sub(self.shape.more());
                let tap = |tap: usize| x.narrow(0, tap * self.shape.dilation, moments);
                let taps = (0..self.shape.taps).map(tap).collect::<Result<Vec<_>>>()?;
                linear.forward(&Tensor::cat(&taps, 1)?)
            }
        }
    }
}

/// The form of a convolution that makes several moments of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Convolved {
    /// The moments made of each.
    pub(super) stride: usize,
    /// The moments that are left out at both ends.
    pub(super) padding: usize,
}

/// A convolution that makes several moments of each: PyTorch's `ConvTranspose1d`. The results between two moments are
/// different sums of the moments before them, so they are results of one plain convolution, side by side.
pub(super) struct Upsampling {
    convolution: TimeConvolution,
    form: Convolved,
    taps: usize,
    outs: usize,
}

impl Upsampling {
    /// Of a weight `[ins, outs, taps]`.
    pub(super) fn new(weight: &Tensor, bias: Option<Tensor>, form: Convolved) -> Result<Self> {
        let (ins, outs, taps) = weight.dims3()?;
        let Convolved { stride, padding } = form;
        if stride == 0 || taps < stride || 2 * padding >= taps {
            bail!("{taps} taps cannot make {stride} moments of each, {padding} left out");
        }
        // Moments that a result is made of, the latest last.
        let moments = taps.div_ceil(stride);
        let missing = moments * stride - taps;
        let weight = weight.pad_with_zeros(2, 0, missing)?.reshape((ins, outs, moments, stride))?;
        let reversed: Vec<u32> = (0..moments as u32).rev().collect();
        let reversed = Tensor::from_vec(reversed, moments, weight.device())?;
        let weight = weight.index_select(&reversed, 2)?.permute((3, 1, 2, 0))?.contiguous()?;
        let weight = weight.reshape((stride * outs, moments, ins))?;
        let bias = bias.map(|bias| bias.repeat(stride)).transpose()?;
        Ok(Self { convolution: TimeConvolution::new(&weight, bias, 1)?, form, taps, outs })
    }

    /// A piece whose results are made of the moments before them: `[moments, ins]` → `[moments stride, outs]`. What
    /// reaches behind the piece comes with the next one.
    pub(super) fn causal(&self, x: &Tensor, before: InputActivation, earlier: &mut MomentsBefore) -> Result<Tensor> {
        let more = self.taps.div_ceil(self.form.stride) - 1;
        let y = self.convolution.padded(&earlier.joined(x, more)?, before, (0, 0))?;
        y.reshape((x.dim(0)? * self.form.stride, self.outs))
    }

    /// `[moments, ins]` → `[(moments - 1) stride + taps - 2 padding, outs]`.
    pub(super) fn forward(&self, x: &Tensor, before: InputActivation) -> Result<Tensor> {
        let Convolved { stride, padding } = self.form;
        let moments = x.dim(0)?;
        let more = self.taps.div_ceil(stride) - 1;
        let y = self.convolution.padded(x, before, (more, more))?;
        let y = y.reshape(((moments + more) * stride, self.outs))?;
        y.narrow(0, padding, (moments - 1) * stride + self.taps - 2 * padding)?.contiguous()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(shape: (usize, usize, usize), salt: usize) -> Tensor {
        let count = shape.0 * shape.1 * shape.2;
        let numbers: Vec<f32> = (0..count).map(|at| ((at * 37 + salt) % 101) as f32 / 64.0 - 0.75).collect();
        Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap()
    }

    fn near(ours: &Tensor, exact: &Tensor) {
        let [ours, exact] = [ours, exact].map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        assert_eq!(ours.len(), exact.len());
        for (ours, exact) in ours.iter().zip(exact) {
            assert!((ours - exact).abs() < 1e-3, "{ours} {exact}");
        }
    }

    #[test]
    fn rc_28_convolutions_are_those_of_candle() {
        for (ins, outs, taps, dilation) in [(5, 7, 3, 1), (8, 16, 5, 2), (3, 1, 7, 1), (6, 4, 1, 1)] {
            let (weight, x) = (numbers((outs, ins, taps), 1), numbers((1, ins, 20), 2));
            let more = (taps - 1) * dilation;
            let exact = x.conv1d(&weight, more / 2, 1, dilation, 1).unwrap().squeeze(0).unwrap().t().unwrap();
            let turned = weight.permute((0, 2, 1)).unwrap().contiguous().unwrap();
            let ours = TimeConvolution::new(&turned, None, dilation).unwrap();
            near(
                &ours.same(&x.squeeze(0).unwrap().t().unwrap(), InputActivation::Nothing).unwrap(),
                &exact.contiguous().unwrap(),
            );
        }
        for (ins, outs, taps, stride) in [(5, 7, 16, 8), (8, 4, 4, 2), (3, 2, 11, 5), (6, 4, 3, 3)] {
            let (weight, x) = (numbers((ins, outs, taps), 1), numbers((1, ins, 9), 2));
            let padding = (taps - stride) / 2;
            let exact = x.conv_transpose1d(&weight, padding, 0, stride, 1, 1).unwrap();
            let ours = Upsampling::new(&weight, None, Convolved { stride, padding }).unwrap();
            let ours = ours.forward(&x.squeeze(0).unwrap().t().unwrap(), InputActivation::Nothing).unwrap();
            near(&ours, &exact.squeeze(0).unwrap().t().unwrap().contiguous().unwrap());
        }
    }
}
