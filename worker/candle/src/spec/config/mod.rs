//! Reads `config.json` into a [`DecoderSpec`]. The module reads the file's spellings, old and new, and fills in the
//! defaults of `transformers`. It does not look at tensors.
//!
//! Rope is spelled in two ways. Up to transformers 4 it is `rope_theta` beside `rope_scaling` (with `type` or
//! `rope_type`); since transformers 5 it is one `rope_parameters`. Both are read as transformers 5 does. A
//! `rope_scaling` with values has precedence, a theta inside the table has precedence over one beside it, and 10,000 is
//! the default.

use model_boss_protocol::CONFIG_ARCHITECTURES;
use model_boss_weights::quantised::{FormatError, QuantisedFormat};
use serde::Deserialize;

use crate::spec::{Activation, AttentionBias, DecoderSpec, RopePlanes, RopeScaling, RopeSpec};

/// The reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigJsonError {
    /// The file is not JSON, or a field has the wrong type.
    #[error("config.json is malformed: {0}")]
    Malformed(String),
    /// The architecture is not supported by this decoder.
    #[error("the architecture {0} is not known; this build runs {known}", known = CONFIG_ARCHITECTURES.join(", "))]
    Architecture(String),
    /// The architecture is supported, but a feature of this model is not.
    #[error("config.json asks for {0}, which this build does not have")]
    Unsupported(String),
    /// The matrices are quantised in a way that is not supported.
    #[error(transparent)]
    Quantised(#[from] FormatError),
    /// The numbers contradict each other, or no model can have them.
    #[error("config.json is inconsistent: {0}")]
    Inconsistent(String),
}

/// The largest accepted width, count or vocabulary. It keeps the product of any two of them far from overflow.
const LARGEST: usize = 1 << 24;

impl DecoderSpec {
    /// Reads a `config.json`, and how the model's matrices are quantised.
    pub fn from_config(json: &[u8]) -> Result<(Self, Option<QuantisedFormat>), ConfigJsonError> {
        let config: ConfigJson =
            serde_json::from_slice(json).map_err(|error| ConfigJsonError::Malformed(error.to_string()))?;
        let family = config.family()?;
        let whole = serde_json::from_slice(json).map_err(|error| ConfigJsonError::Malformed(error.to_string()))?;
        let format = QuantisedFormat::read(&whole)?;
        let spec = config.spec(family)?;
        check(&spec)?;
        Ok((spec, format))
    }
}

/// The families whose layers are the same and whose defaults differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelFamily {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

/// The fields that are read. An absent field and `null` mean the same, as in `transformers`.
#[derive(Deserialize)]
#[serde(rename = "Config")]
struct ConfigJson {
    architectures: Option<Vec<String>>,
    model_type: Option<String>,
    vocab_size: Option<usize>,
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    hidden_act: Option<String>,
    max_position_embeddings: Option<usize>,
    original_max_position_embeddings: Option<f64>,
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<usize>>,
    use_sliding_window: Option<bool>,
    rms_norm_eps: Option<f64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    partial_rotary_factor: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeTable>,
    rope_parameters: Option<RopeTable>,
}

/// Values that a family's configuration class in `transformers` fills in, where families differ.
struct FamilyDefaults {
    /// Heads of keys and values; by default as many as query heads.
    kv_heads: Option<usize>,
    /// The width of a head; by default the stream's width divided by the heads.
    head_dim: Option<usize>,
    intermediate: usize,
    vocab: usize,
    max_positions: usize,
}

impl FamilyDefaults {
    fn of(family: ModelFamily) -> Self {
        match family {
            ModelFamily::Llama => {
                Self { kv_heads: None, head_dim: None, intermediate: 11_008, vocab: 32_000, max_positions: 2_048 }
            }
            ModelFamily::Mistral => {
                Self { kv_heads: Some(8), head_dim: None, intermediate: 14_336, vocab: 32_000, max_positions: 131_072 }
            }
            ModelFamily::Qwen2 | ModelFamily::Qwen3 => Self {
                kv_heads: Some(32),
                head_dim: (family == ModelFamily::Qwen3).then_some(128),
                intermediate: 22_016,
                vocab: 151_936,
                max_positions: 32_768,
            },
        }
    }
}

#[derive(Clone, Default, PartialEq, Deserialize)]
struct RopeTable {
    #[serde(rename = "type")]
    old_type: Option<String>,
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
}

/// Deserialises a field so that `null` (no window) differs from an absent field (the family's default).
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl ConfigJson {
    fn family(&self) -> Result<ModelFamily, ConfigJsonError> {
        let named = self.architectures.as_deref().unwrap_or_default();
        let unknown = |name: &str| Err(ConfigJsonError::Architecture(format!("'{}'", name.escape_debug())));
        // The coordinator uses the same list and sends no other architecture here.
        if let Some(other) = named.first().filter(|name| !CONFIG_ARCHITECTURES.contains(&name.as_str())) {
            return unknown(other);
        }
        let name = named.first().or(self.model_type.as_ref());
        match name.map(String::as_str) {
            Some("LlamaForCausalLM" | "LLaMAForCausalLM" | "llama") => Ok(ModelFamily::Llama),
            Some("MistralForCausalLM" | "mistral") => Ok(ModelFamily::Mistral),
            Some("Qwen2ForCausalLM" | "qwen2") => Ok(ModelFamily::Qwen2),
            Some("Qwen3ForCausalLM" | "qwen3") => Ok(ModelFamily::Qwen3),
            Some(name) => unknown(name),
            None => Err(ConfigJsonError::Architecture("of a config.json without 'architectures'".to_owned())),
        }
    }

    fn spec(&self, family: ModelFamily) -> Result<DecoderSpec, ConfigJsonError> {
        let defaults = FamilyDefaults::of(family);
        let hidden = self.hidden_size.unwrap_or(4_096);
        let heads = self.num_attention_heads.unwrap_or(32);
        let kv_heads = self.num_key_value_heads.unwrap_or(defaults.kv_heads.unwrap_or(heads));
        let head_dim = match self.head_dim.or(defaults.head_dim) {
            Some(head_dim) => head_dim,
            None => hidden.checked_div(heads).ok_or_else(|| inconsistent("num_attention_heads is 0"))?,
        };
        let max_positions = self.max_position_embeddings.unwrap_or(defaults.max_positions);
        Ok(DecoderSpec {
            layers: self.num_hidden_layers.unwrap_or(32),
            hidden,
            heads,
            kv_heads,
            head_dim,
            intermediate: self.intermediate_size.unwrap_or(defaults.intermediate),
            vocab: self.vocab_size.unwrap_or(defaults.vocab),
            norm_eps: self.rms_norm_eps.unwrap_or(1e-6),
            rope: self.rope(max_positions)?,
            tied_head: self.tie_word_embeddings.unwrap_or(false),
            attention_bias: match (family, self.attention_bias) {
                (ModelFamily::Qwen2, _) => AttentionBias::QueryKeyValue,
                (ModelFamily::Llama | ModelFamily::Qwen3, Some(true)) => AttentionBias::All,
                _ => AttentionBias::None,
            },
            head_norm: family == ModelFamily::Qwen3,
            mlp_bias: family == ModelFamily::Llama && self.mlp_bias.unwrap_or(false),
            activation: activation(self.hidden_act.as_deref().unwrap_or("silu"))?,
            // A window as long as the sequence has no effect. Limiting sequences to the window's length is therefore
            // exact.
            max_positions: max_positions.min(self.window(family).unwrap_or(usize::MAX)),
        })
    }

    /// The window of attention, if it is limited.
    fn window(&self, family: ModelFamily) -> Option<usize> {
        match (family, self.sliding_window) {
            (ModelFamily::Llama, _) => None,
            (ModelFamily::Mistral, window) => window.unwrap_or(Some(4_096)),
            // Qwen's files have a window even if the model does not use it.
            (ModelFamily::Qwen2 | ModelFamily::Qwen3, _) if !self.use_sliding_window.unwrap_or(false) => None,
            (ModelFamily::Qwen2 | ModelFamily::Qwen3, window) => window.unwrap_or(Some(4_096)),
        }
    }

    fn rope(&self, max_positions: usize) -> Result<RopeSpec, ConfigJsonError> {
        let said = |table: &Option<RopeTable>| table.clone().filter(|table| *table != RopeTable::default());
        let table = said(&self.rope_scaling).or(said(&self.rope_parameters)).unwrap_or_default();
        let partial = table.partial_rotary_factor.or(self.partial_rotary_factor).unwrap_or(1.0);
        if partial != 1.0 {
            return Err(ConfigJsonError::Unsupported(format!("rotation of a part of each head ({partial})")));
        }
        let theta = positive("rope_theta", table.rope_theta.or(self.rope_theta).unwrap_or(10_000.0))?;
        let kind = table.rope_type.as_deref().or(table.old_type.as_deref()).unwrap_or("default");
        let factor = || table.factor.ok_or_else(|| lacks(kind, "factor")).and_then(|f| positive("the rope factor", f));
        let original = || {
            let tokens = self.original_max_position_embeddings.or(table.original_max_position_embeddings);
            positive("original_max_position_embeddings", tokens.unwrap_or(max_positions as f64))
        };
        let scaling = match kind {
            "default" | "none" => RopeScaling::None,
            "dynamic" => {
                factor()?;
                RopeScaling::None
            }
            "linear" => RopeScaling::Linear { factor: factor()? },
            "llama3" => RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: table.low_freq_factor.ok_or_else(|| lacks(kind, "low_freq_factor"))?,
                high_freq_factor: table.high_freq_factor.ok_or_else(|| lacks(kind, "high_freq_factor"))?,
                original_max_positions: original()?,
            },
            "yarn" => {
                let original_max_positions = original()?;
                let factor = match table.factor {
                    Some(factor) => positive("the rope factor", factor)?,
                    None => max_positions as f64 / original_max_positions,
                };
                RopeScaling::Yarn {
                    factor,
                    attention_factor: table.yarn_attention_factor(factor),
                    beta_fast: table.beta_fast.filter(|beta| *beta != 0.0).unwrap_or(32.0),
                    beta_slow: table.beta_slow.filter(|beta| *beta != 0.0).unwrap_or(1.0),
                    original_max_positions,
                    truncate: table.truncate.unwrap_or(true),
                }
            }
            other => return Err(ConfigJsonError::Unsupported(format!("rope scaling '{}'", other.escape_debug()))),
        };
        Ok(RopeSpec { planes: RopePlanes::Halves, theta, scaling })
    }
}

impl RopeTable {
    /// The configured factor, or the YaRN paper's `0.1 ln(factor) + 1`, weighted by the two `mscale`s if both exist.
    fn yarn_attention_factor(&self, factor: f64) -> f64 {
        let warmth = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        let given = |value: Option<f64>| value.filter(|value| *value != 0.0);
        match (self.attention_factor, given(self.mscale).zip(given(self.mscale_all_dim))) {
            (Some(attention_factor), _) => attention_factor,
            (None, Some((mscale, all_dim))) => warmth(mscale) / warmth(all_dim),
            (None, None) => warmth(1.0),
        }
    }
}

fn activation(name: &str) -> Result<Activation, ConfigJsonError> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::GeluErf),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        other => Err(ConfigJsonError::Unsupported(format!("the activation '{}'", other.escape_debug()))),
    }
}

/// Refuses values that no tensor shape would reveal as wrong, and keeps later arithmetic in range.
pub(crate) fn check(spec: &DecoderSpec) -> Result<(), ConfigJsonError> {
    for (name, value) in [
        ("num_hidden_layers", spec.layers),
        ("hidden_size", spec.hidden),
        ("num_attention_heads", spec.heads),
        ("num_key_value_heads", spec.kv_heads),
        ("head_dim", spec.head_dim),
        ("intermediate_size", spec.intermediate),
        ("vocab_size", spec.vocab),
    ] {
        if value == 0 || value > LARGEST {
            return Err(inconsistent(format!("{name} is {value}")));
        }
    }
    if spec.max_positions == 0 || u32::try_from(spec.max_positions).is_err() {
        return Err(inconsistent(format!("the model is for {} positions", spec.max_positions)));
    }
    if !spec.heads.is_multiple_of(spec.kv_heads) {
        return Err(inconsistent(format!(
            "{} attention heads cannot share {} key and value heads evenly",
            spec.heads, spec.kv_heads
        )));
    }
    if !spec.head_dim.is_multiple_of(2) {
        return Err(inconsistent(format!("a head of {} cannot be rotated in halves", spec.head_dim)));
    }
    if !(spec.norm_eps.is_finite() && spec.norm_eps >= 0.0) {
        return Err(inconsistent(format!("rms_norm_eps is {}", spec.norm_eps)));
    }
    if let RopeScaling::Llama3 { low_freq_factor, high_freq_factor, .. } = spec.rope.scaling {
        positive("low_freq_factor", low_freq_factor)?;
        positive("high_freq_factor", high_freq_factor)?;
        if low_freq_factor == high_freq_factor {
            return Err(inconsistent("low_freq_factor and high_freq_factor are the same"));
        }
    }
    Ok(())
}

fn positive(name: &str, value: f64) -> Result<f64, ConfigJsonError> {
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(inconsistent(format!("{name} is {value}"))) }
}

fn lacks(kind: &str, field: &str) -> ConfigJsonError {
    inconsistent(format!("rope scaling '{kind}' lacks {field}"))
}

fn inconsistent(what: impl Into<String>) -> ConfigJsonError {
    ConfigJsonError::Inconsistent(what.into())
}

#[cfg(test)]
mod tests;
