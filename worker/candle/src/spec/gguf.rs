//! Reads GGUF metadata into a [`DecoderSpec`]: the keys of the architectures that this decoder supports, and the
//! defaults of llama.cpp. Of the tensors only the names are read.

use std::collections::HashSet;

use model_boss_protocol::GGUF_ARCHITECTURES;
use model_boss_weights::gguf::{Array, FromValue, GgufModel, GgufModelError, Header, KeyError, TensorType, Value};

use crate::spec::config::{self, ConfigJsonError};
use crate::spec::tensors::{EMBEDDING, HEAD, in_gguf};
use crate::spec::{Activation, AttentionBias, DecoderSpec, RopePlanes, RopeScaling, RopeSpec};

/// The tensor with Llama 3.1's factors for the planes' frequencies.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The reason why this decoder cannot run a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufSpecError {
    /// The header cannot be used.
    #[error(transparent)]
    File(#[from] GgufModelError),
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The numbers contradict each other, or no model can have them.
    #[error(transparent)]
    Config(#[from] ConfigJsonError),
    /// The architecture is not supported by this decoder.
    #[error(
        "the architecture '{0}' is not known; this build runs {known}; llama-server may run it",
        known = GGUF_ARCHITECTURES.join(", ")
    )]
    Architecture(String),
    /// The architecture is supported, but a feature of this model is not.
    #[error("the file asks for {0}, which this build does not have; llama-server may run it")]
    Unsupported(String),
}

fn unknown(architecture: &str) -> GgufSpecError {
    GgufSpecError::Architecture(architecture.escape_debug().to_string())
}

impl DecoderSpec {
    /// Reads the metadata of a GGUF model. A file with tensors that the spec would not use is refused, because its
    /// answers would be wrong.
    pub fn from_gguf(model: &GgufModel) -> Result<Self, GgufSpecError> {
        let header = model.header()?;
        let architecture: &str = header.need("general.architecture")?;
        let planes = match architecture {
            // The coordinator uses the same list and sends no other architecture here.
            other if !GGUF_ARCHITECTURES.contains(&other) => return Err(unknown(other)),
            "llama" => RopePlanes::Neighbours,
            "qwen2" | "qwen3" => RopePlanes::Halves,
            other => return Err(unknown(other)),
        };
        let keys = MetadataReader { header: &header, architecture };
        if keys.find::<u64>("expert_count")?.is_some_and(|experts| experts > 0) {
            return Err(GgufSpecError::Unsupported("a mixture of experts".to_owned()));
        }
        let has = |name: &str| model.get(&in_gguf(name)).is_some();
        let (hidden, heads) = (keys.need::<usize>("embedding_length")?, keys.per_layer("attention.head_count")?);
        let heads = heads.ok_or_else(|| keys.missing("attention.head_count"))?;
        let head_dim = match keys.find::<usize>("attention.key_length")? {
            Some(width) => width,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        keys.same("attention.value_length", head_dim)?;
        keys.same("rope.dimension_count", head_dim)?;
        let positions = keys.need::<usize>("context_length")?;
        let window = keys.find::<usize>("attention.sliding_window")?.filter(|window| *window > 0);
        let attention_bias =
            match (has("model.layers.0.self_attn.q_proj.bias"), has("model.layers.0.self_attn.o_proj.bias")) {
                (_, true) => AttentionBias::All,
                (true, false) => AttentionBias::QueryKeyValue,
                (false, false) => AttentionBias::None,
            };
        let spec = Self {
            layers: keys.need("block_count")?,
            hidden,
            heads,
            kv_heads: keys.per_layer("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            intermediate: keys.per_layer("feed_forward_length")?.ok_or_else(|| keys.missing("feed_forward_length"))?,
            vocab: model.get(&in_gguf(EMBEDDING)).and_then(|tensor| tensor.shape.first()).copied().unwrap_or(0),
            norm_eps: f64::from(keys.need::<f32>("attention.layer_norm_rms_epsilon")?),
            rope: RopeSpec {
                planes,
                theta: f64::from(keys.find::<f32>("rope.freq_base")?.unwrap_or(10_000.0)),
                scaling: scaling(&keys, model, head_dim, positions)?,
            },
            tied_head: !has(HEAD),
            attention_bias,
            head_norm: architecture == "qwen3",
            mlp_bias: has("model.layers.0.mlp.gate_proj.bias"),
            activation: Activation::Silu,
            // A window as long as the sequence has no effect.
            max_positions: positions.min(window.unwrap_or(usize::MAX)),
        };
        config::check(&spec)?;
        all_used(&spec, model)?;
        Ok(spec)
    }
}

/// The reader of metadata whose keys begin with an architecture's name.
struct MetadataReader<'a> {
    header: &'a Header<'a>,
    architecture: &'a str,
}

impl<'a> MetadataReader<'a> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn missing(&self, name: &str) -> GgufSpecError {
        KeyError::Missing(self.key(name)).into()
    }

    fn find<T: FromValue<'a>>(&self, name: &str) -> Result<Option<T>, KeyError> {
        self.header.find(&self.key(name))
    }

    fn need<T: FromValue<'a>>(&self, name: &str) -> Result<T, KeyError> {
        self.header.need(&self.key(name))
    }

    /// A value that is one number, or an array with the same number for each layer.
    fn per_layer(&self, name: &str) -> Result<Option<usize>, GgufSpecError> {
        let key = self.key(name);
        if !matches!(self.header.get(&key), Some(Value::Array(_))) {
            return Ok(self.header.find(&key)?);
        }
        let array: Array<'_> = self.header.need(&key)?;
        let layers = array.integers().unwrap_or_default();
        match layers.split_first() {
            Some((first, rest)) if rest.iter().all(|other| other == first) => Ok(usize::try_from(*first).ok()),
            _ => Err(GgufSpecError::Unsupported(format!("layers that differ in `{key}`"))),
        }
    }

    /// Refuses an optional width that differs from the one that it must equal.
    fn same(&self, name: &str, wanted: usize) -> Result<(), GgufSpecError> {
        match self.find::<usize>(name)? {
            Some(given) if given != wanted => {
                let key = self.key(name);
                Err(GgufSpecError::Unsupported(format!("`{key}` = {given} beside heads of {wanted}")))
            }
            _ => Ok(()),
        }
    }
}

fn scaling(
    keys: &MetadataReader<'_>,
    model: &GgufModel,
    head_dim: usize,
    positions: usize,
) -> Result<RopeScaling, GgufSpecError> {
    if let Some(tensor) = model.get(ROPE_FACTORS) {
        let factors: Vec<f32> =
            model.bytes(tensor).as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        let usable = factors.iter().all(|factor| factor.is_finite() && *factor > 0.0);
        if tensor.kind != TensorType::F32 || factors.len() != head_dim / 2 || !usable {
            return Err(GgufSpecError::Unsupported(format!("{} factors in `{ROPE_FACTORS}`", factors.len())));
        }
        return Ok(RopeScaling::Factors(factors));
    }
    let positive = |name: &'static str| -> Result<Option<f64>, GgufSpecError> {
        match keys.find::<f32>(name)? {
            Some(factor) if factor.is_finite() && factor > 0.0 => Ok(Some(f64::from(factor))),
            // The value 0 means that the factor is not set.
            Some(0.0) | None => Ok(None),
            Some(other) => Err(GgufSpecError::Unsupported(format!("`{}` = {other}", keys.key(name)))),
        }
    };
    let factor = || positive("rope.scaling.factor");
    Ok(match keys.find::<&str>("rope.scaling.type")? {
        // Older files, from before the key existed, have only the factor.
        None => match positive("rope.scale_linear")? {
            Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
            _ => RopeScaling::None,
        },
        Some("none") => RopeScaling::None,
        Some("linear") => match factor()?.or(positive("rope.scale_linear")?) {
            Some(factor) => RopeScaling::Linear { factor },
            None => RopeScaling::None,
        },
        Some("yarn") => {
            if positive("rope.scaling.yarn_ext_factor")?.is_some_and(|factor| factor != 1.0) {
                return Err(GgufSpecError::Unsupported("YaRN with an extrapolation factor of its own".to_owned()));
            }
            let Some(factor) = factor()? else { return Err(keys.missing("rope.scaling.factor")) };
            let original = keys.find::<usize>("rope.scaling.original_context_length")?.unwrap_or(positions);
            let given = positive("rope.scaling.attn_factor")?.or(positive("rope.scaling.yarn_attn_factor")?);
            // llama.cpp scales attention by the paper's formula, times the file's factor.
            let warmth = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
            RopeScaling::Yarn {
                factor,
                attention_factor: given.unwrap_or(1.0) * warmth,
                beta_fast: positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                original_max_positions: original as f64,
                truncate: true,
            }
        }
        Some(other) => return Err(GgufSpecError::Unsupported(format!("rope scaling '{}'", other.escape_debug()))),
    })
}

/// Refuses tensors that the spec does not use.
fn all_used(spec: &DecoderSpec, model: &GgufModel) -> Result<(), GgufSpecError> {
    // Names of as many tensors as the file has are enough to find an unused one, even if the file claims more layers.
    let most = model.tensors().count();
    let mut used: HashSet<String> = spec.needed().take(most).map(|needed| in_gguf(&needed.name)).collect();
    used.extend([EMBEDDING, HEAD].map(in_gguf));
    used.insert(ROPE_FACTORS.to_owned());
    // Rope tensors that old converters stored are ignored, because their values can be computed.
    let known = |name: &str| used.contains(name) || name.ends_with(".attn_rot_embd") || name.ends_with(".rope_freqs");
    match model.tensors().find(|(name, _)| !known(name)) {
        Some((name, _)) => Err(GgufSpecError::Unsupported(format!("a use for tensor `{}`", name.escape_debug()))),
        None => Ok(()),
    }
}
