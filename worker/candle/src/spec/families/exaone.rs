//! EXAONE 4 (LG AI Research, 2025, arXiv 2507.11407): norms behind parts and over heads, and windows.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Defaults, ModelFacts, RopeDefaults, all_but_each};
use crate::spec::families::llama;
use crate::spec::{AttentionSpec, DecoderSpec, LayerSpec, NormOrder, NormPlaces, QueryKeyNorm};

pub(super) fn exaone4(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults { intermediate: 16_384, vocab: 102_400, eps: 1e-5, ..Defaults::LLAMA };
    let base = facts.base(&defaults)?;
    // GGUF has no key for the window, which the model with 64 layers alone has.
    let window = match facts.is_gguf() {
        true => facts.window(None)?.or((base.layers == 64).then_some(4_096)),
        false => facts.window(Some(4_096))?,
    };
    let pattern = if facts.text("sliding_window_pattern").is_ok_and(|text| text.is_some()) {
        4
    } else {
        facts.number("sliding_window_pattern", "")?.unwrap_or(4)
    };
    let sliding = facts.sliding(base.layers, all_but_each(pattern))?;
    let layer = |sliding: bool| {
        let attention = AttentionSpec {
            norm: QueryKeyNorm::Heads(NormOrder::BeforeRotation),
            window: window.filter(|_| sliding),
            // Of a model with windows, the layers that see everything do not encode positions.
            rope: (sliding || window.is_none()).then_some(0),
            ..base.attention()
        };
        LayerSpec { norms: NormPlaces::Behind, ..llama::layer(attention, base.mlp()) }
    };
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let mut spec = base.decoder(facts, vec![rope], sliding.into_iter().map(layer).collect());
    if !facts.is_gguf() {
        spec.spelling = spec.spelling.renaming(&[
            ("mixer_post_norm", "post_attention_layernorm"),
            ("mlp_post_norm", "post_feedforward_layernorm"),
        ]);
    }
    Ok(spec)
}
