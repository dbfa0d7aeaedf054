//! ERNIE 4.5 (Baidu, 2025), dense and with experts: Llama whose planes are neighbours.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::{experts, llama};
use crate::spec::{
    AttentionBias, AttentionSpec, DecoderSpec, FeedForward, LayerSpec, MlpSpec, RopePlanes, RopeSpec, RouterSpec,
};

const DEFAULTS: Defaults = Defaults {
    layers: 18,
    hidden: 1_024,
    heads: 16,
    kv_heads: Some(2),
    head_dim: Some(128),
    intermediate: 3_072,
    vocab: 103_424,
    positions: 131_072,
    eps: 1e-5,
    tied: true,
    ..Defaults::LLAMA
};

fn rope(facts: &ModelFacts<'_>, base: &Base) -> Result<RopeSpec, FactError> {
    let usual = RopeDefaults::usual(base.head_dim, base.positions);
    facts.rope(&RopeDefaults { planes: RopePlanes::Neighbours, theta: 500_000.0, ..usual })
}

/// Attention and a dense feed-forward part, and whether their projections have biases.
fn layer(facts: &ModelFacts<'_>, base: &Base) -> Result<(LayerSpec, bool), FactError> {
    let bias = facts.config_flag("use_bias", facts.gguf_has("blk.0.attn_q.bias"))?.unwrap_or(false);
    let of_attention = if bias { AttentionBias::All } else { AttentionBias::None };
    let attention = AttentionSpec { bias: of_attention, ..base.attention() };
    Ok((llama::layer(attention, MlpSpec { bias, ..base.mlp() }), bias))
}

pub(super) fn ernie4_5(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&DEFAULTS)?;
    let (layer, _) = layer(facts, &base)?;
    Ok(base.decoder(facts, vec![rope(facts, &base)?], llama::same(&layer, base.layers)))
}

pub(super) fn ernie4_5_moe(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        layers: 28,
        hidden: 2_560,
        heads: 20,
        kv_heads: Some(4),
        head_dim: None,
        intermediate: 12_288,
        ..DEFAULTS
    };
    let base = facts.base(&defaults)?;
    let (dense, bias) = layer(facts, &base)?;
    let mut experts = experts::usual(facts, &base, true)?;
    if !facts.is_gguf() {
        experts.count = facts.number("moe_num_experts", "")?.unwrap_or(64);
        experts.used = facts.number("moe_k", "")?.unwrap_or(6);
    }
    experts.router = RouterSpec { correction: true, ..RouterSpec::softmax(true) };
    let shared = match facts.number("", "expert_shared_feed_forward_length")? {
        Some(width) => width,
        None => facts.number("moe_num_shared_experts", "expert_shared_count")?.unwrap_or(2) * experts.intermediate,
    };
    experts.shared = experts::shared(&base, shared, false);
    if let Some(shared) = &mut experts.shared {
        shared.mlp.bias = bias;
    }
    let first = facts.number("moe_layer_start_index", "leading_dense_block_count")?.unwrap_or(1);
    // -1 is the last layer, and no number of this kind.
    let last = facts.number("moe_layer_end_index", "").unwrap_or(None).unwrap_or(usize::MAX);
    let step = facts.number("moe_layer_interval", "interleave_moe_layer_step")?.unwrap_or(1).max(1);
    let of = |index: usize| {
        let sparse = (first..=last).contains(&index) && (index + 1).is_multiple_of(step);
        let feed_forward = FeedForward::Experts(experts.clone());
        if sparse { LayerSpec { feed_forward, ..dense.clone() } } else { dense.clone() }
    };
    let mut spec = base.decoder(facts, vec![rope(facts, &base)?], (0..base.layers).map(of).collect());
    spec.head_bias |= bias && !facts.is_gguf();
    spec.spelling = experts::spelled(spec.spelling, facts);
    if !facts.is_gguf() {
        spec.spelling = spec.spelling.renaming(&[
            ("mlp.gate.e_score_correction_bias", "mlp.moe_statics.e_score_correction_bias"),
            ("mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"),
            ("mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"),
            ("mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj"),
        ]);
    }
    Ok(spec)
}
