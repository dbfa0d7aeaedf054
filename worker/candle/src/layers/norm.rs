//! Norms of rows: RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467), `x / sqrt(mean(x²) + eps) * weight`, and
//! LayerNorm (Ba et al., 2016, arXiv 1607.06450), which takes the mean away before. Knows weights, no layers.

use candle_core::{CpuStorage, CustomOp1, DType, InplaceOp2, Layout, Result, Shape, Storage, Tensor, bail};
use model_boss_kernels::SumNorm;

use crate::adapter::rows::RowAdapters;
use crate::device::kernels;
use crate::error::ModelError;
use crate::layers::named_weights::NamedWeights;
use crate::matrix::tensor_products::{contiguous, contiguous_mut};
use crate::spec::{NormKind, NormSpec};

/// A norm over the stream.
pub(crate) enum Norm {
    Rms(RmsNorm),
    Layer(LayerNorm),
}

impl Norm {
    /// Reads `PATH.weight` and, where the kind has one, `PATH.bias`.
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        path: &str,
        spec: NormSpec,
    ) -> std::result::Result<Self, ModelError> {
        let weight = parts.tensor(&format!("{path}.weight"))?;
        let eps = spec.eps as f32;
        Ok(match spec.kind {
            NormKind::Rms => Self::Rms(RmsNorm { weight, eps }),
            NormKind::RmsFromOne => Self::Rms(RmsNorm { weight: from_one(&weight)?, eps }),
            NormKind::Layer => Self::Layer(LayerNorm { bias: zeros(&weight)?, weight, eps }),
            NormKind::LayerWithBias => {
                let bias = parts.tensor(&format!("{path}.bias"))?;
                Self::Layer(LayerNorm { weight, bias, eps })
            }
        })
    }

    /// `[rows, width]` → `[rows, width]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rms(norm) => norm.forward(x),
            Self::Layer(norm) => norm.forward(x),
        }
    }

    /// The norm of the sum of two tensors `[rows, width]`. The second is nobody else's: the result may take its memory.
    pub(crate) fn of_sum_alone(&self, x: &Tensor, y: Tensor) -> Result<Tensor> {
        match self {
            Self::Layer(norm) if norm.is_plain(x) && norm.is_plain(&y) => {
                y.inplace_op2(x, &LayerNormOfSum(norm))?;
                Ok(y)
            }
            _ => self.forward(&(x + y)?),
        }
    }

    /// The sum of two tensors `[rows, width]`, and its norm.
    pub(crate) fn of_sum(&self, x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
        if let Self::Rms(RmsNorm { weight, eps }) = self
            && let Some(both) = kernels::add_norm(x, y, weight, *eps)?
        {
            return Ok(both);
        }
        let sum = (x + y)?;
        let normed = self.forward(&sum)?;
        Ok((sum, normed))
    }
}

/// Rows `[rows, width]` behind a norm that may not have been applied yet: products of few rows on a GPU apply it
/// themselves.
pub(crate) struct NormedRows<'a> {
    x: &'a Tensor,
    norm: Option<&'a Norm>,
    adapters: &'a RowAdapters,
}

impl<'a> NormedRows<'a> {
    pub(crate) fn new(x: &'a Tensor, norm: Option<&'a Norm>, adapters: &'a RowAdapters) -> Self {
        Self { x, norm, adapters }
    }

    /// The adapters of the rows.
    pub(crate) fn adapters(&self) -> &'a RowAdapters {
        self.adapters
    }

    /// The rows; a free clone without a norm.
    pub(crate) fn rows(&self) -> Result<Tensor> {
        self.norm.map_or_else(|| Ok(self.x.clone()), |norm| norm.forward(self.x))
    }

    /// The rows before the norm, and the norm's weight and epsilon; none if the norm is of another kind.
    pub(crate) fn before(&self) -> Option<(&'a Tensor, Option<(&'a Tensor, f32)>)> {
        match self.norm {
            None => Some((self.x, None)),
            Some(Norm::Rms(norm)) => Some((self.x, Some(norm.parts()))),
            Some(Norm::Layer(_)) => None,
        }
    }
}

/// A weight `[width]` and its epsilon.
#[derive(Clone)]
pub(crate) struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Reads the tensor of that name. The kind tells whether weights are stored as differences from 1.
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        name: &str,
        spec: NormSpec,
    ) -> std::result::Result<Self, ModelError> {
        let weight = parts.tensor(name)?;
        let weight = if spec.kind == NormKind::RmsFromOne { from_one(&weight)? } else { weight };
        Ok(Self { weight, eps: spec.eps as f32 })
    }

    /// A norm without learned numbers.
    pub(crate) fn plain(like: &Tensor, width: usize, eps: f32) -> Result<Self> {
        Ok(Self { weight: Tensor::ones(width, like.dtype(), like.device())?, eps })
    }

    /// The weight, `[width]`, and epsilon.
    pub(crate) fn parts(&self) -> (&Tensor, f32) {
        (&self.weight, self.eps)
    }

    /// `[rows, width]` → `[rows, width]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_nn::ops::rms_norm(x, &self.weight, self.eps)
    }
}

/// A weight and a bias, `[width]` each, and an epsilon.
pub(crate) struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    /// A norm of a weight and a bias.
    pub(crate) fn new(weight: Tensor, bias: Tensor, eps: f32) -> Self {
        Self { weight, bias, eps }
    }

    /// A norm without learned numbers.
    pub(crate) fn plain(like: &Tensor, width: usize, eps: f32) -> Result<Self> {
        let weight = Tensor::ones(width, like.dtype(), like.device())?;
        Ok(Self { bias: weight.zeros_like()?, weight, eps })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.is_plain(x) {
            return x.apply_op1_no_bwd(&LayerNormOf(self));
        }
        candle_nn::ops::layer_norm(x, &self.weight, &self.bias, self.eps)
    }

    /// Whether rows are f32 in the memory of the CPU, one behind the other.
    fn is_plain(&self, x: &Tensor) -> bool {
        x.device().is_cpu()
            && x.is_contiguous()
            && [x, &self.weight, &self.bias].iter().all(|tensor| tensor.dtype() == DType::F32)
    }

    /// On the CPU. The variance is that of what is left without the mean, as torch computes it.
    fn on_cpu(&self, rows: &mut [f32], added: Option<&[f32]>) -> Result<()> {
        let (weight, bias) = (self.weight.storage_and_layout(), self.bias.storage_and_layout());
        let (Storage::Cpu(of_weight), Storage::Cpu(of_bias)) = (&*weight.0, &*bias.0) else {
            bail!("a norm's weights are not in the memory of the CPU")
        };
        let (weight, bias) = (contiguous(of_weight, weight.1)?, contiguous(of_bias, bias.1)?);
        SumNorm { added, weight, bias, eps: self.eps }.in_place(rows);
        Ok(())
    }
}

struct LayerNormOf<'a>(&'a LayerNorm);

impl CustomOp1 for LayerNormOf<'_> {
    fn name(&self) -> &'static str {
        "layer-norm-of"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut rows = contiguous(storage, layout)?.to_vec();
        self.0.on_cpu(&mut rows, None)?;
        Ok((CpuStorage::F32(rows), layout.shape().clone()))
    }
}

struct LayerNormOfSum<'a>(&'a LayerNorm);

impl InplaceOp2 for LayerNormOfSum<'_> {
    fn name(&self) -> &'static str {
        "layer-norm-of-sum"
    }

    fn cpu_fwd(&self, s1: &mut CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<()> {
        if l1.shape() != l2.shape() {
            bail!("a norm of the sum of {:?} and {:?}", l1.shape(), l2.shape());
        }
        self.0.on_cpu(contiguous_mut(s1, l1)?, Some(contiguous(s2, l2)?))
    }
}

fn from_one(weight: &Tensor) -> std::result::Result<Tensor, ModelError> {
    (weight + 1.0).map_err(|error| ModelError::Device(crate::device::failure(&error)))
}

fn zeros(weight: &Tensor) -> std::result::Result<Tensor, ModelError> {
    weight.zeros_like().map_err(|error| ModelError::Device(crate::device::failure(&error)))
}
