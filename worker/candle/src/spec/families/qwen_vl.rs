//! The language models of Qwen2.5-VL (Bai et al., 2025, arXiv 2502.13923) and Qwen3-VL: Qwen2 and Qwen3 with positions
//! of three dimensions (Wang et al., 2024, arXiv 2409.12191).

use crate::spec::check::inconsistent;
use crate::spec::fact_error::FactError;
use crate::spec::facts::{Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::{llama, qwen};
use crate::spec::{AttentionBias, AttentionSpec, DecoderSpec, NormOrder, QueryKeyNorm, RopeSpec};

/// The planes of a head that turn by time, rows and columns, one kind behind the other.
fn in_sections(facts: &ModelFacts<'_>, rope: RopeSpec) -> Result<RopeSpec, FactError> {
    let sections = facts.rope_numbers("mrope_section")?.unwrap_or_else(|| vec![16, 24, 24]);
    let planes = rope.width / 2;
    if sections.iter().fold(0_usize, |sum, section| sum.saturating_add(*section)) != planes {
        return Err(inconsistent(format!("mrope_section is {sections:?}, for {planes} planes")));
    }
    let axes = sections.iter().enumerate().flat_map(|(at, count)| std::iter::repeat_n((at % 3) as u8, *count));
    Ok(RopeSpec { axes: axes.collect(), ..rope })
}

/// The same in turns, with what is left over for time.
fn in_turns(facts: &ModelFacts<'_>, rope: RopeSpec) -> Result<RopeSpec, FactError> {
    let sections = facts.rope_numbers("mrope_section")?.unwrap_or_else(|| vec![24, 20, 20]);
    let [_, rows, columns] = sections[..] else {
        return Err(inconsistent(format!("mrope_section is {sections:?}, which are not three numbers")));
    };
    let axis = |plane: usize| match plane % 3 {
        1 if plane < rows.saturating_mul(3) => 1,
        2 if plane < columns.saturating_mul(3) => 2,
        _ => 0,
    };
    Ok(RopeSpec { axes: (0..rope.width / 2).map(axis).collect(), ..rope })
}

pub(super) fn qwen2_5_vl(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults {
        layers: 80,
        hidden: 8_192,
        heads: 64,
        kv_heads: Some(8),
        intermediate: 29_568,
        vocab: 152_064,
        positions: 32_768,
        eps: 1e-5,
        ..Defaults::LLAMA
    })?;
    let first = facts.number("max_window_layers", "")?.unwrap_or(80);
    let windows = facts.windows(base.layers, qwen::window(facts)?, |layer| layer >= first)?;
    let attention = AttentionSpec { bias: AttentionBias::QueryKeyValue, ..base.attention() };
    let layer = |window| llama::layer(AttentionSpec { window, ..attention.clone() }, base.mlp());
    let rope = facts.rope(&RopeDefaults { theta: 1e6, ..RopeDefaults::usual(base.head_dim, base.positions) })?;
    Ok(base.decoder(facts, vec![in_sections(facts, rope)?], windows.into_iter().map(layer).collect()))
}

pub(super) fn qwen3_vl(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults {
        kv_heads: Some(32),
        head_dim: Some(128),
        intermediate: 22_016,
        vocab: 151_936,
        positions: 128_000,
        ..Defaults::LLAMA
    })?;
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let norm = QueryKeyNorm::Heads(NormOrder::BeforeRotation);
    let layer = llama::layer(AttentionSpec { bias, norm, ..base.attention() }, base.mlp());
    let rope = facts.rope(&RopeDefaults { theta: 5e5, ..RopeDefaults::usual(base.head_dim, base.positions) })?;
    Ok(base.decoder(facts, vec![in_turns(facts, rope)?], llama::same(&layer, base.layers)))
}
