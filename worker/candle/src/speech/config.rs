//! Common parts of the configurations of models that speak.

use crate::error::ModelError;
use crate::spec::{Activation, ConfigJsonError};

/// A configuration that cannot be used.
pub(crate) fn malformed(what: String) -> ModelError {
    ModelError::Config(ConfigJsonError::Malformed(what))
}

/// The activation of this name in `transformers`.
pub(super) fn activation(name: &str) -> Result<Activation, ModelError> {
    Ok(match name {
        "relu" => Activation::Relu,
        "gelu" => Activation::GeluErf,
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        "silu" | "swish" => Activation::Silu,
        other => return Err(malformed(format!("the activation '{other}' is not known in models that speak"))),
    })
}
