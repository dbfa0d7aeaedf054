//! Tensors of layers that a model's files have and nothing reads. A bias that a family does not know would make answers
//! wrong without a sign; such tensors are named in the log.

use std::collections::HashSet;

/// Ends of names of tensors that say nothing that the configuration does not say too: masks and frequencies, which some
/// programs store with the weights.
const DERIVED: [&str; 6] =
    ["rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", "rope_freqs.weight", ".input_scale", ".output_scale"];

/// The names among `stored` that lie in the same layers as `used` ones and are not used, in order.
pub(crate) fn unread<'a>(stored: impl Iterator<Item = &'a str>, used: &HashSet<&str>) -> Vec<&'a str> {
    let layers: HashSet<&str> = used.iter().filter_map(|name| layer_of(name)).collect();
    let lost = |name: &&str| {
        layer_of(name).is_some_and(|layer| layers.contains(layer))
            && !used.contains(name)
            && !DERIVED.iter().any(|end| name.ends_with(end))
    };
    let mut unread: Vec<&str> = stored.filter(lost).collect();
    unread.sort_unstable();
    unread
}

/// A warning about tensors that nothing reads; none without any.
pub(crate) fn warning(unread: &[&str]) -> Option<String> {
    let first = unread.first()?;
    let others = match unread.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    Some(format!(
        "nothing in this build reads '{first}'{others} of the model's files; its answers may differ from the model's"
    ))
}

/// The beginning of a name up to the number of its layer, with the dot behind it.
fn layer_of(name: &str) -> Option<&str> {
    let mut at = 0;
    for part in name.split('.') {
        at += part.len() + 1;
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return name.get(..at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_of_a_layer_that_nothing_reads_is_named() {
        let used = HashSet::from(["model.layers.0.up.weight", "model.layers.1.up.weight", "model.norm.weight"]);
        let stored = [
            "model.layers.0.up.weight",
            "model.layers.0.up.bias",
            "model.layers.0.rotary_emb.inv_freq",
            // A layer that predicts further tokens, other parts of a model for several kinds of input, and the ends.
            "model.layers.2.up.weight",
            "vision.layers.0.up.weight",
            "lm_head.weight",
        ];
        let unread = unread(stored.into_iter(), &used);
        assert_eq!(unread, ["model.layers.0.up.bias"]);
        assert!(warning(&unread).is_some_and(|said| said.contains("'model.layers.0.up.bias' of")));
        assert!(warning(&["a", "b", "c"]).is_some_and(|said| said.contains("'a' and 2 more")));
        assert_eq!(warning(&[]), None);
        assert_eq!(layer_of("blk.12.ffn_up.weight"), Some("blk.12."));
    }
}
