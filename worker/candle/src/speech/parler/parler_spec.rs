//! The sizes of a model, from `config.json`.

use serde::Deserialize;
use serde_json::Value;

use crate::error::ModelError;
use crate::spec::{Activation, NormKind, NormSpec, RopePlanes, RopeScaling, RopeSpec};
use crate::speech::codec::DacSpec;
use crate::speech::config::{activation, malformed};
use crate::speech::t5::T5Spec;

/// The largest size of any kind.
const MOST: usize = 1 << 20;

/// The norm's `eps` of PyTorch.
const NORM: NormSpec = NormSpec { kind: NormKind::LayerWithBias, eps: 1e-5 };

/// The sizes of a model.
#[derive(Clone, Debug)]
pub(super) struct ParlerSpec {
    /// The encoder of descriptions.
    pub(super) text: T5Spec,
    pub(super) codec: DacSpec,
    pub(super) decoder: ParlerDecoderSpec,
    /// Tokens of texts that are spoken.
    pub(super) prompt_tokens: usize,
    /// Whether the decoder sees the text beside the description, and not before the frames.
    pub(super) prompt_beside: bool,
}

/// The sizes of the decoder. Absent ones have the defaults of the package.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct ParlerDecoderSpec {
    /// Codes of each codebook that are written, those that only mark something included.
    #[serde(rename = "vocab_size")]
    pub(super) codes: usize,
    pub(super) num_codebooks: usize,
    #[serde(rename = "hidden_size")]
    pub(super) width: usize,
    pub(super) ffn_dim: usize,
    #[serde(rename = "num_hidden_layers")]
    pub(super) layers: usize,
    #[serde(rename = "num_attention_heads")]
    pub(super) heads: usize,
    num_key_value_heads: Option<usize>,
    num_cross_attention_key_value_heads: Option<usize>,
    activation_function: String,
    rope_embeddings: bool,
    rope_theta: f64,
    pub(super) use_fused_lm_heads: bool,
    cross_attention_hidden_size: Option<usize>,
    pub(super) bos_token_id: u32,
    pub(super) eos_token_id: u32,
    pub(super) pad_token_id: u32,
}

impl Default for ParlerDecoderSpec {
    fn default() -> Self {
        Self {
            codes: 2049,
            num_codebooks: 4,
            width: 1024,
            ffn_dim: 4096,
            layers: 24,
            heads: 16,
            num_key_value_heads: None,
            num_cross_attention_key_value_heads: None,
            activation_function: "gelu".to_owned(),
            rope_embeddings: false,
            rope_theta: 10_000.0,
            use_fused_lm_heads: false,
            cross_attention_hidden_size: None,
            bos_token_id: 2049,
            eos_token_id: 2048,
            pad_token_id: 2048,
        }
    }
}

impl ParlerSpec {
    /// Reads the text of a `config.json`.
    pub(super) fn from_config(json: &[u8]) -> Result<Self, ModelError> {
        #[derive(Deserialize)]
        struct ParlerConfig {
            text_encoder: Value,
            audio_encoder: Value,
            decoder: ParlerDecoderSpec,
            #[serde(default = "usual_tokens")]
            vocab_size: usize,
            #[serde(default)]
            prompt_cross_attention: bool,
        }
        fn usual_tokens() -> usize {
            1024
        }
        let config: ParlerConfig = serde_json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        let of = |part: &Value| part.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let kinds = [of(&config.text_encoder), of(&config.audio_encoder)];
        if kinds[0] != "t5" || !["dac", "dac_on_the_hub"].contains(&kinds[1].as_str()) {
            let [text, audio] = kinds;
            return Err(malformed(format!("it has parts of the kinds '{text}' and '{audio}'; t5 and dac are read")));
        }
        let spec = Self {
            text: T5Spec::from_config("text_encoder", config.text_encoder)?,
            codec: DacSpec::from_config(config.audio_encoder)?,
            decoder: config.decoder,
            prompt_tokens: config.vocab_size,
            prompt_beside: config.prompt_cross_attention,
        };
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), ModelError> {
        let decoder = &self.decoder;
        if decoder.num_codebooks != self.codec.num_codebooks {
            let (own, codec) = (decoder.num_codebooks, self.codec.num_codebooks);
            return Err(malformed(format!("num_codebooks is {own}, and the codec has {codec}")));
        }
        let sizes = [decoder.codes, decoder.width, decoder.ffn_dim, decoder.layers, decoder.heads, self.prompt_tokens];
        if sizes.iter().any(|size| !(1..=MOST).contains(size)) {
            return Err(malformed(format!("its sizes are from 1 to {MOST}")));
        }
        let of_heads = |kv: usize| kv > 0 && decoder.heads.is_multiple_of(kv);
        let halves = !decoder.rope_embeddings || (decoder.width / decoder.heads).is_multiple_of(2);
        if !decoder.width.is_multiple_of(decoder.heads)
            || !of_heads(decoder.kv_heads())
            || !of_heads(decoder.cross_kv_heads())
            || !halves
        {
            return Err(malformed(format!("{} heads do not share a width of {}", decoder.heads, decoder.width)));
        }
        let marks = [decoder.bos_token_id, decoder.eos_token_id, decoder.pad_token_id];
        if marks.iter().any(|mark| *mark as usize > decoder.codes) || decoder.eos_token_id as usize >= decoder.codes {
            return Err(malformed(format!("its marks {marks:?} are not among {} codes and one more", decoder.codes)));
        }
        if decoder.cross_attention_hidden_size.is_some_and(|size| size != decoder.width) {
            return Err(malformed(
                "descriptions of another width (cross_attention_hidden_size) are not read".to_owned(),
            ));
        }
        decoder.activation().map(drop)
    }
}

impl ParlerDecoderSpec {
    /// Heads of keys and values of frames.
    pub(super) fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.heads)
    }

    /// Heads of keys and values of descriptions.
    pub(super) fn cross_kv_heads(&self) -> usize {
        self.num_cross_attention_key_value_heads.unwrap_or_else(|| self.kv_heads())
    }

    pub(super) fn activation(&self) -> Result<Activation, ModelError> {
        activation(&self.activation_function)
    }

    pub(super) fn norm(&self) -> NormSpec {
        NORM
    }

    /// How queries and keys are turned by their places; none where rows have sines of their places.
    pub(super) fn rope(&self) -> Option<RopeSpec> {
        self.rope_embeddings.then(|| RopeSpec {
            planes: RopePlanes::Halves,
            width: self.width / self.heads,
            theta: self.rope_theta,
            scaling: RopeScaling::None,
            axes: Vec::new(),
        })
    }
}
