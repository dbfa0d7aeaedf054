//! Activations. Knows elements only.

use candle_core::{Result, Tensor};

use crate::spec::Activation;

impl Activation {
    /// Element by element.
    pub(crate) fn forward(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Silu => x.silu(),
            Self::GeluErf => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::Relu => x.relu(),
        }
    }
}
