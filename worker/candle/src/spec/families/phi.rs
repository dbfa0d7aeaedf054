//! Phi-3, Phi-3.5 and Phi-4 (Abdin et al., 2024, arXiv 2404.14219): Llama with fused projections and LongRoPE; and
//! Phi-3.5-MoE, with LayerNorms and experts.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::{experts, llama};
use crate::spec::{
    AttentionBias, AttentionSpec, DecoderSpec, FeedForward, NormKind, RopeScaling, RouterSpec, Weighting,
};

const QUERY_KEY_VALUE: &[&str] = &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
const GATE_UP: &[&str] = &["mlp.gate_proj", "mlp.up_proj"];

pub(super) fn phi3(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults =
        Defaults { hidden: 3_072, intermediate: 8_192, vocab: 32_064, positions: 4_096, eps: 1e-5, ..Defaults::LLAMA };
    let base = facts.base(&defaults)?;
    let window = facts.window(None)?;
    let layer = llama::layer(AttentionSpec { window, ..base.attention() }, base.mlp());
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let mut spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    spec.spelling = match facts.is_gguf() {
        false => spec.spelling.fused("self_attn.qkv_proj", QUERY_KEY_VALUE).fused("mlp.gate_up_proj", GATE_UP),
        true => {
            let spelling = spec.spelling.fused("ffn_up", GATE_UP);
            // Some files have the projections apart.
            if facts.gguf_has("blk.0.attn_qkv.weight") { spelling.fused("attn_qkv", QUERY_KEY_VALUE) } else { spelling }
        }
    };
    Ok(spec)
}

pub(super) fn phimoe(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        intermediate: 6_400,
        vocab: 32_064,
        positions: 131_072,
        eps: 1e-5,
        ..Defaults::LLAMA
    };
    let base = facts.base(&defaults)?;
    let mut experts = experts::usual(facts, &base, false)?;
    if !facts.is_gguf() {
        experts.count = facts.number("num_local_experts", "")?.unwrap_or(16);
    }
    let jitter = facts.float("router_jitter_noise", "")?.unwrap_or(0.01) as f32;
    experts.router = RouterSpec { weighting: Weighting::SparseMixer { jitter }, ..experts.router };
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let window = facts.window(None)?;
    let mut layer = llama::layer(AttentionSpec { bias, window, ..base.attention() }, base.mlp());
    layer.feed_forward = FeedForward::Experts(experts);
    let mut rope = facts.rope(&RopeDefaults { theta: 1e6, ..RopeDefaults::usual(base.head_dim, base.positions) })?;
    if let RopeScaling::Long { short, long, attention_factors, .. } = &mut rope.scaling {
        // The reference has the first set for all lengths, and another factor on attention for long ones.
        long.clone_from(short);
        for (factor, key) in attention_factors.iter_mut().zip(["short_mscale", "long_mscale"]) {
            *factor = facts.rope_float(key)?.unwrap_or(*factor);
        }
    }
    let mut spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    spec.norm.kind = NormKind::LayerWithBias;
    spec.head_bias |= facts.flag("lm_head_bias", "")?.unwrap_or(false);
    spec.spelling = spec.spelling.renaming(&[
        ("mlp.gate", "block_sparse_moe.gate"),
        (experts::GATE, "block_sparse_moe.experts.*.w1"),
        (experts::UP, "block_sparse_moe.experts.*.w3"),
        (experts::DOWN, "block_sparse_moe.experts.*.w2"),
    ]);
    Ok(spec)
}
