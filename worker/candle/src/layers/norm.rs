//! Norms of rows: RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467), `x / sqrt(mean(x²) + eps) * weight`, and
//! LayerNorm (Ba et al., 2016, arXiv 1607.06450), which takes the mean away before. Knows weights, no layers.

use candle_core::{Result, Tensor};

use crate::device::kernels;
use crate::error::ModelError;
use crate::layers::named_weights::NamedWeights;
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
}

impl<'a> NormedRows<'a> {
    pub(crate) fn new(x: &'a Tensor, norm: Option<&'a Norm>) -> Self {
        Self { x, norm }
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
    /// A norm without learned numbers.
    pub(crate) fn plain(like: &Tensor, width: usize, eps: f32) -> Result<Self> {
        let weight = Tensor::ones(width, like.dtype(), like.device())?;
        Ok(Self { bias: weight.zeros_like()?, weight, eps })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_nn::ops::layer_norm(x, &self.weight, &self.bias, self.eps)
    }
}

fn from_one(weight: &Tensor) -> std::result::Result<Tensor, ModelError> {
    (weight + 1.0).map_err(|error| ModelError::Device(crate::device::failure(&error)))
}

fn zeros(weight: &Tensor) -> std::result::Result<Tensor, ModelError> {
    weight.zeros_like().map_err(|error| ModelError::Device(crate::device::failure(&error)))
}
