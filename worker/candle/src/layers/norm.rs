//! RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467): `x / sqrt(mean(x²) + eps) * weight`. Knows one weight.

use candle_core::{Result, Tensor};

use crate::error::ModelError;
use crate::layers::named_weights::NamedWeights;

/// A weight `[width]` and its epsilon.
pub(crate) struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Reads the tensor of that name.
    pub(crate) fn read(parts: &mut dyn NamedWeights, name: &str, eps: f64) -> std::result::Result<Self, ModelError> {
        Ok(Self { weight: parts.tensor(name)?, eps: eps as f32 })
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
