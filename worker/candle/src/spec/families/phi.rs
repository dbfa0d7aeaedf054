//! Phi-3, Phi-3.5 and Phi-4 (Abdin et al., 2024, arXiv 2404.14219): Llama with fused projections and LongRoPE.

use crate::spec::facts::{Defaults, FactError, Facts, RopeDefaults};
use crate::spec::families::llama;
use crate::spec::{AttentionSpec, DecoderSpec};

const QUERY_KEY_VALUE: &[&str] = &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
const GATE_UP: &[&str] = &["mlp.gate_proj", "mlp.up_proj"];

pub(super) fn phi3(facts: &Facts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults =
        Defaults { hidden: 3_072, intermediate: 8_192, vocab: 32_064, positions: 4_096, eps: 1e-5, ..Defaults::LLAMA };
    let base = facts.base(&defaults)?;
    let window = facts.window(None)?;
    let layer = llama::layer(AttentionSpec { window, ..base.attention() }, base.mlp());
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let mut spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    spec.spelling = match facts.is_gguf() {
        false => spec.spelling.fused("self_attn.qkv_proj", QUERY_KEY_VALUE).fused("mlp.gate_up_proj", GATE_UP),
        true => {
            let spelling = spec.spelling.fused("ffn_up", GATE_UP);
            // Some files have the projections apart.
            if facts.gguf_has("blk.0.attn_qkv.weight") { spelling.fused("attn_qkv", QUERY_KEY_VALUE) } else { spelling }
        }
    };
    Ok(spec)
}
