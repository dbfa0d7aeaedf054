//! LFM2 (Liquid AI, 2025, arXiv 2511.23404), dense and with experts: most layers have a short convolution in place of
//! attention.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::{experts, hybrid, llama};
use crate::spec::part_names::{FINAL_NORM, MIXER_NORM, MLP_NORM};
use crate::spec::{
    AttentionSpec, DecoderSpec, FeedForward, LayerSpec, Mixer, NormOrder, QueryKeyNorm, RouterSpec, ShortConvSpec,
    Weighting,
};

const DEFAULTS: Defaults = Defaults {
    hidden: 2_560,
    kv_heads: Some(8),
    intermediate: 12_288,
    vocab: 65_536,
    positions: 128_000,
    eps: 1e-5,
    tied: true,
    ..Defaults::LLAMA
};

/// Layers of both kinds, with what follows each.
fn decoder(
    facts: &ModelFacts<'_>,
    base: &Base,
    feed_forward: impl Fn(usize) -> FeedForward,
) -> Result<DecoderSpec, FactError> {
    let attention = AttentionSpec { norm: QueryKeyNorm::Heads(NormOrder::BeforeRotation), ..base.attention() };
    let conv = ShortConvSpec {
        width: base.hidden,
        taps: facts.number("conv_L_cache", "shortconv.l_cache")?.unwrap_or(3),
        bias: facts
            .config_flag("conv_bias", facts.gguf_has_any("shortconv.in_proj.bias", base.layers))?
            .unwrap_or(false),
    };
    let layer = |(index, attends): (usize, bool)| LayerSpec {
        mixer: if attends { Mixer::Attention(attention.clone()) } else { Mixer::ShortConv(conv) },
        feed_forward: feed_forward(index),
        ..llama::layer(attention.clone(), base.mlp())
    };
    let layers = attends(facts, base.layers)?.into_iter().enumerate().map(layer).collect();
    let usual = RopeDefaults::usual(base.head_dim, base.positions);
    let rope = facts.rope(&RopeDefaults { theta: 1e6, ..usual })?;
    let mut spec = base.decoder(facts, vec![rope], layers);
    spec.spelling = if facts.is_gguf() {
        spec.spelling.ending(&[(FINAL_NORM, "token_embd_norm.weight")]).renaming(&[
            ("conv.conv", "shortconv.conv"),
            ("conv.in_proj", "shortconv.in_proj"),
            ("conv.out_proj", "shortconv.out_proj"),
        ])
    } else {
        spec.spelling.ending(&[(FINAL_NORM, "model.embedding_norm.weight")]).renaming(&[
            (MIXER_NORM, "operator_norm"),
            (MLP_NORM, "ffn_norm"),
            ("self_attn.q_norm", "self_attn.q_layernorm"),
            ("self_attn.k_norm", "self_attn.k_layernorm"),
            ("self_attn.o_proj", "self_attn.out_proj"),
            ("mlp.gate_proj", "feed_forward.w1"),
            ("mlp.up_proj", "feed_forward.w3"),
            ("mlp.down_proj", "feed_forward.w2"),
            ("mlp.gate", "feed_forward.gate"),
            ("mlp.gate.e_score_correction_bias", "feed_forward.expert_bias"),
            (experts::GATE, "feed_forward.experts.*.w1"),
            (experts::UP, "feed_forward.experts.*.w3"),
            (experts::DOWN, "feed_forward.experts.*.w2"),
        ])
    };
    Ok(spec)
}

/// Whether each layer has attention.
fn attends(facts: &ModelFacts<'_>, layers: usize) -> Result<Vec<bool>, FactError> {
    if let Some(attends) = hybrid::attends(facts, layers)? {
        return Ok(attends);
    }
    let listed = facts.numbers("full_attn_idxs", "")?;
    Ok((0..layers).map(|layer| listed.as_ref().is_none_or(|listed| listed.contains(&layer))).collect())
}

fn base(facts: &ModelFacts<'_>, defaults: &Defaults) -> Result<Base, FactError> {
    let mut base = facts.base(defaults)?;
    if let Some(eps) = facts.float("norm_eps", "")? {
        base.eps = eps;
    }
    if let Some(tied) = facts.flag("tie_embedding", "")? {
        base.tied = tied;
    }
    Ok(base)
}

pub(super) fn lfm2(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let mut base = base(facts, &DEFAULTS)?;
    if let Some(width) = facts.number("block_ff_dim", "")? {
        base.intermediate = width;
    }
    // GGUF has the width as it is.
    if facts.config_flag("block_auto_adjust_ff_dim", false)?.unwrap_or(true) {
        let factor = facts.float("block_ffn_dim_multiplier", "")?.unwrap_or(1.0);
        let width = (factor * (2 * base.intermediate / 3) as f64) as usize;
        let multiple = facts.number("block_multiple_of", "")?.unwrap_or(256).max(1);
        base.intermediate = width.div_ceil(multiple) * multiple;
    }
    decoder(facts, &base, |_| FeedForward::Gated(base.mlp()))
}

pub(super) fn lfm2_moe(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = base(facts, &Defaults { hidden: 2_048, intermediate: 7_168, ..DEFAULTS })?;
    let mut experts = experts::usual(facts, &base, true)?;
    if !facts.is_gguf() {
        experts.count = facts.number("num_experts", "")?.unwrap_or(32);
        experts.used = facts.number("num_experts_per_tok", "")?.unwrap_or(4);
        experts.intermediate = facts.number("moe_intermediate_size", "")?.unwrap_or(1_792);
    }
    experts.router = RouterSpec {
        weighting: Weighting::Sigmoid,
        correction: facts
            .config_flag("use_expert_bias", facts.gguf_has_any("exp_probs_b.bias", base.layers))?
            .unwrap_or(true),
        normalised: facts.config_flag("norm_topk_prob", true)?.unwrap_or(true),
        scale: facts.float("routed_scaling_factor", "expert_weights_scale")?.unwrap_or(1.0),
        ..experts.router
    };
    let first = facts.number("num_dense_layers", "leading_dense_block_count")?.unwrap_or(2);
    let mut spec = decoder(facts, &base, |layer| match layer < first {
        true => FeedForward::Gated(base.mlp()),
        false => FeedForward::Experts(experts.clone()),
    })?;
    spec.spelling = experts::spelled(spec.spelling, facts);
    Ok(spec)
}
