//! The sizes of a model, from `config.json`.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ModelError;
use crate::spec::DecoderSpec;
use crate::speech::causal::CausalSpec;
use crate::speech::codec::MimiSpec;
use crate::speech::config::malformed;

/// The largest vocabulary.
const MOST_TOKENS: usize = 1 << 20;

/// The sizes of a model.
#[derive(Clone, Debug)]
pub(super) struct CsmSpec {
    /// The decoder over texts and frames.
    pub(super) backbone: CausalSpec,
    /// The decoder over the codebooks of a frame.
    pub(super) depth: CausalSpec,
    pub(super) codec: MimiSpec,
    pub(super) tokens: CsmTokens,
}

/// The numbers of a configuration that are not those of layers. Absent ones have the defaults of `transformers`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct CsmTokens {
    /// Codebooks of a frame.
    pub(super) num_codebooks: usize,
    /// Codes of each codebook, those that only mark something included.
    #[serde(rename = "vocab_size")]
    pub(super) codes: usize,
    /// Tokens of texts.
    #[serde(rename = "text_vocab_size")]
    pub(super) words: usize,
    /// Texts and frames that the model was trained on, at the most.
    #[serde(rename = "max_position_embeddings")]
    pub(super) positions: usize,
    /// The code of every codebook in the frame behind the last one.
    pub(super) codebook_eos_token_id: u32,
    /// Whether both decoders have the same rows of codes.
    pub(super) tie_codebooks_embeddings: bool,
}

impl Default for CsmTokens {
    fn default() -> Self {
        Self {
            num_codebooks: 32,
            codes: 2051,
            words: 128_256,
            positions: 2048,
            codebook_eos_token_id: 0,
            tie_codebooks_embeddings: true,
        }
    }
}

impl CsmSpec {
    /// Reads the text of a `config.json`.
    pub(super) fn from_config(json: &[u8]) -> Result<Self, ModelError> {
        let config: Value = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        let tokens: CsmTokens = serde_json::from_value(config.clone()).map_err(|error| malformed(error.to_string()))?;
        let part =
            |name: &str| config.get(name).filter(|part| part.is_object()).cloned().unwrap_or(Value::Object(Map::new()));
        let depth = part("depth_decoder_config");
        let spec = Self {
            backbone: layers(config.clone(), &BACKBONE)?,
            depth: layers(depth.clone(), &DEPTH)?,
            codec: MimiSpec::from_config(part("codec_config"))?,
            tokens,
        };
        spec.check(&depth)?;
        Ok(spec)
    }

    fn check(&self, depth: &Value) -> Result<(), ModelError> {
        let CsmTokens { num_codebooks, codes, words, positions, codebook_eos_token_id, .. } = self.tokens;
        if num_codebooks != self.codec.num_quantizers {
            let of_codec = self.codec.num_quantizers;
            return Err(malformed(format!("num_codebooks is {num_codebooks}, and the codec has {of_codec}")));
        }
        if [codes, words, positions].iter().any(|size| !(1..=MOST_TOKENS).contains(size)) {
            return Err(malformed(format!("a vocabulary or its positions are not from 1 to {MOST_TOKENS}")));
        }
        if codebook_eos_token_id as usize >= codes {
            return Err(malformed(format!("codebook_eos_token_id is {codebook_eos_token_id} of {codes} codes")));
        }
        let same = |name: &str, size: usize| match depth.get(name).and_then(Value::as_u64) {
            Some(other) if other != size as u64 => {
                Err(malformed(format!("depth_decoder_config: {name} is {other}, and {size} in the model")))
            }
            _ => Ok(()),
        };
        same("backbone_hidden_size", self.backbone.width)?;
        same("num_codebooks", num_codebooks)?;
        same("vocab_size", codes)
    }
}

/// The defaults of `transformers` for the layers of each decoder.
const BACKBONE: [(&str, u64); 5] = [
    ("hidden_size", 2048),
    ("intermediate_size", 8192),
    ("num_hidden_layers", 16),
    ("num_attention_heads", 32),
    ("num_key_value_heads", 8),
];
const DEPTH: [(&str, u64); 5] = [
    ("hidden_size", 1024),
    ("intermediate_size", 8192),
    ("num_hidden_layers", 4),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 2),
];

/// The layers of a configuration, which are those of Llama under the same keys.
fn layers(config: Value, defaults: &[(&str, u64)]) -> Result<CausalSpec, ModelError> {
    let Value::Object(mut fields) = config else { return Err(malformed("it is no object".to_owned())) };
    for (name, value) in defaults {
        fields.entry(*name).or_insert_with(|| (*value).into());
    }
    fields.insert("architectures".to_owned(), vec!["LlamaForCausalLM"].into());
    fields.insert("model_type".to_owned(), "llama".into());
    fields.entry("rms_norm_eps").or_insert_with(|| 1e-5.into());
    fields.entry("max_position_embeddings").or_insert_with(|| 2048.into());
    if !fields.contains_key("rope_parameters") {
        fields.entry("rope_theta").or_insert_with(|| 500_000.0.into());
    }
    fields.entry("vocab_size").or_insert_with(|| 2051.into());
    let (spec, _) = DecoderSpec::of_config(&Value::Object(fields))?;
    CausalSpec::of_llama(&spec)
}
