//! Bamba: Llama with Mamba-2 in most layers.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::{hybrid, llama};
use crate::spec::part_names::{FINAL_NORM, MLP_NORM};
use crate::spec::{AttentionBias, AttentionSpec, DecoderSpec, LayerSpec, Mixer, MlpSpec};

pub(super) fn bamba(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        intermediate: 14_336,
        vocab: 128_000,
        positions: 262_144,
        eps: 1e-5,
        ..Defaults::LLAMA
    };
    let base = facts.base(&defaults)?;
    let mamba = hybrid::mamba(facts, &base)?;
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let attention = AttentionSpec { bias, ..base.attention() };
    let mlp = MlpSpec { bias: llama::mlp_bias(facts, "mlp_bias")?, ..base.mlp() };
    let attending = facts.numbers("attn_layer_indices", "")?.unwrap_or_default();
    let layer = |index| {
        let layer = llama::layer(attention.clone(), mlp);
        if attending.contains(&index) { layer } else { LayerSpec { mixer: Mixer::Mamba(mamba), ..layer } }
    };
    let layers = (0..base.layers).map(layer).collect();
    let usual = RopeDefaults::usual(base.head_dim, base.positions);
    let rope = facts.rope(&RopeDefaults { partial: 0.5, ..usual })?;
    let mut spec = base.decoder(facts, vec![rope], layers);
    spec.spelling = spec.spelling.ending(&[(FINAL_NORM, "model.final_layernorm.weight")]).renaming(&[
        (MLP_NORM, "pre_ff_layernorm"),
        ("mlp.gate_proj", "feed_forward.gate_proj"),
        ("mlp.up_proj", "feed_forward.up_proj"),
        ("mlp.down_proj", "feed_forward.down_proj"),
    ]);
    Ok(spec)
}
