//! A model's description, from `config.json` or GGUF metadata, and the tensors that it needs.

pub(crate) mod config;
mod decoder_spec;
pub(crate) mod gguf;
pub(crate) mod tensors;

pub use model_boss_kernels::RopePlanes;

pub use config::ConfigJsonError;
pub use decoder_spec::{Activation, AttentionBias, DecoderSpec, RopeScaling, RopeSpec};
pub use gguf::GgufSpecError;
