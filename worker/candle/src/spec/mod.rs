//! A model's description, from `config.json` or GGUF metadata, and the tensors that it needs.
//!
//! A family of models is one function of `families`, which reads facts by the keys of both formats and fills in the
//! family's own defaults. What it returns is data; no layer knows a family.

mod attention_spec;
pub(crate) mod check;
pub(crate) mod config;
mod decoder_spec;
mod experts_spec;
pub(crate) mod fact_error;
pub(crate) mod facts;
mod families;
pub(crate) mod gguf;
mod mlp_spec;
pub(crate) mod part_names;
mod recurrent_spec;
mod rope_spec;
pub(crate) mod spelling;
mod tensors;

pub use model_boss_kernels::{NormOrder, RopePlanes};

pub use attention_spec::{AttentionBias, AttentionSpec, LatentProducts, LatentSpec, QueryKeyNorm};
pub use config::ConfigJsonError;
pub use decoder_spec::{
    DecoderSpec, Factors, FeedForward, LayerSpec, Mixer, NormKind, NormPlaces, NormSpec, StreamsSpec,
};
pub use experts_spec::{ExpertGroups, ExpertsSpec, GroupWorth, RouterSpec, SharedExpert, Weighting};
pub use gguf::GgufSpecError;
pub use mlp_spec::{Activation, MlpSpec};
pub use recurrent_spec::{DeltaNetSpec, GatedNorm, KeySharing, MambaSpec, ShortConvSpec, StoredDecay};
pub use rope_spec::{RopeScaling, RopeSpec};
pub use spelling::TensorSpelling;
