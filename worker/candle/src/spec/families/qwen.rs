//! Qwen2 (Yang et al., 2024, arXiv 2407.10671) and Qwen3 (Yang et al., 2025, arXiv 2505.09388), dense and with experts.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::{experts, llama};
use crate::spec::{AttentionBias, AttentionSpec, DecoderSpec, FeedForward, LayerSpec, NormOrder, QueryKeyNorm};

const DEFAULTS: Defaults =
    Defaults { kv_heads: Some(32), intermediate: 22_016, vocab: 151_936, positions: 32_768, ..Defaults::LLAMA };

/// The window that files have even if the model does not use it.
pub(super) fn window(facts: &ModelFacts<'_>) -> Result<Option<usize>, FactError> {
    if facts.flag("use_sliding_window", "")?.unwrap_or(false) { facts.window(Some(4_096)) } else { Ok(None) }
}

fn dense(facts: &ModelFacts<'_>, base: &Base, attention: &AttentionSpec) -> Result<DecoderSpec, FactError> {
    let first = facts.number("max_window_layers", "")?.unwrap_or(28);
    let windows = facts.windows(base.layers, window(facts)?, |layer| layer >= first)?;
    let layer = |window| llama::layer(AttentionSpec { window, ..attention.clone() }, base.mlp());
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    Ok(base.decoder(facts, vec![rope], windows.into_iter().map(layer).collect()))
}

pub(super) fn qwen2(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&DEFAULTS)?;
    dense(facts, &base, &AttentionSpec { bias: AttentionBias::QueryKeyValue, ..base.attention() })
}

/// Qwen3's attention: norms over heads.
fn qwen3_attention(facts: &ModelFacts<'_>, base: &Base) -> Result<AttentionSpec, FactError> {
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    Ok(AttentionSpec { bias, norm: QueryKeyNorm::Heads(NormOrder::BeforeRotation), ..base.attention() })
}

pub(super) fn qwen3(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults { head_dim: Some(128), ..DEFAULTS })?;
    dense(facts, &base, &qwen3_attention(facts, &base)?)
}

/// Whether each layer has experts.
pub(super) fn sparse(facts: &ModelFacts<'_>, layers: usize) -> Result<Vec<bool>, FactError> {
    let step = facts.number("decoder_sparse_step", "")?.unwrap_or(1);
    let dense = facts.numbers("mlp_only_layers", "")?.unwrap_or_default();
    let has = |layer: usize| !dense.contains(&layer) && step > 0 && (layer + 1).is_multiple_of(step);
    Ok((0..layers).map(has).collect())
}

/// Layers some of which have experts.
fn mixed(
    facts: &ModelFacts<'_>,
    base: &Base,
    attention: impl Fn(usize) -> AttentionSpec,
    experts: &crate::spec::ExpertsSpec,
) -> Result<DecoderSpec, FactError> {
    let layer = |(index, sparse): (usize, bool)| {
        let layer = llama::layer(attention(index), base.mlp());
        if !sparse {
            return layer;
        }
        LayerSpec { feed_forward: FeedForward::Experts(experts.clone()), ..layer }
    };
    let layers = sparse(facts, base.layers)?.into_iter().enumerate().map(layer).collect();
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let mut spec = base.decoder(facts, vec![rope], layers);
    spec.spelling = experts::spelled(spec.spelling, facts);
    Ok(spec)
}

pub(super) fn qwen2_moe(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults {
        layers: 24,
        hidden: 2_048,
        heads: 16,
        kv_heads: Some(16),
        intermediate: 5_632,
        ..DEFAULTS
    })?;
    let normalised = facts.config_flag("norm_topk_prob", false)?.unwrap_or(false);
    let mut experts = experts::usual(facts, &base, normalised)?;
    let width = facts.number("shared_expert_intermediate_size", "expert_shared_feed_forward_length")?;
    experts.shared = experts::shared(&base, width.unwrap_or(5_632), true);
    let qkv = facts.config_flag("qkv_bias", facts.gguf_has("blk.0.attn_q.bias"))?.unwrap_or(true);
    let bias = if qkv { AttentionBias::QueryKeyValue } else { AttentionBias::None };
    let before = facts.number("max_window_layers", "")?.unwrap_or(28);
    let windows = facts.windows(base.layers, window(facts)?, |layer| layer < before && layer.is_multiple_of(2))?;
    let attention = |layer: usize| AttentionSpec { bias, window: windows[layer], ..base.attention() };
    mixed(facts, &base, attention, &experts)
}

pub(super) fn qwen3_moe(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base =
        facts.base(&Defaults { layers: 24, hidden: 2_048, kv_heads: Some(4), intermediate: 6_144, ..DEFAULTS })?;
    let normalised = facts.config_flag("norm_topk_prob", true)?.unwrap_or(false);
    let mut experts = experts::usual(facts, &base, normalised)?;
    if facts.number("num_experts", "expert_count")?.or(facts.number("num_local_experts", "")?).is_none() {
        experts.count = 128;
    }
    let attention = AttentionSpec { window: window(facts)?, ..qwen3_attention(facts, &base)? };
    mixed(facts, &base, |_| attention.clone(), &experts)
}
