//! The sizes of a Whisper model, from `config.json`, GGUF metadata, or the shapes of its tensors.

use model_boss_weights::gguf::GgufModel;
use serde_json::{Map, Value};

use super::names::WhisperNames;
use crate::encoder::folder_file::bad;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::spec::Activation;
use crate::spec::facts::activation;

/// Elements of a head in all sizes that OpenAI published.
const HEAD: usize = 64;

/// Bounds on sizes, far above any model: products of them stay numbers.
const LARGEST: usize = 1 << 20;

/// The sizes of one half of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HalfSpec {
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) inner: usize,
}

/// The sizes of a model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WhisperSpec {
    /// Mel filters.
    pub(super) bins: usize,
    pub(super) hidden: usize,
    pub(super) encoder: HalfSpec,
    pub(super) decoder: HalfSpec,
    pub(super) vocabulary: usize,
    /// Places of the encoder: half of a window's frames.
    pub(super) places: usize,
    /// Tokens of the longest text.
    pub(super) tokens: usize,
    pub(super) activation: Activation,
    /// Whether the last product has the matrix of the tokens' vectors.
    pub(super) tied: bool,
}

impl WhisperSpec {
    /// From `config.json` of `transformers`.
    pub(super) fn from_config(config: &Map<String, Value>) -> Result<Self, ModelError> {
        let size = |key: &str, usual: usize| match config.get(key).filter(|value| !value.is_null()) {
            None => Ok(usual),
            Some(value) => {
                let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
                size.filter(|size| (1..=LARGEST).contains(size))
                    .ok_or_else(|| bad(format!("{key} is {value}; a size is a whole number from 1 to {LARGEST}")))
            }
        };
        let flag = |key: &str, usual: bool| config.get(key).and_then(Value::as_bool).unwrap_or(usual);
        let half = |of: &str| {
            Ok::<_, ModelError>(HalfSpec {
                layers: size(&format!("{of}_layers"), 4)?,
                heads: size(&format!("{of}_attention_heads"), 6)?,
                inner: size(&format!("{of}_ffn_dim"), 1536)?,
            })
        };
        let name = config.get("activation_function").and_then(Value::as_str).unwrap_or("gelu");
        let spec = Self {
            bins: size("num_mel_bins", 80)?,
            hidden: size("d_model", 384)?,
            encoder: half("encoder")?,
            decoder: half("decoder")?,
            vocabulary: size("vocab_size", 51_865)?,
            places: size("max_source_positions", 1500)?,
            tokens: size("max_target_positions", 448)?,
            activation: activation(name).map_err(|error| bad(format!("activation_function: {error}")))?,
            tied: flag("tie_word_embeddings", true),
        };
        spec.check()
    }

    /// From the shapes of a file's tensors, and the metadata of GGUF where it has them.
    pub(super) fn from_shapes(files: &ModelFiles, names: WhisperNames, gguf: &GgufModel) -> Result<Self, ModelError> {
        let header = gguf.header()?;
        let shape = |name: &str| {
            let stored = names.stored(name);
            files.get(&stored).map(|tensor| tensor.shape.clone())
        };
        let dim = |name: &str, at: usize| {
            let shape = shape(name)?;
            shape.get(at).copied().ok_or_else(|| bad(format!("{name} has the shape {shape:?}")))
        };
        let layers = |of: &str| {
            let has = |layer: &usize| shape(&format!("{of}.layers.{layer}.fc1.weight")).is_ok();
            (0..LARGEST).take_while(has).count()
        };
        let hidden = dim("encoder.conv2.weight", 0)?;
        let heads = |of: &str| {
            let key = format!("whisper.{of}.attention.head_count");
            let told = header.find::<u64>(&key).ok().flatten();
            told.and_then(|heads| usize::try_from(heads).ok()).unwrap_or(hidden / HEAD)
        };
        let half = |of: &str| {
            let inner = dim(&format!("{of}.layers.0.fc1.weight"), 0)?;
            Ok::<_, ModelError>(HalfSpec { layers: layers(of), heads: heads(of), inner })
        };
        let spec = Self {
            bins: dim("encoder.conv1.weight", 1)?,
            hidden,
            encoder: half("encoder")?,
            decoder: half("decoder")?,
            vocabulary: dim("decoder.embed_tokens.weight", 0)?,
            places: dim("encoder.embed_positions.weight", 0).unwrap_or(1500),
            tokens: dim("decoder.embed_positions.weight", 0)?,
            activation: Activation::GeluErf,
            tied: shape("proj_out.weight").is_err(),
        };
        spec.check()
    }

    fn check(self) -> Result<Self, ModelError> {
        for (of, half) in [("encoder", self.encoder), ("decoder", self.decoder)] {
            if half.heads == 0 || !self.hidden.is_multiple_of(half.heads) {
                let what = format!("{of}_attention_heads is {}, which does not divide {}", half.heads, self.hidden);
                return Err(bad(what));
            }
            if half.layers == 0 {
                return Err(bad(format!("the {of} has no layer")));
            }
        }
        Ok(self)
    }

    /// Every tensor with its shape, by the names of `transformers` without `model.`. Biases of keys are optional.
    pub(super) fn parts(&self) -> Vec<(String, Vec<usize>)> {
        let hidden = self.hidden;
        let mut parts = vec![
            ("encoder.conv1.weight".to_owned(), vec![hidden, self.bins, 3]),
            ("encoder.conv1.bias".to_owned(), vec![hidden]),
            ("encoder.conv2.weight".to_owned(), vec![hidden, hidden, 3]),
            ("encoder.conv2.bias".to_owned(), vec![hidden]),
            ("decoder.embed_tokens.weight".to_owned(), vec![self.vocabulary, hidden]),
            ("decoder.embed_positions.weight".to_owned(), vec![self.tokens, hidden]),
        ];
        let pair = |path: &str, shape: [usize; 2]| {
            [(format!("{path}.weight"), shape.to_vec()), (format!("{path}.bias"), vec![shape[0]])]
        };
        let norm = |path: &str| ["weight", "bias"].map(|end| (format!("{path}.{end}"), vec![hidden]));
        for (of, half, attentions) in [
            ("encoder", self.encoder, &["self_attn"][..]),
            ("decoder", self.decoder, &["self_attn", "encoder_attn"][..]),
        ] {
            for layer in 0..half.layers {
                let path = format!("{of}.layers.{layer}");
                for attention in attentions {
                    for product in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                        parts.extend(pair(&format!("{path}.{attention}.{product}"), [hidden; 2]));
                    }
                    parts.extend(norm(&format!("{path}.{attention}_layer_norm")));
                }
                parts.extend(pair(&format!("{path}.fc1"), [half.inner, hidden]));
                parts.extend(pair(&format!("{path}.fc2"), [hidden, half.inner]));
                parts.extend(norm(&format!("{path}.final_layer_norm")));
            }
            parts.extend(norm(&format!("{of}.layer_norm")));
        }
        if !self.tied {
            parts.push(("proj_out.weight".to_owned(), vec![self.vocabulary, hidden]));
        }
        parts
    }
}
