//! Llama (Touvron et al., 2023, arXiv 2302.13971), whose layers most other families vary, and Seed-OSS.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::experts;
use crate::spec::{
    AttentionBias, AttentionSpec, DecoderSpec, FeedForward, LayerSpec, Mixer, MlpSpec, NormPlaces, RopePlanes,
};

/// A layer with a norm before each of its parts.
pub(super) fn layer(attention: AttentionSpec, mlp: MlpSpec) -> LayerSpec {
    LayerSpec { mixer: Mixer::Attention(attention), feed_forward: FeedForward::Gated(mlp), norms: NormPlaces::Before }
}

/// Layers that are all the same.
pub(super) fn same(layer: &LayerSpec, count: usize) -> Vec<LayerSpec> {
    vec![layer.clone(); count]
}

/// The rope of families whose converter to GGUF reorders the rows of queries and keys.
pub(super) fn reordered(facts: &ModelFacts<'_>, base: &Base) -> RopeDefaults<'static> {
    let planes = if facts.is_gguf() { RopePlanes::Neighbours } else { RopePlanes::Halves };
    RopeDefaults { planes, ..RopeDefaults::usual(base.head_dim, base.positions) }
}

/// Whether feed-forward parts have biases: the key of `config.json`, or what the first layer of a GGUF file has.
pub(super) fn mlp_bias(facts: &ModelFacts<'_>, key: &str) -> Result<bool, FactError> {
    let stored = facts.gguf_has("blk.0.ffn_down.bias");
    Ok(facts.config_flag(key, stored)?.unwrap_or(false))
}

pub(super) fn llama(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults::LLAMA)?;
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let mut attention = AttentionSpec { bias, ..base.attention() };
    attention.window = if facts.is_gguf() { facts.window(None)? } else { None };
    let mlp = MlpSpec { bias: mlp_bias(facts, "mlp_bias")?, ..base.mlp() };
    let mut layer = layer(attention, mlp);
    // Mixtral's files have Llama's name in GGUF.
    let mixed = facts.number("", "expert_count")?.is_some_and(|experts| experts > 0);
    if mixed {
        layer.feed_forward = FeedForward::Experts(experts::usual(facts, &base, true)?);
    }
    let rope = facts.rope(&reordered(facts, &base))?;
    let mut spec = base.decoder(facts, vec![rope], same(&layer, base.layers));
    if mixed {
        spec.spelling = experts::spelled(spec.spelling, facts);
    }
    Ok(spec)
}

/// Seed-OSS: biases of inputs by default, and of the output by a key of its own.
pub(super) fn seed_oss(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        layers: 64,
        kv_heads: Some(8),
        head_dim: Some(128),
        intermediate: 27_648,
        vocab: 155_136,
        positions: 524_288,
        ..Defaults::LLAMA
    };
    let base = facts.base(&defaults)?;
    let bias = if facts.is_gguf() {
        facts.attention_bias("", AttentionBias::All)?
    } else {
        let inputs = facts.flag("attention_bias", "")?.unwrap_or(true);
        match (inputs, facts.flag("attention_out_bias", "")?.unwrap_or(false)) {
            (true, true) => AttentionBias::All,
            (true, false) => AttentionBias::QueryKeyValue,
            (false, false) => AttentionBias::None,
            (false, true) => AttentionBias::Output,
        }
    };
    let attention = AttentionSpec { bias, ..base.attention() };
    let mlp = MlpSpec { bias: mlp_bias(facts, "mlp_bias")?, ..base.mlp() };
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let mut spec = base.decoder(facts, vec![rope], same(&layer(attention, mlp), base.layers));
    if facts.is_gguf() {
        spec.spelling = spec.spelling.renaming(&[("post_attention_layernorm", "post_attention_norm")]);
    }
    Ok(spec)
}
