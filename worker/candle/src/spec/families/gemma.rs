//! Gemma (Gemma Team, 2024, arXiv 2403.08295), Gemma 2 (arXiv 2408.00118) and Gemma 3 (2025, arXiv 2503.19786): norms
//! around parts, bounded scores and logits, and windows.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults, all_but_each};
use crate::spec::families::llama;
use crate::spec::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, LayerSpec, Mixer, NormKind, NormOrder, NormPlaces,
    QueryKeyNorm, RopeScaling, RopeSpec, TensorSpelling,
};

const DEFAULTS: Defaults = Defaults {
    layers: 26,
    hidden: 2_304,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    intermediate: 9_216,
    vocab: 256_000,
    positions: 8_192,
    tied: true,
    activation: Activation::GeluTanh,
    ..Defaults::LLAMA
};

/// Properties of all Gemmas: a factor on embeddings, norms whose weights are stored as differences from 1, and their
/// names.
fn finished(mut spec: DecoderSpec, facts: &ModelFacts<'_>) -> DecoderSpec {
    spec.factors.embedding = f64::from((spec.hidden as f32).sqrt());
    // The converter to GGUF adds the 1.
    spec.norm.kind = if facts.is_gguf() { NormKind::Rms } else { NormKind::RmsFromOne };
    if spec.layers.iter().any(|layer| layer.norms == NormPlaces::Around) {
        spec.spelling = around(spec.spelling, facts);
    }
    spec
}

/// Names of norms around parts.
pub(super) fn around(spelling: TensorSpelling, facts: &ModelFacts<'_>) -> TensorSpelling {
    if facts.is_gguf() {
        return spelling;
    }
    spelling.renaming(&[
        ("mixer_post_norm", "post_attention_layernorm"),
        ("post_attention_layernorm", "pre_feedforward_layernorm"),
        ("mlp_post_norm", "post_feedforward_layernorm"),
    ])
}

/// The rope of layers that see everything, and that of layers with a window.
pub(super) fn two_ropes(facts: &ModelFacts<'_>, base: &Base) -> Result<Vec<RopeSpec>, FactError> {
    let usual = RopeDefaults::usual(base.head_dim, base.positions);
    let global = facts.rope(&RopeDefaults { theta: 1e6, layer_type: Some("full_attention"), ..usual })?;
    let mut local = facts.rope(&RopeDefaults { layer_type: Some("sliding_attention"), ..usual })?;
    // Before each kind had a table of its own, one table was for layers that see everything.
    if let Some(theta) = facts.float("rope_local_base_freq", "")? {
        (local.theta, local.scaling) = (theta, RopeScaling::None);
    } else if facts.lacks_tables_for_kinds()? {
        (local.theta, local.scaling) = (10_000.0, RopeScaling::None);
    }
    Ok(vec![global, local])
}

/// The base. Early files name the exact GELU, and mean the approximation by tanh.
fn base(facts: &ModelFacts<'_>, defaults: &Defaults) -> Result<Base, FactError> {
    let base = facts.base(defaults)?;
    let activation = if base.activation == Activation::GeluErf { Activation::GeluTanh } else { base.activation };
    Ok(Base { activation, ..base })
}

/// The factor on scores. GGUF has no key for it: only the largest models differ from the width of a head.
fn scale(facts: &ModelFacts<'_>, base: &Base, largest: usize, default: f64) -> Result<f64, FactError> {
    let scalar = if facts.is_gguf() {
        let width = if base.layers == largest { base.hidden / base.heads.max(1) } else { base.head_dim };
        width as f64
    } else {
        facts.float("query_pre_attn_scalar", "")?.unwrap_or(default)
    };
    Ok(scalar.powf(-0.5))
}

/// A bound that `null` turns off.
fn softcap(facts: &ModelFacts<'_>, key: &str, gguf: &str, default: Option<f64>) -> Result<Option<f64>, FactError> {
    let found = facts.float(key, gguf)?;
    Ok(if facts.is_null(key) { None } else { found.or(default.filter(|_| !facts.is_gguf())) })
}

pub(super) fn gemma(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = base(
        facts,
        &Defaults { layers: 28, hidden: 3_072, heads: 16, kv_heads: Some(16), intermediate: 24_576, ..DEFAULTS },
    )?;
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let layer = llama::layer(AttentionSpec { bias, ..base.attention() }, base.mlp());
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    Ok(finished(base.decoder(facts, vec![rope], llama::same(&layer, base.layers)), facts))
}

pub(super) fn gemma2(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = base(facts, &DEFAULTS)?;
    let attention = AttentionSpec {
        bias: facts.attention_bias("attention_bias", AttentionBias::All)?,
        scale: scale(facts, &base, 46, 256.0)?,
        softcap: softcap(facts, "attn_logit_softcapping", "attn_logit_softcapping", Some(50.0))?,
        ..base.attention()
    };
    let window = facts.window(Some(4_096))?.or(facts.is_gguf().then_some(4_096));
    let windows = facts.windows(base.layers, window, |layer| layer.is_multiple_of(2))?;
    let layer = |window| LayerSpec {
        norms: NormPlaces::Around,
        ..llama::layer(AttentionSpec { window, ..attention.clone() }, base.mlp())
    };
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let mut spec = base.decoder(facts, vec![rope], windows.into_iter().map(layer).collect());
    spec.logit_softcap = softcap(facts, "final_logit_softcapping", "final_logit_softcapping", Some(30.0))?;
    Ok(finished(spec, facts))
}

pub(super) fn gemma3(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = base(facts, &Defaults { vocab: 262_208, positions: 131_072, ..DEFAULTS })?;
    let attention = AttentionSpec {
        bias: facts.attention_bias("attention_bias", AttentionBias::All)?,
        norm: QueryKeyNorm::Heads(NormOrder::BeforeRotation),
        scale: scale(facts, &base, 62, 256.0)?,
        ..base.attention()
    };
    let pattern = match facts.number("sliding_window_pattern", "")? {
        Some(pattern) => pattern,
        None => facts.number("_sliding_window_pattern", "")?.unwrap_or(6),
    };
    let pattern = match facts.numbers("", "attention.sliding_window_pattern")? {
        Some(_) => pattern,
        None => facts.number("", "attention.sliding_window_pattern")?.unwrap_or(pattern),
    };
    let window = facts.window(Some(4_096))?;
    let sliding = facts.sliding(base.layers, all_but_each(pattern))?;
    let layer = |sliding: bool| {
        let window = window.filter(|_| sliding);
        let rope = Some(usize::from(sliding && (window.is_some() || !facts.is_gguf())));
        let layer = llama::layer(AttentionSpec { window, rope, ..attention.clone() }, base.mlp());
        LayerSpec { norms: NormPlaces::Around, ..layer }
    };
    let mut spec = base.decoder(facts, two_ropes(facts, &base)?, sliding.into_iter().map(layer).collect());
    spec.logit_softcap = softcap(facts, "final_logit_softcapping", "final_logit_softcapping", None)?;
    spec.whole_images = true;
    if facts.flag("use_bidirectional_attention", "")? == Some(true) {
        halve_windows(&mut spec);
    }
    Ok(finished(spec, facts))
}

/// EmbeddingGemma (Vera et al., 2025, arXiv 2509.20354): tokens see those on both sides, and the window is the width of
/// both together.
fn halve_windows(spec: &mut DecoderSpec) {
    for layer in &mut spec.layers {
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.window = attention.window.map(|window| window / 2 + 1);
            attention.both_ways = true;
        }
    }
}

/// The same model in GGUF.
pub(super) fn gemma_embedding(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let mut spec = gemma3(facts)?;
    halve_windows(&mut spec);
    Ok(spec)
}
