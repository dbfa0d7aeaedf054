//! Decoders and devices on candle: from a model's files to logits.
//!
//! Owns: reading `config.json` or GGUF metadata into a [`DecoderSpec`], the one decoder that runs every spec, its keys and values, and the
//! only places that name candle. Knows no HTTP, no sampling, no tokenizer, and plans no batch: that is the engine's part,
//! which sees [`model_boss_engine::Decoder`] only.
#![allow(clippy::arithmetic_side_effects, reason = "tensors have operators too; nothing here adds to a clock's moment")]

mod activation;
mod ahead;
mod attention;
mod blocks;
mod cache;
mod config;
mod convert;
mod cpu_attention;
mod cuda;
mod decoder;
mod device;
mod feed;
mod files;
mod gguf;
mod gguf_keys;
mod halves;
mod kv;
mod layer;
mod layout;
mod linear;
mod load;
mod matrix;
mod memory;
mod mlp;
mod norm;
mod placing;
mod product;
mod quantised;
mod reader;
mod room;
mod rope;
mod source;
mod spec;
mod stage;
mod step;
mod streamed;
mod synthetic;
mod tensors;

pub use config::ConfigError;
pub use convert::{Conversion, ConvertError, MatrixType};
pub use gguf::GgufSpecError;
pub use gguf_keys::GgufKeysError;
pub use load::{LoadError, LoadOptions, ModelError, PlaceOptions, load, load_over, load_with};
pub use spec::{Activation, AttentionBias, DecoderSpec, RopePlanes, RopeScaling, RopeSpec};
pub use streamed::index::{IndexError, IndexOrder, write_layer_index};
pub use synthetic::Synthetic;
