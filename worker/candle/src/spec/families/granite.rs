//! Granite 3 and its mixtures of experts: Llama with factors on embeddings, scores, residuals and logits.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, Facts};
use crate::spec::families::{experts, llama};
use crate::spec::spelling::StackForm;
use crate::spec::{AttentionBias, AttentionSpec, DecoderSpec, Factors, FeedForward, MlpSpec, RouterSpec, Weighting};

const GATE_UP: &[&str] = &[experts::GATE, experts::UP];
const SHARED_GATE_UP: &[&str] = &["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"];

/// The four factors; that on scores is returned beside the others.
pub(super) fn factors(facts: &Facts<'_>) -> Result<(Factors, f64), FactError> {
    let factor = |config: &str, gguf: &str| Ok::<_, FactError>(facts.float(config, gguf)?.unwrap_or(1.0));
    let factors = Factors {
        embedding: factor("embedding_multiplier", "embedding_scale")?,
        residual: factor("residual_multiplier", "residual_scale")?,
        // Logits are divided by it.
        logits: 1.0 / factor("logits_scaling", "logit_scale")?,
    };
    Ok((factors, factor("attention_multiplier", "attention.scale")?))
}

fn attention(facts: &Facts<'_>, base: &Base, scale: f64) -> Result<AttentionSpec, FactError> {
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    Ok(AttentionSpec { bias, scale, ..base.attention() })
}

pub(super) fn granite(facts: &Facts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults::LLAMA)?;
    let (factors, scale) = factors(facts)?;
    let mlp = MlpSpec { bias: llama::mlp_bias(facts, "mlp_bias")?, ..base.mlp() };
    let layer = llama::layer(attention(facts, &base, scale)?, mlp);
    let rope = facts.rope(&llama::reordered(facts, &base))?;
    let spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    Ok(DecoderSpec { factors, ..spec })
}

pub(super) fn granite_moe(facts: &Facts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults::LLAMA)?;
    let (factors, scale) = factors(facts)?;
    let mut experts = experts::usual(facts, &base, false)?;
    experts.router = RouterSpec { weighting: Weighting::SoftmaxOfChosen, ..experts.router };
    let shared = facts.number("shared_intermediate_size", "expert_shared_feed_forward_length")?;
    experts.shared = experts::shared(&base, shared.unwrap_or(0), false);
    let mut layer = llama::layer(attention(facts, &base, scale)?, base.mlp());
    layer.feed_forward = FeedForward::Experts(experts);
    let rope = facts.rope(&llama::reordered(facts, &base))?;
    let mut spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    spec.factors = factors;
    spec.spelling = experts::spelled(spec.spelling, facts);
    if !facts.is_gguf() {
        spec.spelling = spec
            .spelling
            .stacked("block_sparse_moe.input_linear", GATE_UP, StackForm::Rows)
            .stacked("block_sparse_moe.output_linear", &[experts::DOWN], StackForm::Rows)
            .fused("shared_mlp.input_linear", SHARED_GATE_UP)
            .renaming(&[
                ("mlp.gate", "block_sparse_moe.router.layer"),
                ("mlp.shared_expert.down_proj", "shared_mlp.output_linear"),
            ]);
    }
    Ok(spec)
}
