//! A model's description: the one for every decoder, read from `config.json` or GGUF metadata, and the tensors it asks
//! for.

pub(crate) mod config;
mod decoder_spec;
pub(crate) mod gguf;
pub(crate) mod tensors;

pub use config::ConfigJsonError;
pub use decoder_spec::{Activation, AttentionBias, DecoderSpec, RopePlanes, RopeScaling, RopeSpec};
pub use gguf::GgufSpecError;
