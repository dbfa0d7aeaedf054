//! GLM-4 (Team GLM, 2024, arXiv 2406.12793) in three forms: rotations of half of a head, norms around parts, experts.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::{experts, llama};
use crate::spec::{
    AttentionBias, AttentionSpec, DecoderSpec, FeedForward, GroupWorth, LayerSpec, NormOrder, NormPlaces, QueryKeyNorm,
    RopePlanes, Weighting,
};

const GATE_UP: &[&str] = &["mlp.gate_proj", "mlp.up_proj"];
const DEFAULTS: Defaults = Defaults {
    layers: 40,
    kv_heads: Some(2),
    head_dim: Some(128),
    intermediate: 13_696,
    vocab: 151_552,
    positions: 131_072,
    eps: 1.5625e-7,
    ..Defaults::LLAMA
};

fn dense(facts: &ModelFacts<'_>, norms: NormPlaces) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&DEFAULTS)?;
    let biased = facts.config_flag("attention_bias", facts.gguf_has("blk.0.attn_q.bias"))?.unwrap_or(true);
    let bias = if biased { AttentionBias::QueryKeyValue } else { AttentionBias::None };
    let layer = LayerSpec { norms, ..llama::layer(AttentionSpec { bias, ..base.attention() }, base.mlp()) };
    let usual = RopeDefaults::usual(base.head_dim, base.positions);
    let rope = facts.rope(&RopeDefaults { planes: RopePlanes::Neighbours, partial: 0.5, ..usual })?;
    let mut spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    spec.spelling = if facts.is_gguf() {
        spec.spelling.fused("ffn_up", GATE_UP)
    } else {
        spec.spelling.fused("mlp.gate_up_proj", GATE_UP)
    };
    Ok(spec)
}

pub(super) fn glm(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let mut spec = dense(facts, NormPlaces::Before)?;
    if facts.gguf_has("blk.0.attn_qkv.weight") {
        const QUERY_KEY_VALUE: &[&str] = &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        spec.spelling = spec.spelling.fused("attn_qkv", QUERY_KEY_VALUE);
        let biased = facts.gguf_has("blk.0.attn_qkv.bias");
        for layer in &mut spec.layers {
            if let crate::spec::Mixer::Attention(attention) = &mut layer.mixer {
                attention.bias = if biased { AttentionBias::QueryKeyValue } else { AttentionBias::None };
            }
        }
    }
    Ok(spec)
}

pub(super) fn glm4(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let mut spec = dense(facts, NormPlaces::Around)?;
    if !facts.is_gguf() {
        spec.spelling = spec
            .spelling
            .renaming(&[("mixer_post_norm", "post_self_attn_layernorm"), ("mlp_post_norm", "post_mlp_layernorm")]);
    }
    Ok(spec)
}

fn moe_attention(facts: &ModelFacts<'_>, base: &Base) -> Result<AttentionSpec, FactError> {
    let bias = facts.attention_bias("attention_bias", AttentionBias::QueryKeyValue)?;
    let normed = facts.config_flag("use_qk_norm", facts.gguf_has("blk.0.attn_q_norm.weight"))?.unwrap_or(false);
    let norm = if normed { QueryKeyNorm::Heads(NormOrder::BeforeRotation) } else { QueryKeyNorm::None };
    Ok(AttentionSpec { bias, norm, ..base.attention() })
}

pub(super) fn glm4_moe(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        layers: 46,
        heads: 96,
        kv_heads: Some(8),
        head_dim: None,
        intermediate: 10_944,
        eps: 1e-5,
        ..DEFAULTS
    };
    let mut base = facts.base(&defaults)?;
    // The layer that predicts further tokens comes behind the others, and is not one of them.
    base.layers -= facts.number("", "nextn_predict_layers")?.unwrap_or(0).min(base.layers);
    let mut experts = experts::usual(facts, &base, true)?;
    if !facts.is_gguf() {
        experts.count = facts.number("n_routed_experts", "")?.or(facts.number("num_experts", "")?).unwrap_or(128);
        experts.used = facts.number("num_experts_per_tok", "")?.unwrap_or(8);
    }
    experts.router = experts::grouped(facts, Weighting::Sigmoid, GroupWorth::TwoBest)?;
    let count = facts.number("n_shared_experts", "expert_shared_count")?.unwrap_or(1);
    experts.shared = experts::shared(&base, count * experts.intermediate, false);
    let first = facts.number("first_k_dense_replace", "leading_dense_block_count")?.unwrap_or(1);
    let dense = llama::layer(moe_attention(facts, &base)?, base.mlp());
    let sparse = LayerSpec { feed_forward: FeedForward::Experts(experts), ..dense.clone() };
    let layers = (0..base.layers).map(|index| if index < first { dense.clone() } else { sparse.clone() }).collect();
    let usual = RopeDefaults::usual(base.head_dim, base.positions);
    let rope = facts.rope(&RopeDefaults { partial: 0.5, ..usual })?;
    let mut spec = base.decoder(facts, vec![rope], layers);
    spec.spelling = experts::spelled(spec.spelling, facts);
    spec.spelling = match facts.is_gguf() {
        true => spec.spelling.renaming(&[("post_attention_layernorm", "post_attention_norm")]),
        false => spec.spelling.renaming(&super::deepseek::SHARED),
    };
    Ok(spec)
}
