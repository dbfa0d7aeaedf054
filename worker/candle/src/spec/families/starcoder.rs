//! StarCoder2 (Lozhkov et al., 2024, arXiv 2402.19173): LayerNorms with biases and plain feed-forward parts.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Defaults, ModelFacts, RopeDefaults};
use crate::spec::families::llama;
use crate::spec::{Activation, AttentionBias, AttentionSpec, DecoderSpec, FeedForward, LayerSpec, MlpSpec, NormKind};

pub(super) fn starcoder2(facts: &ModelFacts<'_>) -> Result<DecoderSpec, FactError> {
    let defaults = Defaults {
        layers: 30,
        hidden: 3_072,
        heads: 24,
        kv_heads: Some(2),
        intermediate: 12_288,
        vocab: 49_152,
        positions: 4_096,
        eps: 1e-5,
        tied: true,
        activation: Activation::GeluTanh,
        ..Defaults::LLAMA
    };
    let mut base = facts.base(&defaults)?;
    base.eps = facts.float("norm_epsilon", "attention.layer_norm_epsilon")?.unwrap_or(1e-5);
    let bias = facts.config_flag("use_bias", facts.gguf_has("blk.0.attn_q.bias"))?.unwrap_or(true);
    let of_attention = if bias { AttentionBias::All } else { AttentionBias::None };
    let window = facts.window(None)?;
    let attention = AttentionSpec { bias: of_attention, window, ..base.attention() };
    let mlp = MlpSpec { bias, ..base.mlp() };
    let layer = LayerSpec { feed_forward: FeedForward::Plain(mlp), ..llama::layer(attention, mlp) };
    let rope = facts.rope(&RopeDefaults::usual(base.head_dim, base.positions))?;
    let mut spec = base.decoder(facts, vec![rope], llama::same(&layer, base.layers));
    spec.norm.kind = NormKind::LayerWithBias;
    if !facts.is_gguf() {
        spec.spelling = spec.spelling.renaming(&[("mlp.up_proj", "mlp.c_fc"), ("mlp.down_proj", "mlp.c_proj")]);
    }
    Ok(spec)
}
