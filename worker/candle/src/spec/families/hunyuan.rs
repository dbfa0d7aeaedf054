//! Hunyuan of Tencent, dense and with experts: Llama with norms of heads behind their rotation.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::{experts, llama};
use crate::spec::{AttentionBias, AttentionSpec, DecoderSpec, FeedForward, LayerSpec, NormOrder, QueryKeyNorm};

const DEFAULTS: Defaults = Defaults { vocab: 290_943, eps: 1e-5, ..Defaults::LLAMA };

fn layer(facts: &ModelFacts<'_>, base: &Base) -> Result<LayerSpec, FactError> {
    let bias = facts.attention_bias("attention_bias", AttentionBias::All)?;
    let norm = QueryKeyNorm::Heads(NormOrder::AfterRotation);
    Ok(llama::layer(AttentionSpec { bias, norm, ..base.attention() }, base.mlp()))
}

fn finished(facts: &ModelFacts<'_>, base: &Base, layer: &LayerSpec) -> Result<DecoderSpec, FactError> {
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let mut spec = base.decoder(facts, vec![rope], llama::same(layer, base.layers));
    if !facts.is_gguf() {
        spec.spelling = spec.spelling.renaming(&[
            ("self_attn.q_norm", "self_attn.query_layernorm"),
            ("self_attn.k_norm", "self_attn.key_layernorm"),
        ]);
    }
    Ok(spec)
}

pub(super) fn dense(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&DEFAULTS)?;
    finished(facts, &base, &layer(facts, &base)?)
}

pub(super) fn moe(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&DEFAULTS)?;
    let mut experts = experts::usual(facts, &base, true)?;
    if !facts.is_gguf() {
        experts.used = facts.number("moe_topk", "")?.unwrap_or(1);
        // The reference's experts are as wide as the dense part, whatever the other key says.
        experts.intermediate = base.intermediate;
    }
    let shared = facts.number("", "expert_shared_feed_forward_length")?.unwrap_or(base.intermediate);
    experts.shared = experts::shared(&base, shared, false);
    let layer = LayerSpec { feed_forward: FeedForward::Experts(experts), ..layer(facts, &base)? };
    let mut spec = finished(facts, &base, &layer)?;
    spec.spelling = experts::spelled(spec.spelling, facts);
    if !facts.is_gguf() {
        spec.spelling = spec.spelling.renaming(&[
            ("mlp.gate", "mlp.gate.wg"),
            ("mlp.shared_expert.gate_proj", "mlp.shared_mlp.gate_proj"),
            ("mlp.shared_expert.up_proj", "mlp.shared_mlp.up_proj"),
            ("mlp.shared_expert.down_proj", "mlp.shared_mlp.down_proj"),
        ]);
    }
    Ok(spec)
}
