//! The facts that nearly all families have, by the usual keys.

use super::both_formats::ModelFacts;
use crate::spec::check::{MOST_LAYERS, inconsistent};
use crate::spec::fact_error::{FactError, FoundFact};
use crate::spec::spelling::TensorSpelling;
use crate::spec::{
    Activation, AttentionBias, AttentionSpec, DecoderSpec, Factors, LayerSpec, MlpSpec, NormKind, NormSpec,
    RopeScaling, RopeSpec,
};

/// Values that a family's configuration class in `transformers` fills in.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    /// Heads of keys and values; by default as many as query heads.
    pub(crate) kv_heads: Option<usize>,
    /// The width of a head; by default the stream's width divided by the heads.
    pub(crate) head_dim: Option<usize>,
    pub(crate) intermediate: usize,
    pub(crate) vocab: usize,
    pub(crate) positions: usize,
    pub(crate) eps: f64,
    pub(crate) tied: bool,
    pub(crate) activation: Activation,
}

impl Defaults {
    /// Those of Llama.
    pub(crate) const LLAMA: Self = Self {
        layers: 32,
        hidden: 4_096,
        heads: 32,
        kv_heads: None,
        head_dim: None,
        intermediate: 11_008,
        vocab: 32_000,
        positions: 2_048,
        eps: 1e-6,
        tied: false,
        activation: Activation::Silu,
    };
}

/// The facts that nearly all families have.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) intermediate: usize,
    pub(crate) vocab: usize,
    pub(crate) positions: usize,
    pub(crate) eps: f64,
    pub(crate) tied: bool,
    pub(crate) activation: Activation,
}

impl Base {
    /// Heads that see all before them.
    pub(crate) fn attention(&self) -> AttentionSpec {
        AttentionSpec::plain(self.heads, self.kv_heads, self.head_dim)
    }

    /// A feed-forward part without biases.
    pub(crate) fn mlp(&self) -> MlpSpec {
        MlpSpec { intermediate: self.intermediate, bias: false, activation: self.activation }
    }

    /// A decoder of these layers, with RMSNorm and the usual names.
    pub(crate) fn decoder(&self, facts: &ModelFacts<'_>, ropes: Vec<RopeSpec>, layers: Vec<LayerSpec>) -> DecoderSpec {
        let longer = ropes.iter().find_map(|rope| match rope.scaling {
            RopeScaling::Dynamic { factor, .. } => Some(factor),
            _ => None,
        });
        DecoderSpec {
            hidden: self.hidden,
            vocab: self.vocab,
            layers,
            norm: NormSpec { kind: NormKind::Rms, eps: self.eps },
            ropes,
            tied_head: self.tied,
            head_bias: facts.gguf_has("output.bias"),
            factors: Factors::default(),
            streams: None,
            matrix_factors: Vec::new(),
            logit_softcap: None,
            whole_images: false,
            max_positions: longer.map_or(self.positions, |factor| (self.positions as f64 * factor) as usize),
            spelling: facts.spelling(),
        }
    }
}

impl ModelFacts<'_> {
    /// Reads the base.
    pub(crate) fn base(&self, defaults: &Defaults) -> Result<Base, FactError> {
        let need = |found: FoundFact<usize>, key: &str, default: usize| match (found?, self) {
            (Some(value), _) => Ok(value),
            (None, Self::Config(_)) => Ok(default),
            (None, Self::Gguf(facts)) => Err(facts.missing(key)),
        };
        let layers = need(self.number("num_hidden_layers", "block_count"), "block_count", defaults.layers)?;
        if layers > MOST_LAYERS {
            return Err(inconsistent(format!("num_hidden_layers is {layers}")));
        }
        let hidden = need(self.number("hidden_size", "embedding_length"), "embedding_length", defaults.hidden)?;
        // Layers that have no attention have no heads in files that list the heads of each layer.
        let several = |config: &str, gguf: &str| -> FoundFact<usize> {
            match self.numbers(config, gguf)? {
                Some(all) => Ok(all.into_iter().find(|heads| *heads > 0)),
                None => self.number(config, gguf),
            }
        };
        let heads = several("num_attention_heads", "attention.head_count");
        let heads = need(heads, "attention.head_count", defaults.heads)?;
        let kv_heads = several("num_key_value_heads", "attention.head_count_kv")?;
        let kv_heads = kv_heads.or(defaults.kv_heads.filter(|_| !self.is_gguf())).unwrap_or(heads);
        let head_dim = self.number("head_dim", "attention.key_length")?;
        // Some converters leave the key out even where heads are not an even share of the stream.
        let stored = match self {
            Self::Gguf(facts) => facts.rows("blk.0.attn_q.weight").checked_div(heads).filter(|rows| *rows > 0),
            Self::Config(_) => defaults.head_dim,
        };
        let head_dim = match head_dim.or(stored) {
            Some(head_dim) => head_dim,
            None => hidden.checked_div(heads).ok_or_else(|| inconsistent("num_attention_heads is 0"))?,
        };
        let intermediate = match self.numbers("intermediate_size", "feed_forward_length")? {
            Some(all) => all.into_iter().max(),
            None => self.number("intermediate_size", "feed_forward_length")?,
        };
        let positions = self.number("max_position_embeddings", "context_length");
        let positions = need(positions, "context_length", defaults.positions)?;
        let eps = match self {
            Self::Config(_) => self.float("rms_norm_eps", "")?.unwrap_or(defaults.eps),
            Self::Gguf(_) => {
                let rms = self.float("", "attention.layer_norm_rms_epsilon")?;
                let layer = self.float("", "attention.layer_norm_epsilon")?;
                rms.or(layer).unwrap_or(defaults.eps)
            }
        };
        let (vocab, tied) = match self {
            Self::Config(_) => (
                self.number("vocab_size", "")?.unwrap_or(defaults.vocab),
                self.flag("tie_word_embeddings", "")?.unwrap_or(defaults.tied),
            ),
            Self::Gguf(facts) => (facts.rows("token_embd.weight"), !facts.has("output.weight")),
        };
        let activation = match self.text("hidden_activation")?.or(self.text("hidden_act")?) {
            Some(name) => activation(name)?,
            None => defaults.activation,
        };
        Ok(Base {
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            intermediate: intermediate.unwrap_or(if self.is_gguf() { 0 } else { defaults.intermediate }),
            vocab,
            positions,
            eps,
            tied,
            activation,
        })
    }

    /// The names of the format.
    pub(crate) fn spelling(&self) -> TensorSpelling {
        match self {
            Self::Config(_) => TensorSpelling::llama(),
            Self::Gguf(_) => TensorSpelling::gguf(),
        }
    }

    /// The biases of attention: the key of `config.json`, or what the first layer of a GGUF file has.
    pub(crate) fn attention_bias(&self, key: &str, of: AttentionBias) -> Result<AttentionBias, FactError> {
        if self.is_gguf() {
            return Ok(match (self.gguf_has("blk.0.attn_q.bias"), self.gguf_has("blk.0.attn_output.bias")) {
                (_, true) => AttentionBias::All,
                (true, false) => AttentionBias::QueryKeyValue,
                (false, false) => AttentionBias::None,
            });
        }
        Ok(if self.flag(key, "")?.unwrap_or(false) { of } else { AttentionBias::None })
    }
}

/// The activation of this name in `transformers`.
pub(crate) fn activation(name: &str) -> Result<Activation, FactError> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::GeluErf),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        "relu2" => Ok(Activation::ReluSquared),
        other => Err(FactError::Unsupported(format!("the activation '{}'", other.escape_debug()))),
    }
}
