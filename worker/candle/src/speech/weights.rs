//! Reading the weights of a model that speaks: in f32, with the norms of weights multiplied in.

use candle_core::{DType, Device, Result as CandleResult, Tensor};

use super::convolution::{Convolved, TimeConvolution, Upsampling};
use crate::device;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::read::reader::WeightReader;
use crate::spec::{NormKind, NormSpec};

/// A convolution's sizes, as its model's configuration has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvolutionSizes {
    pub(super) outs: usize,
    pub(super) ins: usize,
    pub(super) taps: usize,
    pub(super) dilation: usize,
}

/// The weights of one model.
pub(crate) struct SpeechWeights<'a, 'b> {
    pub(crate) reader: &'a mut WeightReader<'b>,
    pub(crate) device: &'a Device,
}

impl SpeechWeights<'_, '_> {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.reader.files().has(name)
    }

    /// A tensor of this shape.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let stored = self.reader.files().get(name)?;
        if stored.shape != shape {
            let what = format!("has the shape {:?}, config.json makes it {shape:?}", stored.shape);
            return Err(ModelError::Tensor { name: name.to_owned(), what });
        }
        drop(stored);
        self.reader.tensor(name)
    }

    /// A part that was made of tensors.
    pub(crate) fn made<T>(&self, part: CandleResult<T>) -> Result<T, ModelError> {
        part.map_err(|error| ModelError::Device(device::failure(&error)))
    }

    /// The weight at a path: as it is stored, or a direction and a length for each of its first dimension (Salimans and
    /// Kingma, 2016, arXiv 1602.07868), under either of PyTorch's names.
    pub(crate) fn weight(&mut self, path: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let plain = format!("{path}.weight");
        if self.has(&plain) {
            return self.tensor(&plain, shape);
        }
        let newer = [0, 1].map(|part| format!("{path}.parametrizations.weight.original{part}"));
        let [length, direction] =
            if self.has(&newer[0]) { newer } else { ["g", "v"].map(|part| format!("{path}.weight_{part}")) };
        if !self.has(&length) {
            // The usual name is the one that is missed.
            return self.tensor(&plain, shape);
        }
        let lengths: Vec<usize> = shape.iter().enumerate().map(|(at, size)| if at == 0 { *size } else { 1 }).collect();
        let (length, direction) = (self.tensor(&length, &lengths)?, self.tensor(&direction, shape)?);
        let joined = || {
            let own = direction.sqr()?.flatten_from(1)?.sum(1)?.sqrt()?.reshape(lengths.as_slice())?;
            direction.broadcast_mul(&length.broadcast_div(&own)?)
        };
        self.made(joined())
    }

    /// The bias at a path, where the files have one.
    pub(crate) fn bias(&mut self, path: &str, outs: usize) -> Result<Option<Tensor>, ModelError> {
        let name = format!("{path}.bias");
        if self.has(&name) { self.tensor(&name, &[outs]).map(Some) } else { Ok(None) }
    }

    /// A product with a bias where the files have one.
    pub(crate) fn linear(&mut self, path: &str, [outs, ins]: [usize; 2]) -> Result<Linear, ModelError> {
        let weight = self.weight(path, &[outs, ins])?;
        let linear = Linear::new(Matrix::Tensor(weight), self.bias(path, outs)?).in_panels();
        self.made(linear)
    }

    /// A product in the form in which its matrix is stored, with a bias where the files have one: for large models, of
    /// which few rows are computed at a time.
    pub(crate) fn product(&mut self, path: &str, [outs, ins]: [usize; 2]) -> Result<Linear, ModelError> {
        let matrix = self.rows(&format!("{path}.weight"), [outs, ins])?;
        Ok(Linear::new(matrix, self.bias(path, outs)?))
    }

    /// A matrix of which rows are looked up, in the form in which it is stored.
    pub(crate) fn rows(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix, ModelError> {
        let stored = self.reader.files().get(name)?.shape.clone();
        if stored != shape {
            let what = format!("has the shape {stored:?}, config.json makes it {shape:?}");
            return Err(ModelError::Tensor { name: name.to_owned(), what });
        }
        self.reader.matrix(name)
    }

    /// A convolution of each moment by itself, which is a product.
    pub(super) fn pointwise(&mut self, path: &str, [outs, ins]: [usize; 2]) -> Result<Linear, ModelError> {
        let weight = self.weight(path, &[outs, ins, 1])?;
        let weight = self.made(weight.squeeze(2).and_then(|weight| weight.contiguous()))?;
        let linear = Linear::new(Matrix::Tensor(weight), self.bias(path, outs)?).in_panels();
        self.made(linear)
    }

    /// A convolution along time.
    pub(super) fn convolution(&mut self, path: &str, sizes: ConvolutionSizes) -> Result<TimeConvolution, ModelError> {
        let ConvolutionSizes { outs, ins, taps, dilation } = sizes;
        let weight = self.weight(path, &[outs, ins, taps])?;
        let bias = self.bias(path, outs)?;
        // Of each result the moments one behind the other.
        let made = weight.permute((0, 2, 1)).and_then(|weight| weight.contiguous());
        let made = made.and_then(|weight| TimeConvolution::new(&weight, bias, dilation));
        self.made(made)
    }

    /// A convolution of each number by itself, `[taps, width]` with its bias `[width]`.
    pub(super) fn by_number(&mut self, path: &str, width: usize, taps: usize) -> Result<[Tensor; 2], ModelError> {
        let weight = self.weight(path, &[width, 1, taps])?;
        let bias = self.tensor(&format!("{path}.bias"), &[width])?;
        let weight = self.made(weight.squeeze(1).and_then(|weight| weight.t()?.contiguous()))?;
        Ok([weight, bias])
    }

    /// A convolution that makes several moments of each.
    pub(super) fn upsampling(
        &mut self,
        path: &str,
        sizes: ConvolutionSizes,
        stride: usize,
    ) -> Result<Upsampling, ModelError> {
        let padding = (sizes.taps - stride) / 2;
        self.upsampling_of(path, sizes, Convolved { stride, padding })
    }

    /// The same, with so many moments left out at both ends.
    pub(super) fn upsampling_of(
        &mut self,
        path: &str,
        ConvolutionSizes { outs, ins, taps, .. }: ConvolutionSizes,
        form: Convolved,
    ) -> Result<Upsampling, ModelError> {
        let weight = self.weight(path, &[ins, outs, taps])?;
        let bias = self.bias(path, outs)?;
        self.made(Upsampling::new(&weight, bias, form))
    }

    /// The same for sound that comes piece by piece. Each of the groups makes its own numbers of its own numbers.
    pub(super) fn causal_upsampling(
        &mut self,
        path: &str,
        ConvolutionSizes { outs, ins, taps, .. }: ConvolutionSizes,
        stride: usize,
        groups: usize,
    ) -> Result<Upsampling, ModelError> {
        let weight = self.weight(path, &[ins, outs / groups, taps])?;
        let bias = self.bias(path, outs)?;
        let made = ungrouped(&weight, groups)
            .and_then(|weight| Upsampling::new(&weight, bias, Convolved { stride, padding: 0 }));
        self.made(made)
    }

    /// A norm with its weight and, where its kind has one, its bias.
    pub(crate) fn norm(&mut self, path: &str, width: usize, spec: NormSpec) -> Result<Norm, ModelError> {
        let parts: &[&str] = if spec.kind == NormKind::LayerWithBias { &["weight", "bias"] } else { &["weight"] };
        for part in parts {
            let name = format!("{path}.{part}");
            let stored = self.reader.files().get(&name)?;
            if stored.shape != [width] {
                let what = format!("has the shape {:?}, config.json makes it [{width}]", stored.shape);
                return Err(ModelError::Tensor { name, what });
            }
        }
        Norm::read(self.reader, path, spec)
    }

    /// The types of the device are f32 for all of a model that speaks.
    pub(crate) const TYPE: DType = DType::F32;
}

/// The weight `[ins, outs, taps]` of a convolution in groups, `[ins, outs / groups, taps]`, with zeros between groups.
fn ungrouped(weight: &Tensor, groups: usize) -> CandleResult<Tensor> {
    if groups == 1 {
        return Ok(weight.clone());
    }
    let ins = weight.dim(0)? / groups;
    let group = |at: usize| {
        let own = weight.narrow(0, at * ins, ins)?;
        let outs = own.dim(1)?;
        own.pad_with_zeros(1, at * outs, (groups - 1 - at) * outs)
    };
    Tensor::cat(&(0..groups).map(group).collect::<CandleResult<Vec<_>>>()?, 0)
}
