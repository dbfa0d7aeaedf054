//! The tensors of a checkpoint of the Llama family, by name and shape: `[out, in]` for a projection. The names are
//! those of safetensors; [`in_gguf`] converts them to GGUF's.

use crate::spec::{AttentionBias, DecoderSpec};

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const FINAL_NORM: &str = "model.norm.weight";
pub(crate) const HEAD: &str = "lm_head.weight";

/// The path of a layer's part, without `.weight` or `.bias`.
pub(crate) fn layer(index: usize, part: &str) -> String {
    format!("model.layers.{index}.{part}")
}

/// The name of a tensor in GGUF files.
pub(crate) fn in_gguf(name: &str) -> String {
    match name {
        EMBEDDING => "token_embd.weight".to_owned(),
        FINAL_NORM => "output_norm.weight".to_owned(),
        HEAD => "output.weight".to_owned(),
        name => {
            const PARTS: [(&str, &str); 11] = [
                ("input_layernorm", "attn_norm"),
                ("post_attention_layernorm", "ffn_norm"),
                ("self_attn.q_proj", "attn_q"),
                ("self_attn.k_proj", "attn_k"),
                ("self_attn.v_proj", "attn_v"),
                ("self_attn.o_proj", "attn_output"),
                ("self_attn.q_norm", "attn_q_norm"),
                ("self_attn.k_norm", "attn_k_norm"),
                ("mlp.gate_proj", "ffn_gate"),
                ("mlp.up_proj", "ffn_up"),
                ("mlp.down_proj", "ffn_down"),
            ];
            let renamed = name.strip_prefix("model.layers.").and_then(|rest| {
                let (index, rest) = rest.split_once('.')?;
                let (part, kind) = rest.rsplit_once('.')?;
                let (_, part) = PARTS.into_iter().find(|(known, _)| *known == part)?;
                Some(format!("blk.{index}.{part}.{kind}"))
            });
            renamed.unwrap_or_else(|| name.to_owned())
        }
    }
}

/// A tensor that a spec needs, with its shape.
pub(crate) struct Needed {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
}

impl DecoderSpec {
    /// All needed tensors apart from embedding and head, which may be one tensor under either name. The iterator is
    /// lazy, because the number of layers is only the configuration's claim until the weights have confirmed it.
    pub(crate) fn needed(&self) -> impl Iterator<Item = Needed> + '_ {
        let norm = Needed { name: FINAL_NORM.to_owned(), shape: vec![self.hidden] };
        std::iter::once(norm).chain((0..self.layers).flat_map(|index| self.needed_by_layer(index)))
    }

    /// Shape of the embedding and of the head.
    pub(crate) fn embedding_shape(&self) -> Vec<usize> {
        vec![self.vocab, self.hidden]
    }

    /// All tensors that one layer needs.
    pub(crate) fn needed_by_layer(&self, index: usize) -> Vec<Needed> {
        let bias = self.attention_bias;
        let (qkv_bias, output_bias) = (bias != AttentionBias::None, bias == AttentionBias::All);
        let projections = [
            ("self_attn.q_proj", self.q_width(), self.hidden, qkv_bias),
            ("self_attn.k_proj", self.kv_width(), self.hidden, qkv_bias),
            ("self_attn.v_proj", self.kv_width(), self.hidden, qkv_bias),
            ("self_attn.o_proj", self.hidden, self.q_width(), output_bias),
            ("mlp.gate_proj", self.intermediate, self.hidden, self.mlp_bias),
            ("mlp.up_proj", self.intermediate, self.hidden, self.mlp_bias),
            ("mlp.down_proj", self.hidden, self.intermediate, self.mlp_bias),
        ];
        let mut needed = Vec::new();
        let mut need = |name: String, shape: Vec<usize>| needed.push(Needed { name, shape });
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            need(format!("{}.weight", layer(index, norm)), vec![self.hidden]);
        }
        for norm in ["self_attn.q_norm", "self_attn.k_norm"].into_iter().filter(|_| self.head_norm) {
            need(format!("{}.weight", layer(index, norm)), vec![self.head_dim]);
        }
        for (part, out_width, in_width, bias) in projections {
            let path = layer(index, part);
            if bias {
                need(format!("{path}.bias"), vec![out_width]);
            }
            need(format!("{path}.weight"), vec![out_width, in_width]);
        }
        needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gguf_has_other_names() {
        let heads = layer(17, "self_attn.k_norm.weight");
        for (name, renamed) in [
            (EMBEDDING, "token_embd.weight"),
            (&heads, "blk.17.attn_k_norm.weight"),
            ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
            ("model.layers.3.self_attn.q_proj.bias", "blk.3.attn_q.bias"),
        ] {
            assert_eq!(in_gguf(name), renamed);
        }
    }
}
