//! Mistral (Jiang et al., 2023, arXiv 2310.06825) and Ministral: windows; and Mixtral (Jiang et al., 2024, arXiv
//! 2401.04088): experts.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts};
use crate::spec::families::{experts, llama};
use crate::spec::{AttentionSpec, DecoderSpec, FeedForward, LayerSpec};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), intermediate: 14_336, positions: 131_072, ..Defaults::LLAMA };

/// Layers with these windows.
fn windowed(base: &Base, windows: Vec<Option<usize>>) -> Vec<LayerSpec> {
    let layer = |window| llama::layer(AttentionSpec { window, ..base.attention() }, base.mlp());
    windows.into_iter().map(layer).collect()
}

pub(super) fn mistral(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&DEFAULTS)?;
    let windows = facts.windows(base.layers, facts.window(Some(4_096))?, |_| true)?;
    let rope = facts.rope(&llama::reordered(facts, &base))?;
    Ok(base.decoder(facts, vec![rope], windowed(&base, windows)))
}

pub(super) fn mixtral(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults { eps: 1e-5, ..DEFAULTS })?;
    let window = facts.window(None)?;
    let mut layers = windowed(&base, vec![window; base.layers]);
    let experts = experts::usual(facts, &base, true)?;
    for layer in &mut layers {
        layer.feed_forward = FeedForward::Experts(experts.clone());
    }
    let mut rope = llama::reordered(facts, &base);
    rope.theta = 1e6;
    let mut spec = base.decoder(facts, vec![facts.rope(&rope)?], layers);
    spec.spelling = spec.spelling.renaming(&[
        ("mlp.gate", "block_sparse_moe.gate"),
        (experts::GATE, "block_sparse_moe.experts.*.w1"),
        (experts::UP, "block_sparse_moe.experts.*.w3"),
        (experts::DOWN, "block_sparse_moe.experts.*.w2"),
    ]);
    Ok(spec)
}
