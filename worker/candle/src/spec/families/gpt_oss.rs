//! gpt-oss (OpenAI, 2025, arXiv 2508.10925): sinks, alternating windows, and experts with biases in MXFP4.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::{experts, llama};
use crate::spec::spelling::{StackForm, TensorSpelling};
use crate::spec::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, ExpertsSpec, FeedForward, LayerSpec, RopeScaling,
    RouterSpec, Weighting,
};

const GATE_UP_WEIGHTS: &[&str] = &["mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"];
const GATE_UP_BIASES: &[&str] = &["mlp.experts.*.gate_proj.bias", "mlp.experts.*.up_proj.bias"];
const DOWN_WEIGHT: &[&str] = &["mlp.experts.*.down_proj.weight"];
const DOWN_BIAS: &[&str] = &["mlp.experts.*.down_proj.bias"];

pub(super) fn gpt_oss(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        layers: 36,
        hidden: 2_880,
        heads: 64,
        kv_heads: Some(8),
        head_dim: Some(64),
        intermediate: 2_880,
        vocab: 201_088,
        positions: 131_072,
        eps: 1e-5,
        ..Defaults::LLAMA
    };
    let base = facts.base(&defaults)?;
    let mut experts = ExpertsSpec {
        bias: true,
        activation: Activation::SwigluClamped { limit: facts.float("swiglu_limit", "")?.unwrap_or(7.0) as f32 },
        router: RouterSpec { weighting: Weighting::SoftmaxOfChosen, bias: true, ..RouterSpec::softmax(false) },
        ..experts::usual(facts, &base, false)?
    };
    if !facts.is_gguf() {
        experts.count = facts.number("num_local_experts", "")?.or(facts.number("num_experts", "")?).unwrap_or(128);
        experts.used = facts.number("num_experts_per_tok", "")?.unwrap_or(4);
        experts.intermediate = base.intermediate;
    }
    let biased = facts.config_flag("attention_bias", facts.gguf_has("blk.0.attn_q.bias"))?.unwrap_or(true);
    let bias = if biased { AttentionBias::All } else { AttentionBias::None };
    let window = facts.window(Some(128))?;
    let windows = facts.windows(base.layers, window, |layer| layer.is_multiple_of(2))?;
    let layer = |window| {
        let attention = AttentionSpec { bias, window, sinks: true, ..base.attention() };
        LayerSpec { feed_forward: FeedForward::Experts(experts.clone()), ..llama::layer(attention, base.mlp()) }
    };
    let usual = RopeDefaults::usual(base.head_dim, base.positions);
    let mut rope = facts.rope(&RopeDefaults { theta: 150_000.0, ..usual })?;
    if let RopeScaling::Yarn { truncate, .. } = &mut rope.scaling {
        // GGUF has no key for it.
        *truncate &= !facts.is_gguf();
    }
    let mut spec = base.decoder(facts, vec![rope], windows.into_iter().map(layer).collect());
    spec.spelling = match facts.is_gguf() {
        true => {
            let biases = |spelling: TensorSpelling, stored, of| spelling.stacked(stored, of, StackForm::Biases);
            let spelling = experts::spelled(spec.spelling, facts).renaming(&[
                ("post_attention_layernorm", "post_attention_norm"),
                ("self_attn.sinks", "attn_sinks.weight"),
            ]);
            let spelling = biases(spelling, "ffn_gate_exps.bias", &["mlp.experts.*.gate_proj.bias"]);
            let spelling = biases(spelling, "ffn_up_exps.bias", &["mlp.experts.*.up_proj.bias"]);
            biases(spelling, "ffn_down_exps.bias", DOWN_BIAS)
        }
        false => {
            let form = if facts.is_mxfp4()? { StackForm::Mxfp4 } else { StackForm::Turned };
            spec.spelling
                .renaming(&[("mlp.gate", "mlp.router")])
                .stacked_in_turns("mlp.experts.gate_up_proj", GATE_UP_WEIGHTS, form)
                .stacked_in_turns("mlp.experts.gate_up_proj_bias", GATE_UP_BIASES, StackForm::Biases)
                .stacked("mlp.experts.down_proj", DOWN_WEIGHT, form)
                .stacked("mlp.experts.down_proj_bias", DOWN_BIAS, StackForm::Biases)
        }
    };
    Ok(spec)
}
