//! The sizes of a stack of layers.

use crate::error::ModelError;
use crate::spec::{Activation, DecoderSpec, FeedForward, Mixer, NormSpec, QueryKeyNorm, RopeSpec};
use crate::speech::config::malformed;

/// The sizes of a stack of equal layers.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::speech) struct CausalSpec {
    pub(in crate::speech) width: usize,
    pub(in crate::speech) layers: usize,
    pub(in crate::speech) heads: usize,
    /// Heads of keys and values, which divide those of queries.
    pub(in crate::speech) kv_heads: usize,
    /// Width of a head.
    pub(in crate::speech) head: usize,
    /// Width inside of the feed-forward part.
    pub(in crate::speech) inner: usize,
    pub(in crate::speech) activation: Activation,
    /// Whether the feed-forward part has a gate, as in Llama.
    pub(in crate::speech) gated: bool,
    pub(in crate::speech) norm: NormSpec,
    pub(in crate::speech) rope: RopeSpec,
    /// The moments that each sees, its own included; all before it without a window.
    pub(in crate::speech) window: Option<usize>,
    /// Whether the result of each part has a learned factor for each number (Touvron et al., 2021, arXiv 2103.17239).
    pub(in crate::speech) scaled: bool,
}

impl CausalSpec {
    /// Of a decoder of Llama's form. What that does not have is refused.
    pub(in crate::speech) fn of_llama(spec: &DecoderSpec) -> Result<Self, ModelError> {
        let refused = || malformed("its layers are not those of Llama".to_owned());
        let layer = spec.layers.first().ok_or_else(refused)?;
        let (Mixer::Attention(attention), FeedForward::Gated(mlp)) = (&layer.mixer, &layer.feed_forward) else {
            return Err(refused());
        };
        let rope = attention.rope.and_then(|rope| spec.ropes.get(rope)).ok_or_else(refused)?;
        let same = spec.layers.iter().all(|other| other == layer);
        if !same || attention.norm != QueryKeyNorm::None || attention.softcap.is_some() {
            return Err(refused());
        }
        Ok(Self {
            width: spec.hidden,
            layers: spec.layers.len(),
            heads: attention.heads,
            kv_heads: attention.kv_heads,
            head: attention.head_dim,
            inner: mlp.intermediate,
            activation: mlp.activation,
            gated: true,
            norm: spec.norm,
            rope: rope.clone(),
            window: attention.window,
            scaled: false,
        })
    }
}
