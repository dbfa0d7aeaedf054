//! Descriptions of encoders, from `config.json`. Each family is a table of names; what it computes is the same layer
//! (Vaswani et al., 2017, arXiv 1706.03762, encoder, with norms behind each part): BERT (Devlin et al., 2018, arXiv
//! 1810.04805), RoBERTa (arXiv 1907.11692), XLM-R (arXiv 1911.02116), DistilBERT (arXiv 1910.01108), and MPNet (arXiv
//! 2004.09297), which adds a bias by distance.

use std::collections::BTreeMap;

use model_boss_engine::LabelShares;
use serde::Deserialize;

use crate::error::ModelError;
use crate::spec::{Activation, ConfigJsonError};

/// An encoder's shape and the names of its parts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EncoderSpec {
    pub(crate) names: &'static EncoderNames,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
    /// Rows of the table of positions.
    pub(crate) positions: usize,
    /// The position of a text's first token.
    pub(crate) first_position: usize,
    pub(crate) activation: Activation,
    pub(crate) eps: f64,
    /// Types of tokens.
    pub(crate) kinds: usize,
    /// The names of a classifier's labels, in their order.
    pub(crate) labels: Vec<String>,
    pub(crate) shares: LabelShares,
}

/// A classifier's parts behind the first token's vector, with the prefix of the layers or without.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeadNames {
    /// A product, and the function behind it.
    pub(crate) dense: &'static str,
    /// Whether it has the prefix of the layers.
    pub(crate) dense_in_layers: bool,
    pub(crate) activation: HeadActivation,
    /// The product that gives a number for each label.
    pub(crate) labels: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadActivation {
    Tanh,
    Relu,
}

/// The names of an encoder's tensors, without the prefix of its class.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EncoderNames {
    /// The prefix that all names may have.
    pub(crate) prefix: &'static str,
    /// Whether tokens have types, all of them the first one.
    pub(crate) has_types: bool,
    /// In front of a layer's number.
    pub(crate) layer: &'static str,
    pub(crate) query: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: &'static str,
    pub(crate) out: &'static str,
    pub(crate) attention_norm: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
    pub(crate) norm: &'static str,
    /// A table of biases by distance, `[buckets, heads]`.
    pub(crate) distances: Option<&'static str>,
    pub(crate) head: HeadNames,
}

const POOLER: HeadNames =
    HeadNames { dense: "pooler.dense", dense_in_layers: true, activation: HeadActivation::Tanh, labels: "classifier" };

const CLASSIFIER: HeadNames = HeadNames {
    dense: "classifier.dense",
    dense_in_layers: false,
    activation: HeadActivation::Tanh,
    labels: "classifier.out_proj",
};

const BERT: EncoderNames = EncoderNames {
    prefix: "bert.",
    has_types: true,
    layer: "encoder.layer.",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    out: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
    distances: None,
    head: POOLER,
};

const ROBERTA: EncoderNames = EncoderNames { prefix: "roberta.", head: CLASSIFIER, ..BERT };

const DISTILBERT: EncoderNames = EncoderNames {
    prefix: "distilbert.",
    has_types: false,
    layer: "transformer.layer.",
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    out: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    norm: "output_layer_norm",
    distances: None,
    head: HeadNames {
        dense: "pre_classifier",
        dense_in_layers: false,
        activation: HeadActivation::Relu,
        labels: "classifier",
    },
};

const MPNET: EncoderNames = EncoderNames {
    prefix: "mpnet.",
    has_types: false,
    query: "attention.attn.q",
    key: "attention.attn.k",
    value: "attention.attn.v",
    out: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    distances: Some("encoder.relative_attention_bias.weight"),
    head: CLASSIFIER,
    ..BERT
};

/// The fields of `config.json` that matter here, under both of their names.
#[derive(Deserialize)]
struct EncoderConfig {
    model_type: String,
    #[serde(alias = "dim")]
    hidden_size: usize,
    #[serde(alias = "n_heads")]
    num_attention_heads: usize,
    #[serde(alias = "n_layers")]
    num_hidden_layers: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    #[serde(alias = "activation", default = "gelu")]
    hidden_act: String,
    layer_norm_eps: Option<f64>,
    pad_token_id: Option<usize>,
    position_embedding_type: Option<String>,
    type_vocab_size: Option<usize>,
    #[serde(flatten)]
    labels: LabelFacts,
}

/// The fields about a classifier's labels.
#[derive(Deserialize)]
pub(super) struct LabelFacts {
    #[serde(default)]
    id2label: BTreeMap<String, String>,
    num_labels: Option<usize>,
    problem_type: Option<String>,
}

impl LabelFacts {
    /// The names of the labels in their order, and how their numbers become shares.
    pub(super) fn read(&self) -> Result<(Vec<String>, LabelShares), ModelError> {
        let named = self.id2label.keys().filter_map(|id| id.parse::<usize>().ok()).max();
        // The library's own number where the file says nothing.
        let count = named.map(|last| last.saturating_add(1)).or(self.num_labels).unwrap_or(2);
        if !(1..=MOST_LABELS).contains(&count) {
            let what = format!("{count} labels are not known; 1 to {MOST_LABELS} are");
            return Err(ModelError::Config(ConfigJsonError::Malformed(what)));
        }
        let label = |id: usize| self.id2label.get(&id.to_string()).cloned().unwrap_or_else(|| format!("LABEL_{id}"));
        let apart = count == 1 || self.problem_type.as_deref() == Some("multi_label_classification");
        let shares = if apart { LabelShares::Apart } else { LabelShares::Together };
        Ok(((0..count).map(label).collect(), shares))
    }
}

/// The most labels of a classifier.
const MOST_LABELS: usize = 1 << 16;

/// The type of model in the text of a `config.json`.
pub(crate) fn model_type(json: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct ModelKind {
        model_type: String,
    }
    serde_json::from_slice::<ModelKind>(json).ok().map(|kind| kind.model_type)
}

fn gelu() -> String {
    "gelu".to_owned()
}

/// The activation of this name.
pub(super) fn activation_of(name: &str) -> Result<Activation, ModelError> {
    Ok(match name {
        "gelu" => Activation::GeluErf,
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        "silu" | "swish" => Activation::Silu,
        other => {
            let what = format!("the activation '{other}' is not known");
            return Err(ModelError::Config(ConfigJsonError::Malformed(what)));
        }
    })
}

impl EncoderSpec {
    /// Reads the text of a `config.json`.
    pub(crate) fn from_config(json: &[u8]) -> Result<Self, ModelError> {
        let bad = |what: String| ModelError::Config(ConfigJsonError::Malformed(what));
        let config: EncoderConfig = serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
        let names = match config.model_type.as_str() {
            "bert" => &BERT,
            "roberta" | "xlm-roberta" | "camembert" => &ROBERTA,
            "distilbert" => &DISTILBERT,
            "mpnet" => &MPNET,
            other => return Err(bad(format!("'{other}' is no type of an encoder that this worker knows"))),
        };
        if let Some(kind) = config.position_embedding_type.filter(|kind| kind != "absolute") {
            return Err(bad(format!("position_embedding_type '{kind}' is not known; 'absolute' is")));
        }
        let activation = activation_of(&config.hidden_act)?;
        // RoBERTa and MPNet count positions from behind that of padding.
        let counts_from_padding = names.prefix == "roberta." || names.prefix == "mpnet.";
        let first_position = if counts_from_padding { config.pad_token_id.unwrap_or(1).saturating_add(1) } else { 0 };
        let (labels, shares) = config.labels.read()?;
        let spec = Self {
            names,
            kinds: if names.has_types { config.type_vocab_size.unwrap_or(2).max(1) } else { 0 },
            labels,
            shares,
            hidden: config.hidden_size,
            heads: config.num_attention_heads,
            layers: config.num_hidden_layers,
            vocabulary: config.vocab_size,
            positions: config.max_position_embeddings,
            first_position,
            activation,
            eps: config.layer_norm_eps.unwrap_or(1e-12),
        };
        if spec.heads == 0 || !spec.hidden.is_multiple_of(spec.heads) || spec.hidden == 0 {
            return Err(bad(format!("{} heads do not divide a width of {}", spec.heads, spec.hidden)));
        }
        if spec.positions <= first_position {
            return Err(bad(format!("{} positions leave no room for a text", spec.positions)));
        }
        Ok(spec)
    }

    /// The longest text, in tokens.
    pub(crate) fn longest(&self) -> usize {
        self.positions - self.first_position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_1_a_configuration_is_read_under_the_names_of_its_family() {
        let of = |json: &str| EncoderSpec::from_config(json.as_bytes());
        let bert = r#"{"model_type":"bert","hidden_size":12,"num_attention_heads":3,"num_hidden_layers":2,"vocab_size":9,
            "max_position_embeddings":40}"#;
        let spec = of(bert).unwrap();
        assert_eq!((spec.longest(), spec.first_position, spec.activation), (40, 0, Activation::GeluErf));
        assert_eq!((spec.labels, spec.shares), (vec!["LABEL_0".into(), "LABEL_1".into()], LabelShares::Together));
        let one = of(&bert.replace(":40", r#":40,"id2label":{"0":"good"}"#)).unwrap();
        assert_eq!((one.labels, one.shares), (vec!["good".to_owned()], LabelShares::Apart));
        let roberta = bert.replace("\"bert\"", "\"roberta\"");
        assert_eq!((of(&roberta).unwrap().longest(), of(&roberta).unwrap().first_position), (38, 2));
        let distil = r#"{"model_type":"distilbert","dim":12,"n_heads":3,"n_layers":2,"vocab_size":9,"activation":"relu",
            "max_position_embeddings":40}"#;
        assert_eq!(of(distil).unwrap().activation, Activation::Relu);
        for (wrong, said) in [
            (bert.replace("\"bert\"", "\"llama\""), "llama"),
            (bert.replace(":3", ":5"), "5 heads"),
            (bert.replace(":40", ":40,\"position_embedding_type\":\"relative_key\""), "relative_key"),
            (bert.replace(":9,", ":9,\"hidden_act\":\"snake\","), "snake"),
            (roberta.replace(":40", ":2"), "2 positions"),
            (bert.replace(":40", ":40,\"num_labels\":0"), "0 labels"),
        ] {
            assert!(of(&wrong).unwrap_err().to_string().contains(said), "{wrong}");
        }
    }
}
