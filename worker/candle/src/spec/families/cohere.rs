//! Command R and Command R7B of Cohere: one LayerNorm before both parts, which compute side by side.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults, all_but_each};
use crate::spec::families::llama;
use crate::spec::{
    AttentionBias, AttentionSpec, DecoderSpec, LayerSpec, NormKind, NormPlaces, QueryKeyNorm, RopePlanes,
};

const DEFAULTS: Defaults = Defaults {
    layers: 40,
    hidden: 8_192,
    heads: 64,
    intermediate: 22_528,
    vocab: 256_000,
    positions: 8_192,
    eps: 1e-5,
    tied: true,
    ..Defaults::LLAMA
};

fn base(facts: &ModelFacts<'_>) -> Result<Base, FactError> {
    let mut base = facts.base(&DEFAULTS)?;
    base.eps = facts.float("layer_norm_eps", "attention.layer_norm_epsilon")?.unwrap_or(DEFAULTS.eps);
    Ok(base)
}

fn finished(
    facts: &ModelFacts<'_>,
    base: &Base,
    theta: f64,
    layers: Vec<AttentionSpec>,
) -> Result<DecoderSpec, FactError> {
    let layer = |attention| LayerSpec { norms: NormPlaces::Parallel, ..llama::layer(attention, base.mlp()) };
    let usual = RopeDefaults::usual(base.head_dim, base.positions);
    let rope = facts.rope(&RopeDefaults { planes: RopePlanes::Neighbours, theta, ..usual })?;
    let mut spec = base.decoder(facts, vec![rope], layers.into_iter().map(layer).collect());
    spec.norm.kind = NormKind::Layer;
    spec.factors.logits = facts.float("logit_scale", "logit_scale")?.unwrap_or(0.0625);
    Ok(spec)
}

pub(super) fn cohere(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = base(facts)?;
    let normed = facts.config_flag("use_qk_norm", facts.gguf_has("blk.0.attn_q_norm.weight"))?.unwrap_or(false);
    let norm = if normed { QueryKeyNorm::LayerPerHead } else { QueryKeyNorm::None };
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let attention = AttentionSpec { bias, norm, ..base.attention() };
    finished(facts, &base, 500_000.0, vec![attention; base.layers])
}

/// Layers with windows, which encode positions, and layers that see everything and do not.
pub(super) fn cohere2(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = base(facts)?;
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let pattern = match facts.number("sliding_window_pattern", "")? {
        Some(pattern) => pattern,
        None => facts.number("_sliding_window_pattern", "")?.unwrap_or(4),
    };
    let window = facts.window(Some(4_096))?;
    let sliding = facts.sliding(base.layers, all_but_each(pattern))?;
    let attention = |sliding: bool| {
        let (window, rope) = (window.filter(|_| sliding), sliding.then_some(0));
        AttentionSpec { bias, window, rope, ..base.attention() }
    };
    finished(facts, &base, 10_000.0, sliding.into_iter().map(attention).collect())
}
