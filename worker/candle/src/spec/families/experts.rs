//! Mixtures of experts have much in common: their keys, and the names of their tensors.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, ModelFacts};
use crate::spec::spelling::{StackForm, TensorSpelling};
use crate::spec::{ExpertGroups, ExpertsSpec, GroupWorth, MlpSpec, RouterSpec, SharedExpert, Weighting};

pub(super) const GATE: &str = "mlp.experts.*.gate_proj";
pub(super) const UP: &str = "mlp.experts.*.up_proj";
pub(super) const DOWN: &str = "mlp.experts.*.down_proj";

/// Experts whose router is a softmax over all of them, by the usual keys.
pub(super) fn usual(facts: &ModelFacts<'_>, base: &Base, normalised: bool) -> Result<ExpertsSpec, FactError> {
    // Three names for one number: transformers maps the first two to each other.
    let count = match facts.number("num_experts", "expert_count")? {
        Some(count) => Some(count),
        None => facts.number("num_local_experts", "")?.or(facts.number("n_routed_experts", "")?),
    };
    let width = facts.number("moe_intermediate_size", "expert_feed_forward_length")?;
    Ok(ExpertsSpec {
        count: count.unwrap_or(8),
        used: facts.number("num_experts_per_tok", "expert_used_count")?.unwrap_or(2),
        intermediate: width.unwrap_or(base.intermediate),
        activation: base.activation,
        gated: true,
        bias: false,
        router: RouterSpec::softmax(normalised),
        shared: None,
    })
}

/// The router of DeepSeek: groups, a factor, and sigmoids with a correction of the choice in its third version.
pub(super) fn grouped(
    facts: &ModelFacts<'_>,
    weighting: Weighting,
    worth: GroupWorth,
) -> Result<RouterSpec, FactError> {
    let groups = facts.number("n_group", "expert_group_count")?.filter(|groups| *groups > 1);
    let used = facts.number("topk_group", "expert_group_used_count")?;
    let sigmoid = weighting == Weighting::Sigmoid;
    Ok(RouterSpec {
        weighting,
        bias: false,
        correction: sigmoid,
        groups: groups.map(|count| ExpertGroups { count, used: used.unwrap_or(count), worth }),
        normalised: facts.flag("norm_topk_prob", "expert_weights_norm")?.unwrap_or(sigmoid && !facts.is_gguf()),
        scale: facts.float("routed_scaling_factor", "expert_weights_scale")?.unwrap_or(1.0),
    })
}

/// An expert for every token, of this width.
pub(super) fn shared(base: &Base, intermediate: usize, gate: bool) -> Option<SharedExpert> {
    let mlp = MlpSpec { intermediate, bias: false, activation: base.activation };
    (intermediate > 0).then_some(SharedExpert { mlp, gate })
}

/// Names of experts: those of Qwen and DeepSeek in safetensors, and the stacks of GGUF.
pub(super) fn spelled(spelling: TensorSpelling, facts: &ModelFacts<'_>) -> TensorSpelling {
    if !facts.is_gguf() {
        return spelling;
    }
    spelling
        .stacked("ffn_gate_exps", &[GATE], StackForm::Rows)
        .stacked("ffn_up_exps", &[UP], StackForm::Rows)
        .stacked("ffn_down_exps", &[DOWN], StackForm::Rows)
        .renaming(&[
            ("mlp.gate", "ffn_gate_inp"),
            ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
            ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
            ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
            ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        ])
}
