//! Decoders and devices on candle: from a model's files to logits.
//!
//! Owns: reading `config.json` or GGUF metadata into a [`DecoderSpec`], the one decoder that runs every spec, and its
//! keys and values. Apart from the trainer no other crate names candle. Knows no HTTP, no sampling, no tokenizer, and
//! plans no batch: that is the engine's part, which sees [`model_boss_engine::Decoder`] only.
#![allow(clippy::arithmetic_side_effects, reason = "tensors have operators too; nothing here adds to a clock's moment")]

mod convert;
mod decoder;
mod device;
mod error;
mod files;
mod kernels;
mod layers;
mod load;
mod matrix;
mod plan;
mod read;
mod spec;
mod streamed;

pub use convert::{Conversion, ConvertError, GgufKeysError, MatrixType, Synthetic};
pub use error::{LoadError, ModelError};
pub use load::{load, load_over, load_with};
pub use plan::options::{DecoderLoadOptions, DeviceOptions};
pub use spec::{
    Activation, AttentionBias, ConfigJsonError, DecoderSpec, GgufSpecError, RopePlanes, RopeScaling, RopeSpec,
};
pub use streamed::index::{IndexError, IndexOrder, write_layer_index};
