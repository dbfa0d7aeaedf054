//! Decoders, encoders and devices on candle, which turn a model's files and tokens into logits and vectors.
//!
//! The crate reads `config.json` or GGUF metadata into a [`DecoderSpec`]. It has the one decoder that runs every spec,
//! and the decoder's keys and values. Only this crate and the trainer name candle. HTTP, sampling, tokenizers and the
//! planning of batches are elsewhere: the engine sees [`model_boss_engine::Decoder`] only.
#![allow(clippy::arithmetic_side_effects, reason = "tensors have operators too; nothing here adds to a clock's moment")]

mod adapter;
mod convert;
mod decoder;
mod device;
mod encoder;
mod error;
mod file_tensor;
mod files;
mod layers;
mod load;
mod load_model;
mod made_file;
mod matrix;
mod pictures;
mod plan;
mod read;
#[cfg(test)]
#[path = "../tests/family_cases/rule.rs"]
mod rule;
mod sight;
mod spec;
mod speech;
mod streamed;
mod unread;
mod vision;
mod whisper;

pub use convert::{Conversion, ConvertError, GgufKeysError, MatrixType, Synthetic};
pub use encoder::{EncoderTask, decoder_judge, is_encoder, load_decoder_embedder, load_encoder};
pub use error::{KvTypeUnavailable, LoadError, ModelError};
pub use load_model::{load, load_over, load_with};
pub use pictures::load_painter;
pub use plan::options::{DecoderLoadOptions, DeviceOptions};
pub use spec::{
    Activation, AttentionBias, AttentionSpec, ConfigJsonError, DecoderSpec, DeltaNetSpec, ExpertGroups, ExpertsSpec,
    Factors, FeedForward, GatedNorm, GgufSpecError, GroupWorth, KeySharing, LatentProducts, LatentSpec, LayerSpec,
    MambaSpec, Mixer, MlpSpec, NormKind, NormOrder, NormPlaces, NormSpec, QueryKeyNorm, RopePlanes, RopeScaling,
    RopeSpec, RouterSpec, SharedExpert, ShortConvSpec, StoredDecay, StreamsSpec, TensorSpelling, Weighting,
};
pub use speech::load_speaker;
pub use streamed::index::{IndexError, IndexOrder, write_layer_index, write_layer_index_told};
pub use vision::load_towers;
pub use whisper::load_speech;

/// The lowest compute capability that this build for NVIDIA GPUs serves, as 80 for 8.0. Returns `None` in a build
/// without CUDA.
pub fn built_for_cuda() -> Option<u32> {
    option_env!("MODEL_BOSS_CUDA_LOWEST")?.parse().ok()
}
