//! Nemotron-H (NVIDIA, 2025, arXiv 2504.03624): layers that each have one part, of Mamba-2, attention, a feed-forward
//! part without gate, or experts.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, activation, per_layer};
use crate::spec::families::{experts, hybrid, llama};
use crate::spec::part_names::{FINAL_NORM, MIXER_NORM, MLP_NORM};
use crate::spec::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForward, GatedNorm, GroupWorth, LayerSpec,
    MambaSpec, Mixer, MlpSpec, Weighting,
};

/// The part that a layer has.
#[derive(Clone, Copy)]
enum NemotronPart {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

/// The parts of all layers.
fn parts(facts: &ModelFacts<'_>) -> Result<Vec<NemotronPart>, FactError> {
    if facts.is_gguf() {
        let Some(widths) = facts.numbers("", "feed_forward_length")? else {
            return Err(FactError::Unsupported("layers without a list of widths".to_owned()));
        };
        let heads = facts.numbers("", "attention.head_count_kv")?.unwrap_or_default();
        let heads = per_layer(heads, widths.len(), "attention.head_count_kv")?;
        let part = |(index, (width, heads))| match (width, heads) {
            (0, 0) => NemotronPart::Mamba,
            (0, _) => NemotronPart::Attention,
            _ if facts.gguf_has(&format!("blk.{index}.ffn_gate_inp.weight")) => NemotronPart::Experts,
            _ => NemotronPart::Mlp,
        };
        return Ok(widths.into_iter().zip(heads).enumerate().map(part).collect());
    }
    let unknown = |kind: &str| FactError::Unsupported(format!("layers of the kind '{}'", kind.escape_debug()));
    for key in ["layers_block_type", "layer_types"] {
        if let Some(kinds) = facts.layer_types(key)? {
            let part = |kind: &String| match kind.as_str() {
                "linear_attention" | "mamba" => Ok(NemotronPart::Mamba),
                "full_attention" | "attention" => Ok(NemotronPart::Attention),
                "mlp" => Ok(NemotronPart::Mlp),
                "moe" => Ok(NemotronPart::Experts),
                other => Err(unknown(other)),
            };
            return kinds.iter().map(part).collect();
        }
    }
    let pattern = facts.text("hybrid_override_pattern")?.unwrap_or("ME*-");
    let part = |letter: char| match letter {
        'M' => Ok(NemotronPart::Mamba),
        '*' => Ok(NemotronPart::Attention),
        '-' => Ok(NemotronPart::Mlp),
        'E' => Ok(NemotronPart::Experts),
        other => Err(unknown(&other.to_string())),
    };
    pattern.chars().map(part).collect()
}

fn mamba(facts: &ModelFacts<'_>, base: &Base) -> Result<MambaSpec, FactError> {
    let number = |keys: [&str; 2], gguf: &str, default: usize| match facts.number(keys[0], gguf)? {
        Some(number) => Ok::<_, FactError>(number),
        None => Ok(facts.number(keys[1], "")?.unwrap_or(default)),
    };
    let heads = number(["mamba_num_heads", ""], "ssm.time_step_rank", 128)?;
    let head_dim = match facts.number("", "ssm.inner_size")? {
        Some(inner) => inner.checked_div(heads).unwrap_or(0),
        None => number(["mamba_head_dim", ""], "", 64)?,
    };
    let biased = facts.config_flag("use_conv_bias", facts.gguf_has_any("ssm_conv1d.bias", base.layers))?;
    let least = facts.float("time_step_min", "")?.or(facts.float("mamba_dt_min", "")?);
    let bias = facts.config_flag("use_bias", facts.gguf_has_any("ssm_in.bias", base.layers))?.unwrap_or(false);
    Ok(MambaSpec {
        heads,
        head_dim,
        groups: number(["mamba_n_groups", "n_groups"], "ssm.group_count", 8)?,
        state_dim: number(["ssm_state_size", ""], "ssm.state_size", 128)?,
        taps: number(["mamba_d_conv", "conv_kernel"], "ssm.conv_kernel", 4)?,
        conv_bias: biased.or(facts.flag("mamba_conv_bias", "")?).unwrap_or(true),
        // GGUF has no key for it.
        least_step: least.unwrap_or(if facts.is_gguf() { 0.0 } else { 0.001 }) as f32,
        bias,
        out_bias: if facts.is_gguf() { facts.gguf_has_any("ssm_out.bias", base.layers) } else { bias },
        activation: facts.text("mamba_hidden_act")?.map_or(Ok(Activation::Silu), activation)?,
        norm: GatedNorm::GateFirst,
        ..hybrid::mamba(facts, base)?
    })
}

fn routed(facts: &ModelFacts<'_>, base: &Base, activation: Activation) -> Result<ExpertsSpec, FactError> {
    if facts.number("moe_latent_size", "")?.is_some() {
        return Err(FactError::Unsupported("experts behind a narrow projection".to_owned()));
    }
    let mut spec = experts::usual(facts, base, true)?;
    spec.count = facts.number("n_routed_experts", "expert_count")?.unwrap_or(8);
    spec.intermediate = facts.number("moe_intermediate_size", "expert_feed_forward_length")?.unwrap_or(7_688);
    spec.activation = activation;
    spec.gated = false;
    spec.router = experts::grouped(facts, Weighting::Sigmoid, GroupWorth::TwoBest)?;
    let shared = facts.number("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length")?;
    let count = facts.number("n_shared_experts", "")?.unwrap_or(1);
    let width = if count > 0 { shared.unwrap_or(7_688) } else { 0 };
    spec.shared = experts::shared(&Base { activation, ..base.clone() }, width, false);
    if let Some(shared) = &mut spec.shared {
        shared.mlp.bias = llama::mlp_bias(facts, "mlp_bias")?;
    }
    Ok(spec)
}

pub(super) fn nemotron_h(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        intermediate: 21_504,
        vocab: 131_072,
        positions: 4_096,
        eps: 1e-5,
        ..Defaults::LLAMA
    };
    let mut base = facts.base(&defaults)?;
    if let Some(eps) = facts.float("layer_norm_epsilon", "")? {
        base.eps = eps;
    }
    let parts = parts(facts)?;
    base.layers = parts.len();
    let activation = facts.text("mlp_hidden_act")?.map_or(Ok(Activation::ReluSquared), activation)?;
    // The reference's attention has no biases, whatever the key says.
    let bias = if facts.is_gguf() { facts.attention_bias("", AttentionBias::All)? } else { AttentionBias::None };
    let attention = AttentionSpec { bias, rope: None, ..base.attention() };
    let mlp = MlpSpec { bias: llama::mlp_bias(facts, "mlp_bias")?, activation, ..base.mlp() };
    let mamba = mamba(facts, &base)?;
    let experts = routed(facts, &base, activation)?;
    let layer = |part: NemotronPart| {
        let (mixer, feed_forward) = match part {
            NemotronPart::Mamba => (Mixer::Mamba(mamba), FeedForward::None),
            NemotronPart::Attention => (Mixer::Attention(attention.clone()), FeedForward::None),
            NemotronPart::Mlp => (Mixer::None, FeedForward::Plain(mlp)),
            NemotronPart::Experts => (Mixer::None, FeedForward::Experts(experts.clone())),
        };
        LayerSpec { mixer, feed_forward, ..llama::layer(attention.clone(), mlp) }
    };
    let layers = parts.into_iter().map(layer).collect();
    let mut spec = base.decoder(facts, Vec::new(), layers);
    spec.spelling = if facts.is_gguf() {
        experts::spelled(hybrid::spelled(spec.spelling, facts), facts).renaming(&[(MLP_NORM, "attn_norm")])
    } else {
        spec.spelling
            .ending(&[
                ("model.embed_tokens.weight", "backbone.embeddings.weight"),
                (FINAL_NORM, "backbone.norm_f.weight"),
            ])
            .renaming(&[
                (MIXER_NORM, "norm"),
                (MLP_NORM, "norm"),
                ("self_attn.q_proj", "mixer.q_proj"),
                ("self_attn.k_proj", "mixer.k_proj"),
                ("self_attn.v_proj", "mixer.v_proj"),
                ("self_attn.o_proj", "mixer.o_proj"),
                ("mlp.up_proj", "mixer.up_proj"),
                ("mlp.down_proj", "mixer.down_proj"),
                ("mlp.gate", "mixer.gate"),
                ("mlp.gate.e_score_correction_bias", "mixer.gate.e_score_correction_bias"),
                ("mlp.shared_expert.up_proj", "mixer.shared_experts.up_proj"),
                ("mlp.shared_expert.down_proj", "mixer.shared_experts.down_proj"),
                (experts::UP, "mixer.experts.*.up_proj"),
                (experts::DOWN, "mixer.experts.*.down_proj"),
                ("mamba.in_proj", "mixer.in_proj"),
                ("mamba.out_proj", "mixer.out_proj"),
                ("mamba.conv1d", "mixer.conv1d"),
                ("mamba.norm", "mixer.norm"),
                ("mamba.A_log", "mixer.A_log"),
                ("mamba.D", "mixer.D"),
                ("mamba.dt_bias", "mixer.dt_bias"),
            ])
    };
    if !facts.is_gguf() {
        spec.spelling.layers = "backbone.layers.";
        spec.spelling.outside = String::new();
    }
    Ok(spec)
}
