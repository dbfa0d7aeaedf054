//! The sizes of an encoder, from a configuration as `transformers` writes it.

use serde::Deserialize;
use serde_json::Value;

use crate::encoder::distances::DistanceBuckets;
use crate::error::ModelError;
use crate::spec::{Activation, NormKind, NormSpec};
use crate::speech::config::{activation, malformed};

/// The most tokens of a vocabulary, and of any other size.
const MOST: usize = 1 << 20;

/// The sizes of an encoder. Absent ones have the defaults of `transformers`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct T5Spec {
    pub(crate) vocab_size: usize,
    /// Width of the rows.
    pub(crate) d_model: usize,
    pub(super) d_kv: usize,
    pub(super) d_ff: usize,
    pub(super) num_layers: usize,
    pub(super) num_heads: usize,
    relative_attention_num_buckets: usize,
    relative_attention_max_distance: usize,
    layer_norm_epsilon: f64,
    feed_forward_proj: String,
}

impl Default for T5Spec {
    fn default() -> Self {
        Self {
            vocab_size: 32_128,
            d_model: 512,
            d_kv: 64,
            d_ff: 2048,
            num_layers: 6,
            num_heads: 8,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: 128,
            layer_norm_epsilon: 1e-6,
            feed_forward_proj: "relu".to_owned(),
        }
    }
}

impl T5Spec {
    /// Reads the configuration of a part with this name.
    pub(crate) fn from_config(part: &str, config: Value) -> Result<Self, ModelError> {
        let spec: Self = serde_json::from_value(config).map_err(|error| malformed(format!("{part}: {error}")))?;
        let sizes = [spec.vocab_size, spec.d_model, spec.d_kv, spec.d_ff, spec.num_layers, spec.num_heads];
        if sizes.iter().any(|size| !(1..=MOST).contains(size)) {
            return Err(malformed(format!("{part}: its sizes are from 1 to {MOST}")));
        }
        let (buckets, farthest) = (spec.relative_attention_num_buckets, spec.relative_attention_max_distance);
        if buckets < 4 || buckets % 4 != 0 || buckets > MOST || farthest <= buckets / 4 {
            return Err(malformed(format!("{part}: {buckets} buckets of distances up to {farthest} are none")));
        }
        spec.feed_forward()?;
        Ok(spec)
    }

    pub(super) fn buckets(&self) -> DistanceBuckets {
        DistanceBuckets {
            side: self.relative_attention_num_buckets / 2,
            farthest: self.relative_attention_max_distance,
        }
    }

    pub(super) fn norm(&self) -> NormSpec {
        NormSpec { kind: NormKind::Rms, eps: self.layer_norm_epsilon }
    }

    /// The activation, and whether it is that of a gate.
    pub(super) fn feed_forward(&self) -> Result<(Activation, bool), ModelError> {
        match self.feed_forward_proj.as_str() {
            // As in `transformers`, which took this name before it knew two forms of GELU.
            "gated-gelu" => Ok((Activation::GeluTanh, true)),
            name => match name.strip_prefix("gated-") {
                Some(name) => Ok((activation(name)?, true)),
                None => Ok((activation(name)?, false)),
            },
        }
    }
}
