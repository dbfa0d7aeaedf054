//! Writes a [`DecoderSpec`] as GGUF metadata, the inverse of [`crate::spec::gguf`]. It writes no tensor data.

use model_boss_weights::gguf::{HeaderWriter, ToValue, WriteError};

use crate::spec::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, ExpertsSpec, Factors, FeedForward, Mixer, MlpSpec, NormKind,
    NormOrder, NormPlaces, QueryKeyNorm, RopePlanes, RopeScaling,
};

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

/// The one layer that a decoder has many times, if it is of the Llama family, and its attention and feed-forward part.
fn usual(spec: &DecoderSpec) -> Option<(&AttentionSpec, &MlpSpec)> {
    let first = spec.layers.first()?;
    let same = spec.layers.iter().all(|layer| layer == first);
    let plain = spec.norm.kind == NormKind::Rms
        && first.norms == NormPlaces::Before
        && spec.factors == Factors::default()
        && spec.logit_softcap.is_none()
        && spec.streams.is_none()
        && !spec.head_bias;
    let (Mixer::Attention(attention), FeedForward::Gated(mlp)) = (&first.mixer, &first.feed_forward) else {
        return None;
    };
    let usual = AttentionSpec {
        bias: attention.bias,
        norm: attention.norm,
        ..AttentionSpec::plain(attention.heads, attention.kv_heads, attention.head_dim)
    };
    let whole = spec.ropes.len() == 1 && spec.ropes.iter().all(|rope| rope.width == attention.head_dim);
    (same && plain && whole && usual == *attention).then_some((attention, mlp))
}

/// Width of a head.
pub(crate) fn head_dim(spec: &DecoderSpec) -> usize {
    usual(spec).map_or(0, |(attention, _)| attention.head_dim)
}

/// The name of a decoder's architecture in GGUF, or the property that GGUF cannot express. The name also determines the
/// order of rotated rows: [`planes`].
pub(crate) fn architecture(spec: &DecoderSpec) -> Result<&'static str, GgufKeysError> {
    let cannot = |what: &str| Err(GgufKeysError::Unsupported(what.to_owned()));
    let Some((attention, mlp)) = usual(spec) else {
        return cannot("what makes this family differ from Llama, in words of this program; llama.cpp's converter may");
    };
    if mlp.activation != Activation::Silu {
        return cannot("which activation the model has; it always means SiLU");
    }
    match (attention.norm, attention.bias) {
        (QueryKeyNorm::Heads(NormOrder::BeforeRotation), AttentionBias::None) if !mlp.bias => Ok("qwen3"),
        (QueryKeyNorm::Heads(_), _) => cannot("that a model has both norms over heads and biases"),
        (QueryKeyNorm::Whole | QueryKeyNorm::LayerPerHead, _) => cannot("norms over all heads"),
        (QueryKeyNorm::None, AttentionBias::QueryKeyValue) if !mlp.bias => Ok("qwen2"),
        (QueryKeyNorm::None, AttentionBias::QueryKeyValue) => {
            cannot("that a model has a bias everywhere but behind its attention")
        }
        (QueryKeyNorm::None, AttentionBias::Output) => cannot("that a model has a bias behind its attention alone"),
        (QueryKeyNorm::None, AttentionBias::None | AttentionBias::All) => Ok("llama"),
    }
}

/// The elements of a head that are rotated together in files of this architecture.
pub(crate) fn planes(architecture: &str) -> RopePlanes {
    if architecture == "llama" { RopePlanes::Neighbours } else { RopePlanes::Halves }
}

/// Writes the keys with the architecture's name as prefix. Returns the factors for the tensor `rope_freqs.weight`, if
/// the decoder has any.
pub(crate) fn write(spec: &DecoderSpec, header: &mut HeaderWriter) -> Result<Option<Vec<f32>>, GgufKeysError> {
    write_as(architecture(spec)?, spec, header)
}

/// Writes the keys of a Qwen3 with the same experts in every layer, as synthetic models have.
pub(crate) fn write_experts(spec: &DecoderSpec, header: &mut HeaderWriter) -> Result<(), GgufKeysError> {
    let Some(FeedForward::Experts(experts)) = spec.layers.first().map(|layer| &layer.feed_forward) else {
        return Err(GgufKeysError::Unsupported("experts that a model does not have".to_owned()));
    };
    let ExpertsSpec { count, used, intermediate, activation, bias, .. } = *experts;
    // Readers take this width for layers without experts.
    let mut dense = spec.clone();
    for layer in &mut dense.layers {
        layer.feed_forward = FeedForward::Gated(MlpSpec { intermediate, bias, activation });
    }
    write_as("qwen3moe", &dense, header)?;
    let mut keys = MetadataWriter { header, architecture: "qwen3moe" };
    keys.number("expert_count", count)?;
    keys.number("expert_used_count", used)?;
    keys.number("expert_feed_forward_length", intermediate)
}

fn write_as(
    architecture: &'static str,
    spec: &DecoderSpec,
    header: &mut HeaderWriter,
) -> Result<Option<Vec<f32>>, GgufKeysError> {
    header.set("general.architecture", architecture)?;
    let mut keys = MetadataWriter { header, architecture };
    let Some((attention, mlp)) = usual(spec) else { return Ok(None) };
    let Some(rope) = spec.ropes.first() else { return Ok(None) };
    keys.number("block_count", spec.layers.len())?;
    // A base that follows the length has no key. Up to its original length the model is the same without.
    keys.number(
        "context_length",
        match rope.scaling {
            RopeScaling::Dynamic { original_max_positions, .. } => original_max_positions,
            _ => spec.max_positions,
        },
    )?;
    keys.number("embedding_length", spec.hidden)?;
    keys.number("feed_forward_length", mlp.intermediate)?;
    keys.number("attention.head_count", attention.heads)?;
    keys.number("attention.head_count_kv", attention.kv_heads)?;
    keys.number("attention.key_length", attention.head_dim)?;
    keys.number("attention.value_length", attention.head_dim)?;
    keys.number("rope.dimension_count", attention.head_dim)?;
    keys.number("vocab_size", spec.vocab)?;
    keys.set("attention.layer_norm_rms_epsilon", &(spec.norm.eps as f32))?;
    keys.set("rope.freq_base", &(rope.theta as f32))?;
    match &rope.scaling {
        RopeScaling::None | RopeScaling::Dynamic { .. } => Ok(None),
        RopeScaling::Long { .. } => {
            Err(GgufKeysError::Unsupported("LongRoPE beside Llama's layers; llama.cpp's converter may".to_owned()))
        }
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
                let frequency = rope.theta.powf(-((2 * plane) as f64) / rope.width as f64);
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
            Ok(Some((0..rope.width / 2).map(|plane| of_plane(plane) as f32).collect()))
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
