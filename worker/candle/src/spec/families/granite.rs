//! Granite 3 and its mixtures of experts: Llama with factors on embeddings, scores, residuals and logits. Granite 4 has
//! Mamba-2 in most layers.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts};
use crate::spec::families::{experts, hybrid, llama};
use crate::spec::spelling::{StackForm, TensorSpelling};
use crate::spec::{
    AttentionBias, AttentionSpec, DecoderSpec, ExpertsSpec, Factors, FeedForward, LayerSpec, Mixer, MlpSpec,
    RouterSpec, Weighting,
};

const GATE_UP: &[&str] = &[experts::GATE, experts::UP];
const DENSE_GATE_UP: &[&str] = &["mlp.gate_proj", "mlp.up_proj"];
const SHARED_GATE_UP: &[&str] = &["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"];

/// The four factors; that on scores is returned beside the others.
pub(super) fn factors(facts: &ModelFacts<'_>) -> Result<(Factors, f64), FactError> {
    let factor = |config: &str, gguf: &str| Ok::<_, FactError>(facts.float(config, gguf)?.unwrap_or(1.0));
    let embedding = factor("embedding_multiplier", "embedding_scale")?;
    let factors = Factors {
        embedding,
        images: embedding,
        residual: factor("residual_multiplier", "residual_scale")?,
        // Logits are divided by it.
        logits: 1.0 / factor("logits_scaling", "logit_scale")?,
    };
    Ok((factors, factor("attention_multiplier", "attention.scale")?))
}

fn attention(facts: &ModelFacts<'_>, base: &Base, scale: f64) -> Result<AttentionSpec, FactError> {
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    Ok(AttentionSpec { bias, scale, ..base.attention() })
}

pub(super) fn granite(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults::LLAMA)?;
    let (factors, scale) = factors(facts)?;
    let mlp = MlpSpec { bias: llama::mlp_bias(facts, "mlp_bias")?, ..base.mlp() };
    let layer = llama::layer(attention(facts, &base, scale)?, mlp);
    let rope = facts.rope(&llama::reordered(facts, &base))?;
    let spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    Ok(DecoderSpec { factors, ..spec })
}

/// Experts behind a router that weighs the chosen ones, and one for every token.
fn routed(facts: &ModelFacts<'_>, base: &Base, shared: usize) -> Result<ExpertsSpec, FactError> {
    let mut experts = experts::usual(facts, base, false)?;
    experts.router = RouterSpec { weighting: Weighting::SoftmaxOfChosen, ..experts.router };
    let width = facts.number("shared_intermediate_size", "expert_shared_feed_forward_length")?;
    experts.shared = experts::shared(base, width.unwrap_or(shared), false);
    Ok(experts)
}

pub(super) fn granite_moe(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults::LLAMA)?;
    let (factors, scale) = factors(facts)?;
    let mut layer = llama::layer(attention(facts, &base, scale)?, base.mlp());
    layer.feed_forward = FeedForward::Experts(routed(facts, &base, 0)?);
    let rope = facts.rope(&llama::reordered(facts, &base))?;
    let mut spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    spec.factors = factors;
    spec.spelling = spelled(experts::spelled(spec.spelling, facts), facts);
    Ok(spec)
}

/// Names of experts in safetensors.
fn spelled(spelling: TensorSpelling, facts: &ModelFacts<'_>) -> TensorSpelling {
    if facts.is_gguf() {
        return spelling;
    }
    spelling
        .stacked("block_sparse_moe.input_linear", GATE_UP, StackForm::Rows)
        .stacked("block_sparse_moe.output_linear", &[experts::DOWN], StackForm::Rows)
        .fused("shared_mlp.input_linear", SHARED_GATE_UP)
        .renaming(&[
            ("mlp.gate", "block_sparse_moe.router.layer"),
            ("mlp.shared_expert.down_proj", "shared_mlp.output_linear"),
        ])
}

/// Granite 4: Mamba-2 in most layers, and experts in some models.
pub(super) fn granite_hybrid(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let mut base = facts.base(&Defaults::LLAMA)?;
    let (factors, mut scale) = factors(facts)?;
    if facts.is_gguf() && facts.float("", "attention.scale")?.is_none() {
        // Bamba, which has the same name there.
        scale = base.attention().scale;
    }
    let rotated = match facts.is_gguf() {
        true => facts.flag("", "rope.scaling.finetuned")?.unwrap_or(false),
        false => facts.text("position_embedding_type")? == Some("rope"),
    };
    if rotated && facts.number("", "rope.dimension_count")?.is_some_and(|width| width != base.head_dim) {
        // The converter reorders whole heads, and llama.cpp rotates other planes than the model has.
        return Err(FactError::Unsupported("rotations of parts of reordered heads".to_owned()));
    }
    let rope = rotated.then_some(0);
    let attention = AttentionSpec { rope, ..attention(facts, &base, scale)? };
    let count = facts.number("num_local_experts", "expert_count")?.or(facts.number("num_experts", "")?);
    let sparse = count.unwrap_or(if facts.is_gguf() { 0 } else { 8 }) > 0;
    let feed_forward = if sparse {
        FeedForward::Experts(routed(facts, &base, if facts.is_gguf() { 0 } else { 1_024 })?)
    } else {
        // The parameter of experts for every token is also that of models without others.
        let shared = facts.number("shared_intermediate_size", "expert_shared_feed_forward_length")?;
        base.intermediate = shared.unwrap_or(if facts.is_gguf() { base.intermediate } else { 1_024 });
        FeedForward::Gated(base.mlp())
    };
    let mamba = hybrid::mamba(facts, &base)?;
    let attends = hybrid::attends(facts, base.layers)?.unwrap_or_else(|| vec![false; base.layers]);
    let layer = |attends: bool| LayerSpec {
        mixer: if attends { Mixer::Attention(attention.clone()) } else { Mixer::Mamba(mamba) },
        feed_forward: feed_forward.clone(),
        ..llama::layer(attention.clone(), base.mlp())
    };
    let layers = attends.into_iter().map(layer).collect();
    let rope = facts.rope(&llama::reordered(facts, &base))?;
    let mut spec = base.decoder(facts, vec![rope], layers);
    spec.factors = factors;
    spec.spelling = hybrid::spelled(spec.spelling, facts);
    spec.spelling = if sparse {
        spelled(experts::spelled(spec.spelling, facts), facts)
    } else if facts.is_gguf() {
        spec.spelling
    } else {
        let spelling = spec.spelling.fused("shared_mlp.input_linear", DENSE_GATE_UP);
        spelling.renaming(&[("mlp.down_proj", "shared_mlp.output_linear")])
    };
    Ok(spec)
}
