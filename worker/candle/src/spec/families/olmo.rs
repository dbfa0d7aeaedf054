//! OLMo 2 (OLMo Team, 2024, arXiv 2501.00656), OLMo 3 and OLMoE (Muennighoff et al., 2024, arXiv 2409.02060): norms
//! behind parts, and over all queries and all keys.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults, all_but_each};
use crate::spec::families::{experts, llama};
use crate::spec::{
    AttentionBias, AttentionSpec, DecoderSpec, FeedForward, LayerSpec, NormPlaces, QueryKeyNorm, RopeScaling, RopeSpec,
};

const DEFAULTS: Defaults = Defaults { vocab: 50_304, eps: 1e-5, ..Defaults::LLAMA };

/// Layers with norms behind their parts; each has its window and the number of its rope.
fn behind(
    facts: &ModelFacts<'_>,
    base: &Base,
    ropes: Vec<RopeSpec>,
    kinds: impl Iterator<Item = (Option<usize>, usize)>,
) -> Result<DecoderSpec, FactError> {
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let layer = |(window, rope): (Option<usize>, usize)| {
        let (norm, rope) = (QueryKeyNorm::Whole, Some(rope));
        let attention = AttentionSpec { bias, norm, window, rope, ..base.attention() };
        LayerSpec { norms: NormPlaces::Behind, ..llama::layer(attention, base.mlp()) }
    };
    let mut spec = base.decoder(facts, ropes, kinds.map(layer).collect());
    if !facts.is_gguf() {
        spec.spelling = spec.spelling.renaming(&[
            ("mixer_post_norm", "post_attention_layernorm"),
            ("mlp_post_norm", "post_feedforward_layernorm"),
        ]);
    }
    Ok(spec)
}

pub(super) fn olmo2(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&DEFAULTS)?;
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let layers = (0..base.layers).map(|_| (None, 0));
    behind(facts, &base, vec![rope], layers)
}

/// Files of both have one name in GGUF; those of OLMo 3 have a window.
pub(super) fn olmo2_gguf(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    if facts.window(None)?.is_some() { olmo3(facts) } else { olmo2(facts) }
}

pub(super) fn olmo3(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&DEFAULTS)?;
    let window = facts.window(Some(4_096))?;
    let sliding = facts.sliding(base.layers, all_but_each(4))?;
    let usual = RopeDefaults { theta: 500_000.0, ..RopeDefaults::usual(base.head_dim, base.positions) };
    let full = facts.rope(&RopeDefaults { layer_type: Some("full_attention"), ..usual })?;
    // Layers with a window are never scaled, and have the base of the others in GGUF.
    let local = match facts.is_gguf() || facts.lacks_tables_for_kinds()? {
        true => {
            let theta = if facts.is_gguf() { full.theta } else { 500_000.0 };
            RopeSpec { theta, scaling: RopeScaling::None, ..full.clone() }
        }
        false => facts.rope(&RopeDefaults { layer_type: Some("sliding_attention"), ..usual })?,
    };
    let kinds = sliding.into_iter().map(|sliding| (window.filter(|_| sliding), usize::from(sliding)));
    behind(facts, &base, vec![full, local], kinds)
}

pub(super) fn olmoe(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults {
        layers: 16,
        hidden: 2_048,
        heads: 16,
        intermediate: 2_048,
        positions: 4_096,
        ..DEFAULTS
    })?;
    let clamp = facts.float("clip_qkv", "attention.clamp_kqv")?.filter(|bound| *bound > 0.0);
    let normalised = facts.config_flag("norm_topk_prob", false)?.unwrap_or(false);
    let mut experts = experts::usual(facts, &base, normalised)?;
    if !facts.is_gguf() {
        experts.count = facts.number("num_experts", "")?.or(facts.number("num_local_experts", "")?).unwrap_or(64);
        experts.used = facts.number("num_experts_per_tok", "")?.unwrap_or(8);
    }
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let attention = AttentionSpec { bias, norm: QueryKeyNorm::Whole, clamp, ..base.attention() };
    let mut layer = llama::layer(attention, base.mlp());
    layer.feed_forward = FeedForward::Experts(experts);
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let mut spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    spec.spelling = experts::spelled(spec.spelling, facts);
    Ok(spec)
}
