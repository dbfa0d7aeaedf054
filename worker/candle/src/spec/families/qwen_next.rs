//! Qwen3-Next and Qwen3.5: a gated delta net in three of four layers, and attention with gates in the others.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults, all_but_each, per_layer};
use crate::spec::families::{experts, hybrid, llama, qwen};
use crate::spec::part_names::MLP_NORM;
use crate::spec::spelling::{StackForm, TensorSpelling};
use crate::spec::{
    AttentionBias, AttentionSpec, DecoderSpec, DeltaNetSpec, ExpertsSpec, FeedForward, KeySharing, LayerSpec, Mixer,
    NormKind, NormOrder, QueryKeyNorm,
};

const DEFAULTS: Defaults = Defaults {
    heads: 16,
    kv_heads: Some(2),
    head_dim: Some(256),
    hidden: 2_048,
    positions: 32_768,
    vocab: 248_320,
    ..Defaults::LLAMA
};

const GATE_UP_WEIGHTS: &[&str] = &["mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"];
const DOWN_WEIGHT: &[&str] = &["mlp.experts.*.down_proj.weight"];

/// The names of a gated delta net in GGUF.
const IN_GGUF: [(&str, &str); 11] = [
    (MLP_NORM, "post_attention_norm"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_ba", "ssm_ba"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.out_proj", "ssm_out"),
];

/// The delta net by the keys of both formats, with separate projections.
fn delta_net(facts: &ModelFacts<'_>, base: &Base) -> Result<DeltaNetSpec, FactError> {
    let number = |config: &str, gguf: &str, default| Ok::<_, FactError>(facts.number(config, gguf)?.unwrap_or(default));
    let value_heads = number("linear_num_value_heads", "ssm.time_step_rank", 32)?;
    let value_dim = match facts.number("", "ssm.inner_size")? {
        Some(inner) => inner.checked_div(value_heads).unwrap_or(0),
        None => number("linear_value_head_dim", "", 128)?,
    };
    Ok(DeltaNetSpec {
        key_heads: number("linear_num_key_heads", "ssm.group_count", 16)?,
        value_heads,
        key_dim: number("linear_key_head_dim", "ssm.state_size", 128)?,
        value_dim,
        taps: number("linear_conv_kernel_dim", "ssm.conv_kernel", 4)?,
        activation: base.activation,
        norm_eps: base.eps,
        decay: hybrid::decay(facts),
        one_input: false,
        one_rate: false,
        sharing: KeySharing::Neighbours,
    })
}

/// Layers of both kinds, with what follows each.
fn decoder(
    facts: &ModelFacts<'_>,
    base: &Base,
    net: DeltaNetSpec,
    feed_forward: impl Fn(usize) -> FeedForward,
) -> Result<DecoderSpec, FactError> {
    let attention = AttentionSpec {
        bias: facts.attention_bias("attention_bias", AttentionBias::All)?,
        norm: QueryKeyNorm::Heads(NormOrder::BeforeRotation),
        output_gate: true,
        ..base.attention()
    };
    let layer = |(index, learns): (usize, bool)| LayerSpec {
        mixer: if learns { Mixer::DeltaNet(net) } else { Mixer::Attention(attention.clone()) },
        feed_forward: feed_forward(index),
        ..llama::layer(attention.clone(), base.mlp())
    };
    let layers = learn(facts, base.layers)?.into_iter().enumerate().map(layer).collect();
    let usual = RopeDefaults::usual(base.head_dim, base.positions);
    let rope = facts.rope(&RopeDefaults { partial: 0.25, ..usual })?;
    let mut spec = base.decoder(facts, vec![rope], layers);
    if facts.is_gguf() {
        spec.spelling = spec.spelling.renaming(&IN_GGUF);
    } else {
        // The converter to GGUF adds the 1.
        spec.norm.kind = NormKind::RmsFromOne;
    }
    Ok(spec)
}

/// Whether each layer has a delta net.
fn learn(facts: &ModelFacts<'_>, layers: usize) -> Result<Vec<bool>, FactError> {
    if let Some(flags) = facts.numbers("", "attention.recurrent_layers")? {
        let flags = per_layer(flags, layers, "attention.recurrent_layers")?;
        return Ok(flags.into_iter().map(|flag| flag != 0).collect());
    }
    if let Some(attends) = hybrid::attends(facts, layers)? {
        return Ok(attends.into_iter().map(|attends| !attends).collect());
    }
    let interval = facts.number("full_attention_interval", "full_attention_interval")?.unwrap_or(4);
    Ok((0..layers).map(all_but_each(interval)).collect())
}

/// Experts with one for every token behind a gate.
fn routed(facts: &ModelFacts<'_>, base: &Base, count: usize, used: usize) -> Result<ExpertsSpec, FactError> {
    let normalised = facts.config_flag("norm_topk_prob", true)?.unwrap_or(true);
    let mut experts = experts::usual(facts, base, normalised)?;
    if !facts.is_gguf() {
        experts.count = facts.number("num_experts", "")?.unwrap_or(count);
        experts.used = facts.number("num_experts_per_tok", "")?.unwrap_or(used);
        experts.intermediate = facts.number("moe_intermediate_size", "")?.unwrap_or(512);
    }
    let width = facts.number("shared_expert_intermediate_size", "expert_shared_feed_forward_length")?;
    experts.shared = experts::shared(base, width.unwrap_or(512), true);
    Ok(experts)
}

pub(super) fn qwen3_next(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let base = facts.base(&Defaults { layers: 48, intermediate: 5_632, vocab: 151_936, ..DEFAULTS })?;
    let net = DeltaNetSpec { one_input: !facts.is_gguf(), one_rate: true, ..delta_net(facts, &base)? };
    let (experts, sparse) = (routed(facts, &base, 512, 10)?, qwen::sparse(facts, base.layers)?);
    let mut spec = decoder(facts, &base, net, |layer| match sparse[layer] {
        true => FeedForward::Experts(experts.clone()),
        false => FeedForward::Gated(base.mlp()),
    })?;
    spec.spelling = experts::spelled(spec.spelling, facts);
    Ok(spec)
}

/// The delta net of Qwen3.5, whose value heads are in another order in GGUF.
fn net_in_order(facts: &ModelFacts<'_>, base: &Base) -> Result<DeltaNetSpec, FactError> {
    let sharing = if facts.is_gguf() { KeySharing::Turns } else { KeySharing::Neighbours };
    Ok(DeltaNetSpec { sharing, ..delta_net(facts, base)? })
}

pub(super) fn qwen3_5(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults { hidden: 4_096, kv_heads: Some(4), intermediate: 12_288, ..DEFAULTS };
    let mut base = facts.base(&defaults)?;
    base.layers -= predicting(facts, base.layers)?;
    decoder(facts, &base, net_in_order(facts, &base)?, |_| FeedForward::Gated(base.mlp()))
}

pub(super) fn qwen3_5_moe(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let mut base = facts.base(&Defaults { layers: 40, ..DEFAULTS })?;
    base.layers -= predicting(facts, base.layers)?;
    let experts = routed(facts, &base, 256, 8)?;
    let net = net_in_order(facts, &base)?;
    let mut spec = decoder(facts, &base, net, |_| FeedForward::Experts(experts.clone()))?;
    spec.spelling = if facts.is_gguf() {
        experts::spelled(spec.spelling, facts)
    } else {
        let stacked = TensorSpelling::default()
            .stacked("mlp.experts.gate_up_proj", GATE_UP_WEIGHTS, StackForm::Rows)
            .stacked("mlp.experts.down_proj", DOWN_WEIGHT, StackForm::Rows);
        spec.spelling.or_else(stacked.parts)
    };
    Ok(spec)
}

/// Layers behind the others that predict further tokens.
fn predicting(facts: &ModelFacts<'_>, layers: usize) -> Result<usize, FactError> {
    Ok(facts.number("", "nextn_predict_layers")?.unwrap_or(0).min(layers))
}
