//! Falcon-H1 (Zuo et al., 2025, arXiv 2507.22448): attention and Mamba-2 beside each other in every layer, with factors
//! on nearly all matrices.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::{hybrid, llama};
use crate::spec::part_names::{FINAL_NORM, MLP_NORM};
use crate::spec::{
    AttentionBias, AttentionSpec, DecoderSpec, Factors, GatedNorm, LayerSpec, MambaSpec, Mixer, MlpSpec,
};

pub(super) fn falcon_h1(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        intermediate: 14_336,
        vocab: 128_000,
        positions: 8_192,
        eps: 1e-5,
        ..Defaults::LLAMA
    };
    let base = facts.base(&defaults)?;
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let mlp = MlpSpec { bias: llama::mlp_bias(facts, "mlp_bias")?, ..base.mlp() };
    let mut mamba = MambaSpec { norm: norm(facts, base.layers)?, ..hybrid::mamba(facts, &base)? };
    if let Some(bias) = facts.flag("projectors_bias", "")? {
        mamba.out_bias = bias;
    }
    // The converter to GGUF has multiplied matrices with all factors.
    let factor = |key: &str| Ok::<_, FactError>(facts.float(key, "")?.unwrap_or(1.0));
    mamba.factors = of_parts::<5>(facts, "ssm_multipliers")?.map(|factor| factor as f32);
    let [gate, down] = of_parts(facts, "mlp_multipliers")?;
    let inputs = factor("attention_in_multiplier")?;
    let keys = factor("key_multiplier")?;
    let [attended, mixed] = [factor("attention_out_multiplier")?, factor("ssm_out_multiplier")?];
    // Factors on inputs are not on biases, those on outputs are.
    let matrix_factors: Vec<(&str, f64)> = [
        ("self_attn.q_proj.weight", inputs),
        ("self_attn.k_proj.weight", inputs * keys),
        ("self_attn.k_proj.bias", keys),
        ("self_attn.v_proj.weight", inputs),
        ("self_attn.o_proj.weight", attended),
        ("self_attn.o_proj.bias", attended),
        ("mamba.in_proj.weight", factor("ssm_in_multiplier")?),
        ("mamba.out_proj.weight", mixed),
        ("mamba.out_proj.bias", mixed),
        ("mlp.gate_proj.weight", gate),
        ("mlp.gate_proj.bias", gate),
        ("mlp.down_proj.weight", down),
        ("mlp.down_proj.bias", down),
    ]
    .into_iter()
    .filter(|(_, factor)| *factor != 1.0)
    .collect();
    let mixer = Mixer::Both(AttentionSpec { bias, ..base.attention() }, mamba);
    let layer = LayerSpec { mixer, ..llama::layer(base.attention(), mlp) };
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let mut spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    spec.factors = Factors {
        embedding: factor("embedding_multiplier")?,
        logits: factor("lm_head_multiplier")?,
        ..Factors::default()
    };
    spec.matrix_factors = matrix_factors;
    spec.spelling = match facts.is_gguf() {
        true => hybrid::spelled(spec.spelling, facts).renaming(&[("post_attention_layernorm.weight", "ffn_norm")]),
        false => spec.spelling.ending(&[(FINAL_NORM, "model.final_layernorm.weight")]).renaming(&[
            (MLP_NORM, "pre_ff_layernorm"),
            ("mlp.gate_proj", "feed_forward.gate_proj"),
            ("mlp.up_proj", "feed_forward.up_proj"),
            ("mlp.down_proj", "feed_forward.down_proj"),
        ]),
    };
    Ok(spec)
}

/// The norm behind Mamba's heads.
fn norm(facts: &ModelFacts<'_>, layers: usize) -> Result<GatedNorm, FactError> {
    let normed = facts.config_flag("mamba_rms_norm", facts.gguf_has_any("ssm_norm.weight", layers))?.unwrap_or(false);
    let before = facts.config_flag("mamba_norm_before_gate", false)?.unwrap_or(true);
    Ok(match (normed, before) {
        (false, _) => GatedNorm::None,
        (true, false) => GatedNorm::GateFirst,
        (true, true) => GatedNorm::NormFirst,
    })
}

/// The factors on several parts, which are 1 where there is no list.
fn of_parts<const N: usize>(facts: &ModelFacts<'_>, key: &str) -> Result<[f64; N], FactError> {
    let Some(list) = facts.floats(key, "")? else { return Ok([1.0; N]) };
    let wrong = || FactError::Malformed(format!("`{key}` has {} entries, not {N}", list.len()));
    let list: [f32; N] = list.as_slice().try_into().map_err(|_| wrong())?;
    Ok(list.map(f64::from))
}
