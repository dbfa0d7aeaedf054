//! The text part of Gemma 3n (Google, 2025): several streams, inputs of each layer's own, gates that are mostly closed,
//! and layers that use the keys of others.

use candle_core::cpu::erf::erf_inv;

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, all_but_each, per_layer};
use crate::spec::families::{gemma, llama};
use crate::spec::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, LayerSpec, MlpSpec, NormOrder, NormPlaces, QueryKeyNorm,
    StreamsSpec,
};

const DEFAULTS: Defaults = Defaults {
    layers: 35,
    hidden: 2_048,
    heads: 8,
    kv_heads: Some(2),
    head_dim: Some(256),
    intermediate: 16_384,
    vocab: 262_400,
    positions: 32_768,
    tied: true,
    activation: Activation::GeluTanh,
    ..Defaults::LLAMA
};

pub(super) fn gemma3n(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&DEFAULTS)?;
    let window = facts.window(Some(512))?;
    let sliding = facts.sliding(base.layers, all_but_each(5))?;
    let shared = facts.number("num_kv_shared_layers", "attention.shared_kv_layers")?.unwrap_or(15);
    let first_shared = base.layers.saturating_sub(shared);
    let widths = match facts.numbers("intermediate_size", "feed_forward_length")? {
        Some(widths) => per_layer(widths, base.layers, "intermediate_size")?,
        None => vec![base.intermediate; base.layers],
    };
    let activations = activations(facts, &base)?;
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let layer = |index: usize| {
        // The last layer before them of the same kind.
        let of = (0..first_shared).rev().find(|other| sliding[*other] == sliding[index]);
        let attention = AttentionSpec {
            bias,
            norm: QueryKeyNorm::Heads(NormOrder::BeforeRotation),
            value_norm: true,
            keys_of: of.filter(|_| index >= first_shared),
            scale: 1.0,
            window: window.filter(|_| sliding[index]),
            rope: Some(usize::from(sliding[index])),
            ..base.attention()
        };
        let mlp = MlpSpec { intermediate: widths[index], activation: activations[index], ..base.mlp() };
        LayerSpec { norms: NormPlaces::Around, ..llama::layer(attention, mlp) }
    };
    let layers = (0..base.layers).map(layer).collect();
    let mut spec = base.decoder(facts, gemma::two_ropes(facts, &base)?, layers);
    spec.factors.embedding = (spec.hidden as f64).sqrt();
    spec.logit_softcap = facts.float("final_logit_softcapping", "final_logit_softcapping")?.or(Some(30.0));
    if facts.is_null("final_logit_softcapping") {
        spec.logit_softcap = None;
    }
    let need =
        |config: &str, gguf: &str, default: usize| Ok::<_, FactError>(facts.number(config, gguf)?.unwrap_or(default));
    spec.streams = Some(StreamsSpec {
        count: need("altup_num_inputs", "altup.num_inputs", 4)?,
        active: need("altup_active_idx", "altup.active_idx", 0)?,
        layer_input: need("hidden_size_per_layer_input", "embedding_length_per_layer_input", 256)?,
        layer_vocab: facts
            .gguf_rows("per_layer_token_embd.weight")
            .map_or_else(|| need("vocab_size_per_layer_input", "", 262_144), Ok)?,
        laurel_rank: facts.gguf_rows("blk.0.laurel_l.weight").map_or_else(|| need("laurel_rank", "", 64), Ok)?,
        scaled: facts.config_flag("altup_correct_scale", true)?.unwrap_or(true),
        activation: base.activation,
    });
    spec.spelling = gemma::around(spec.spelling, facts);
    if facts.is_gguf() {
        spec.spelling = spec
            .spelling
            .ending(&[
                ("model.altup_projections.*.weight", "altup_proj.weight"),
                ("model.altup_unembed_projections.*.weight", "altup_unembd_proj.weight"),
                ("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
                ("model.per_layer_model_projection.weight", "per_layer_model_proj.weight"),
                ("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
            ])
            .renaming(&[
                ("altup.correct_output_scale", "altup_correct_scale.weight"),
                ("altup.correction_coefs", "altup_correct_coef"),
                ("altup.prediction_coefs", "altup_predict_coef"),
                ("altup.modality_router", "altup_router"),
                ("altup.router_norm", "altup_router_norm"),
                ("laurel.linear_left", "laurel_l"),
                ("laurel.linear_right", "laurel_r"),
                ("laurel.post_laurel_norm", "laurel_post_norm"),
                ("per_layer_input_gate", "inp_gate"),
                ("per_layer_projection", "proj"),
                ("post_per_layer_input_norm", "post_norm"),
            ]);
    }
    Ok(spec)
}

/// Each layer's activation. The share of a gate that is closed becomes a bound in standard deviations.
fn activations(facts: &ModelFacts<'_>, base: &Base) -> Result<Vec<Activation>, FactError> {
    let above = |deviations: f32| match deviations.is_finite() {
        true => Activation::GeluTanhAbove { deviations },
        false => base.activation,
    };
    if let Some(deviations) = facts.floats("", "activation_sparsity_scale")? {
        return Ok(per_layer(deviations, base.layers, "activation_sparsity_scale")?.into_iter().map(above).collect());
    }
    let shares = match facts.floats("activation_sparsity_pattern", "")? {
        Some(shares) => per_layer(shares, base.layers, "activation_sparsity_pattern")?,
        None => (0..base.layers).map(|layer| if layer < 10 { 0.95 } else { 0.0 }).collect(),
    };
    let bound = |share: f32| {
        // The normal distribution's quantile.
        let deviations = 2_f64.sqrt() * erf_inv(2.0 * f64::from(share) - 1.0);
        above(if share > 0.0 { deviations as f32 } else { f32::NEG_INFINITY })
    };
    Ok(shares.into_iter().map(bound).collect())
}
