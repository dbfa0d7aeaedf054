//! The names of a decoder's tensors, those of Llama in safetensors for all families, and a tensor that a spec needs.

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const FINAL_NORM: &str = "model.norm.weight";
pub(crate) const HEAD: &str = "lm_head.weight";
pub(crate) const HEAD_BIAS: &str = "lm_head.bias";

/// The norm before the part that mixes tokens.
pub(crate) const MIXER_NORM: &str = "input_layernorm";
/// The norm before the feed-forward part.
pub(crate) const MLP_NORM: &str = "post_attention_layernorm";
/// The norm behind the part that mixes tokens.
pub(crate) const MIXER_POST_NORM: &str = "mixer_post_norm";
/// The norm behind the feed-forward part.
pub(crate) const MLP_POST_NORM: &str = "mlp_post_norm";

/// The path of a layer's part, without `.weight` or `.bias`.
pub(crate) fn layer(index: usize, part: &str) -> String {
    format!("model.layers.{index}.{part}")
}

/// A tensor that a spec needs, with its shape.
#[derive(Clone, Debug)]
pub(crate) struct Needed {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
}

impl Needed {
    /// The name without the layer: that of a part, or of a tensor outside of layers.
    pub(crate) fn part(&self) -> &str {
        let behind_number = |rest: &'_ str| rest.split_once('.').map_or(0, |(number, _)| number.len() + 1);
        match self.name.strip_prefix("model.layers.") {
            Some(rest) => &rest[behind_number(rest)..],
            None => &self.name,
        }
    }

    /// Whether rows are multiplied by it. The norm of each head's own weights has two dimensions too.
    pub(crate) fn is_matrix(&self) -> bool {
        self.shape.len() == 2 && !self.part().ends_with("norm.weight")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_named_without_its_layer() {
        let needed = |name: &str| Needed { name: name.to_owned(), shape: Vec::new() };
        assert_eq!(needed(&layer(17, "self_attn.k_norm.weight")).part(), "self_attn.k_norm.weight");
        assert_eq!(needed(EMBEDDING).part(), EMBEDDING);
    }
}
