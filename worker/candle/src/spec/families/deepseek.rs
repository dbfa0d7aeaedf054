//! DeepSeek-V2 (DeepSeek-AI, 2024, arXiv 2405.04434) and DeepSeek-V3 (arXiv 2412.19437): attention over latent vectors,
//! and experts in groups.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, Defaults, ModelFacts, RopeDefaults, warmth};
use crate::spec::families::{experts, llama};
use crate::spec::spelling::TensorShare;
use crate::spec::{
    DecoderSpec, ExpertsSpec, FeedForward, GroupWorth, LatentProducts, LatentSpec, LayerSpec, Mixer, MlpSpec,
    RopePlanes, RopeScaling, RopeSpec, Weighting,
};

/// The names of the expert for every token, which is several in one.
pub(super) const SHARED: [(&str, &str); 3] = [
    ("mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"),
    ("mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"),
    ("mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj"),
];

pub(super) fn deepseek_v2(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        kv_heads: Some(32),
        intermediate: 11_008,
        vocab: 32_000,
        positions: 2_048,
        eps: 1e-6,
        ..Defaults::LLAMA
    };
    let base = facts.base(&defaults)?;
    // In GGUF one name is for both versions, and a key tells the formula of the router.
    if facts.number("", "expert_gating_func")? == Some(2) {
        return decoder(facts, &base, |facts, base| experts_of(facts, base, Weighting::Sigmoid));
    }
    decoder(facts, &base, |facts, base| experts_of(facts, base, Weighting::Softmax))
}

pub(super) fn deepseek_v3(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        layers: 61,
        hidden: 7_168,
        heads: 128,
        kv_heads: Some(128),
        intermediate: 18_432,
        vocab: 129_280,
        positions: 4_096,
        eps: 1e-6,
        ..Defaults::LLAMA
    };
    let base = facts.base(&defaults)?;
    decoder(facts, &base, |facts, base| experts_of(facts, base, Weighting::Sigmoid))
}

fn experts_of(facts: &ModelFacts<'_>, base: &Base, weighting: Weighting) -> Result<ExpertsSpec, FactError> {
    let v3 = weighting == Weighting::Sigmoid;
    let mut experts = experts::usual(facts, base, true)?;
    if !facts.is_gguf() {
        let (count, used, width) = if v3 { (256, 8, 2_048) } else { (64, 6, 1_407) };
        experts.count = facts.number("n_routed_experts", "")?.or(facts.number("num_experts", "")?).unwrap_or(count);
        experts.used = facts.number("num_experts_per_tok", "")?.unwrap_or(used);
        experts.intermediate = facts.number("moe_intermediate_size", "")?.unwrap_or(width);
    }
    let worth = if v3 { GroupWorth::TwoBest } else { GroupWorth::Best };
    let mut router = experts::grouped(facts, weighting, worth)?;
    if !v3 {
        // The reference ignores the key for the sum, and groups where the method is the greedy one.
        router.normalised = facts.is_gguf() && router.normalised;
        if facts.text("topk_method")?.unwrap_or("greedy") == "greedy" {
            router.groups = None;
        }
    }
    router.correction = if facts.is_gguf() { facts.gguf_has_any("exp_probs_b.bias", base.layers) } else { v3 };
    experts.router = router;
    let default = if v3 { 1 } else { 2 };
    let shared = facts.number("n_shared_experts", "expert_shared_count")?.unwrap_or(default);
    experts.shared = experts::shared(base, shared * experts.intermediate, false);
    if let Some(shared) = experts.shared.as_mut().filter(|_| !v3) {
        shared.mlp.bias = llama::mlp_bias(facts, "mlp_bias")?;
    }
    Ok(experts)
}

/// The rope, and the factor on scores that comes with its scaling.
fn rope(facts: &ModelFacts<'_>, base: &Base, rope_dim: usize) -> Result<(RopeSpec, f64), FactError> {
    let in_pairs = facts.is_gguf() || facts.flag("rope_interleave", "")?.unwrap_or(true);
    let planes = if in_pairs { RopePlanes::Neighbours } else { RopePlanes::Halves };
    let usual = RopeDefaults::usual(rope_dim, base.positions);
    let mut rope = facts.rope(&RopeDefaults { planes, ..usual })?;
    rope.width = rope_dim;
    let mut on_scores = 1.0;
    if let RopeScaling::Yarn { factor, attention_factor, .. } = &mut rope.scaling {
        let all_dim = match facts.float("", "rope.scaling.yarn_log_multiplier")? {
            Some(multiplier) => Some(multiplier * 10.0),
            None => facts.rope_float("mscale_all_dim")?,
        };
        if let Some(all_dim) = all_dim.filter(|all_dim| *all_dim != 0.0) {
            on_scores = warmth(*factor, all_dim).powi(2);
        }
        if facts.is_gguf() {
            // Files state the factor for readers that multiply it with the paper's, and models divide both away.
            *attention_factor = 1.0;
        }
    }
    Ok((rope, on_scores))
}

fn decoder(
    facts: &ModelFacts<'_>,
    base: &Base,
    experts: impl Fn(&ModelFacts<'_>, &Base) -> Result<ExpertsSpec, FactError>,
) -> Result<DecoderSpec, FactError> {
    let layers = base.layers - facts.number("", "nextn_predict_layers")?.unwrap_or(0).min(base.layers);
    let need =
        |config: &str, gguf: &str, default: usize| Ok::<_, FactError>(facts.number(config, gguf)?.unwrap_or(default));
    let rope_dim = need("qk_rope_head_dim", "rope.dimension_count", 64)?;
    let plain_dim = match facts.number("", "attention.key_length_mla")?.or(facts.number("", "attention.key_length")?) {
        Some(whole) => whole.saturating_sub(rope_dim),
        None => need("qk_nope_head_dim", "", 128)?,
    };
    let value_dim = match facts.number("v_head_dim", "attention.value_length_mla")? {
        Some(width) => width,
        None => need("", "attention.value_length", 128)?,
    };
    let query_rank = match facts.number("q_lora_rank", "attention.q_lora_rank")? {
        Some(rank) => Some(rank).filter(|rank| *rank > 0),
        None if facts.is_gguf() || facts.is_null("q_lora_rank") => None,
        None => Some(1_536),
    };
    let query_rank = query_rank.filter(|_| !facts.is_gguf() || facts.gguf_has("blk.0.attn_q_a.weight"));
    let (rope, on_scores) = rope(facts, base, rope_dim)?;
    let apart = facts.gguf_has("blk.0.attn_k_b.weight");
    let latent = LatentSpec {
        heads: base.heads,
        query_rank,
        rank: need("kv_lora_rank", "attention.kv_lora_rank", 512)?,
        plain_dim,
        rope_dim,
        value_dim,
        bias: facts.config_flag("attention_bias", facts.gguf_has("blk.0.attn_kv_a_mqa.bias"))?.unwrap_or(false),
        rope: 0,
        scale: ((plain_dim + rope_dim) as f64).powf(-0.5) * on_scores,
        // The reference's norms of latent vectors have the default epsilon, whatever that of the others is.
        norm_eps: if facts.is_gguf() { base.eps } else { 1e-6 },
        stored: if apart { LatentProducts::Apart } else { LatentProducts::Together },
    };
    let first = need(
        "first_k_dense_replace",
        "leading_dense_block_count",
        if facts.is_gguf() { 0 } else { first_dense(facts)? },
    )?;
    let experts = experts(facts, base)?;
    // Of the third version no part has biases, whatever the key says.
    let v3 = experts.router.weighting == Weighting::Sigmoid;
    let mlp = MlpSpec { bias: !v3 && llama::mlp_bias(facts, "mlp_bias")?, ..base.mlp() };
    let dense = LayerSpec { mixer: Mixer::Latent(latent.clone()), ..llama::layer(base.attention(), mlp) };
    let sparse = LayerSpec { feed_forward: FeedForward::Experts(experts), ..dense.clone() };
    let of = |index: usize| if index < first { dense.clone() } else { sparse.clone() };
    let mut spec = base.decoder(facts, vec![rope], (0..layers).map(of).collect());
    spec.spelling = experts::spelled(spec.spelling, facts);
    let (keys, values) = (plain_dim, value_dim);
    let of_heads = match (facts.is_gguf(), apart) {
        (true, true) => [("attn_k_b", TensorShare::Head), ("attn_v_b", TensorShare::Head)],
        (true, false) => [
            ("attn_kv_b", TensorShare::HeadKeys { keys, values }),
            ("attn_kv_b", TensorShare::HeadValues { keys, values }),
        ],
        (false, _) => [
            ("self_attn.kv_b_proj", TensorShare::HeadKeys { keys, values }),
            ("self_attn.kv_b_proj", TensorShare::HeadValues { keys, values }),
        ],
    };
    for (part, (stored, share)) in ["self_attn.heads.*.k_proj", "self_attn.heads.*.v_proj"].into_iter().zip(of_heads) {
        spec.spelling = spec.spelling.with(part, stored, share);
    }
    spec.spelling = match facts.is_gguf() {
        true => spec.spelling.renaming(&[
            ("self_attn.q_a_proj", "attn_q_a"),
            ("self_attn.q_a_layernorm", "attn_q_a_norm"),
            ("self_attn.q_b_proj", "attn_q_b"),
            ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
            ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
        ]),
        false => spec.spelling.renaming(&SHARED),
    };
    Ok(spec)
}

/// Dense layers before those with experts, where the file does not say it.
fn first_dense(facts: &ModelFacts<'_>) -> Result<usize, FactError> {
    Ok(if facts.text("model_type")? == Some("deepseek_v3") { 3 } else { 0 })
}
