//! Writes a [`DecoderSpec`] as GGUF metadata, the inverse of [`crate::spec::gguf`]. It writes no tensor data.

use model_boss_weights::gguf::{HeaderWriter, ToValue, WriteError};

use crate::spec::{Activation, AttentionBias, DecoderSpec, RopePlanes, RopeScaling};

/// The reason why GGUF has no keys for a decoder.
#[derive(Debug, thiserror::Error)]
pub enum GgufKeysError {
    /// The property that GGUF cannot express.
    #[error("GGUF cannot say {0}")]
    Unsupported(String),
    /// The header refused a key.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The name of a decoder's architecture in GGUF, or the property that GGUF cannot express. The name also determines the
/// order of rotated rows: [`planes`].
pub(crate) fn architecture(spec: &DecoderSpec) -> Result<&'static str, GgufKeysError> {
    let cannot = |what: &str| Err(GgufKeysError::Unsupported(what.to_owned()));
    if spec.activation != Activation::Silu {
        return cannot("which activation the model has; it always means SiLU");
    }
    match (spec.head_norm, spec.attention_bias) {
        (true, AttentionBias::None) if !spec.mlp_bias => Ok("qwen3"),
        (true, _) => cannot("that a model has both norms over heads and biases"),
        (false, AttentionBias::QueryKeyValue) if !spec.mlp_bias => Ok("qwen2"),
        (false, AttentionBias::QueryKeyValue) => cannot("that a model has a bias everywhere but behind its attention"),
        (false, AttentionBias::None | AttentionBias::All) => Ok("llama"),
    }
}

/// The elements of a head that are rotated together in files of this architecture.
pub(crate) fn planes(architecture: &str) -> RopePlanes {
    if architecture == "llama" { RopePlanes::Neighbours } else { RopePlanes::Halves }
}

/// Writes the keys with the architecture's name as prefix. Returns the factors for the tensor `rope_freqs.weight`, if
/// the decoder has any.
pub(crate) fn write(spec: &DecoderSpec, header: &mut HeaderWriter) -> Result<Option<Vec<f32>>, GgufKeysError> {
    let architecture = architecture(spec)?;
    header.set("general.architecture", architecture)?;
    let mut keys = MetadataWriter { header, architecture };
    keys.number("block_count", spec.layers)?;
    keys.number("context_length", spec.max_positions)?;
    keys.number("embedding_length", spec.hidden)?;
    keys.number("feed_forward_length", spec.intermediate)?;
    keys.number("attention.head_count", spec.heads)?;
    keys.number("attention.head_count_kv", spec.kv_heads)?;
    keys.number("attention.key_length", spec.head_dim)?;
    keys.number("attention.value_length", spec.head_dim)?;
    keys.number("rope.dimension_count", spec.head_dim)?;
    keys.number("vocab_size", spec.vocab)?;
    keys.set("attention.layer_norm_rms_epsilon", &(spec.norm_eps as f32))?;
    keys.set("rope.freq_base", &(spec.rope.theta as f32))?;
    match &spec.rope.scaling {
        RopeScaling::None => Ok(None),
        RopeScaling::Factors(factors) => Ok(Some(factors.clone())),
        RopeScaling::Linear { factor } => {
            keys.set("rope.scaling.type", "linear")?;
            keys.set("rope.scaling.factor", &(*factor as f32))?;
            Ok(None)
        }
        RopeScaling::Yarn { factor, attention_factor, beta_fast, beta_slow, original_max_positions, truncate } => {
            if !truncate {
                return Err(GgufKeysError::Unsupported("that YaRN does not round to whole dimensions".to_owned()));
            }
            // Readers scale attention by the YaRN paper's formula themselves; the key has only the factor beyond it.
            let warmth = if *factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
            keys.set("rope.scaling.type", "yarn")?;
            keys.set("rope.scaling.factor", &(*factor as f32))?;
            keys.number("rope.scaling.original_context_length", *original_max_positions as usize)?;
            keys.set("rope.scaling.attn_factor", &((attention_factor / warmth) as f32))?;
            keys.set("rope.scaling.yarn_beta_fast", &(*beta_fast as f32))?;
            keys.set("rope.scaling.yarn_beta_slow", &(*beta_slow as f32))?;
            Ok(None)
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            let of_plane = |plane: usize| {
                let frequency = spec.rope.theta.powf(-((2 * plane) as f64) / spec.head_dim as f64);
                let wavelength = 2.0 * std::f64::consts::PI / frequency;
                if wavelength < original_max_positions / high_freq_factor {
                    1.0
                } else if wavelength > original_max_positions / low_freq_factor {
                    *factor
                } else {
                    let rotations = original_max_positions / wavelength;
                    let smooth = (rotations - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }
            };
            Ok(Some((0..spec.head_dim / 2).map(|plane| of_plane(plane) as f32).collect()))
        }
    }
}

struct MetadataWriter<'a> {
    header: &'a mut HeaderWriter,
    architecture: &'static str,
}

impl MetadataWriter<'_> {
    fn set(&mut self, name: &str, value: &(impl ToValue + ?Sized)) -> Result<(), GgufKeysError> {
        Ok(self.header.set(&format!("{}.{name}", self.architecture), value)?)
    }

    fn number(&mut self, name: &str, value: usize) -> Result<(), GgufKeysError> {
        let number = u32::try_from(value);
        let number = number.map_err(|_| GgufKeysError::Unsupported(format!("a `{name}` of {value}")))?;
        self.set(name, &number)
    }
}
