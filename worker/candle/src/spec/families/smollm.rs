//! SmolLM3: Llama of which some layers do not encode positions.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Defaults, ModelFacts, all_but_each, per_layer};
use crate::spec::families::{llama, qwen};
use crate::spec::{AttentionBias, AttentionSpec, DecoderSpec, MlpSpec};

pub(super) fn smollm3(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        layers: 36,
        hidden: 2_048,
        heads: 16,
        kv_heads: Some(4),
        intermediate: 11_008,
        vocab: 128_256,
        positions: 32_768,
        tied: true,
        ..Defaults::LLAMA
    };
    let base = facts.base(&defaults)?;
    let interval = facts.number("no_rope_layer_interval", "")?.unwrap_or(4);
    let rotated: Vec<bool> = match facts.numbers("no_rope_layers", "")? {
        // 1 says that the layer has it, despite the name.
        Some(flags) => per_layer(flags, base.layers, "no_rope_layers")?.into_iter().map(|flag| flag != 0).collect(),
        None => (0..base.layers).map(all_but_each(interval)).collect(),
    };
    let windows = facts.windows(base.layers, qwen::window(facts)?, |layer| !rotated[layer])?;
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let mlp = MlpSpec { bias: llama::mlp_bias(facts, "mlp_bias")?, ..base.mlp() };
    let layer = |(window, rotated): (Option<usize>, bool)| {
        let rope = rotated.then_some(0);
        llama::layer(AttentionSpec { bias, window, rope, ..base.attention() }, mlp)
    };
    let mut rope = llama::reordered(facts, &base);
    rope.theta = 2e6;
    let layers = windows.into_iter().zip(rotated).map(layer).collect();
    Ok(base.decoder(facts, vec![facts.rope(&rope)?], layers))
}
