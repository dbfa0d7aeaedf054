//! Descriptions of encoders, from `config.json`: layers with a norm behind each part (Vaswani et al., 2017, arXiv
//! 1706.03762). BERT (Devlin et al., 2018, arXiv 1810.04805), RoBERTa (arXiv 1907.11692), XLM-R (arXiv 1911.02116),
//! DistilBERT (arXiv 1910.01108), MPNet (arXiv 2004.09297), which adds a bias by distance, and Jina v2 (Günther et al.,
//! 2023, arXiv 2310.19923), whose scores lose by distance.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::keys::{Labels, even_share, number, refuse};
use super::labels::LabelFacts;
use super::rotary_facts;
use super::spec::{Adapters, Biases, EncoderSpec, HeadForm, MlpForm, TokenKinds, TokenPlaces};
use crate::error::ModelError;
use crate::spec::check::{MOST_LAYERS, inconsistent};
use crate::spec::fact_error::FactError;
use crate::spec::facts::{ConfigFacts, ModelFacts, activation};
use crate::spec::{Activation, ConfigJsonError, NormKind, NormSpec};

/// The type of model in the text of a `config.json`.
pub(crate) fn model_type(json: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct ModelKind {
        model_type: String,
    }
    serde_json::from_slice::<ModelKind>(json).ok().map(|kind| kind.model_type)
}

impl EncoderSpec {
    /// Reads the text of a `config.json`.
    pub(crate) fn from_config(json: &[u8]) -> Result<Self, ModelError> {
        let malformed = |error: serde_json::Error| ConfigJsonError::Malformed(error.to_string());
        let fields: Map<String, Value> = serde_json::from_slice(json).map_err(malformed)?;
        let facts = ModelFacts::Config(ConfigFacts::new(&fields));
        let kind = model_type(json).unwrap_or_default();
        let labels = LabelFacts::read(json)?;
        let spec = match kind.as_str() {
            "bert" | "roberta" | "xlm-roberta" | "camembert" | "distilbert" | "mpnet" => bert(&facts, &kind, labels),
            "nomic_bert" => rotary_facts::nomic(&facts, labels),
            "gte" | "new" => rotary_facts::gte(&facts, &kind, labels),
            "jina_embeddings_v3" => rotary_facts::jina_v3(&facts, labels),
            other => {
                let what = format!("'{other}' is no type of an encoder that this worker knows");
                return Err(ConfigJsonError::Malformed(what).into());
            }
        };
        let checked = spec.and_then(|spec| spec.check());
        checked.map_err(|error| ModelError::Config(error.into()))
    }

    /// The same spec, if a model can have its numbers.
    pub(super) fn check(self) -> Result<Self, FactError> {
        let Self { hidden, heads, head_dim, layers, .. } = self;
        if heads == 0 || head_dim == 0 || hidden == 0 || head_dim * heads > MOST_WIDTH || hidden > MOST_WIDTH {
            return Err(inconsistent(format!("{heads} heads do not divide a width of {hidden}")));
        }
        if layers == 0 || layers > MOST_LAYERS {
            return Err(inconsistent(format!("{layers} layers")));
        }
        if let TokenPlaces::Table { rows, first } | TokenPlaces::TableAndDistances { rows, first } = self.places
            && rows <= first
        {
            return Err(inconsistent(format!("{rows} positions leave no room for a text")));
        }
        if self.longest == 0 {
            return Err(inconsistent("0 positions leave no room for a text"));
        }
        if let TokenPlaces::Rope(rope) = &self.places
            && (rope.width < 2 || rope.width % 2 == 1 || rope.width > head_dim)
        {
            return Err(inconsistent(format!("{} of a head's {head_dim} elements cannot be rotated", rope.width)));
        }
        Ok(self)
    }
}

/// The largest accepted width, and number of tasks.
const MOST_WIDTH: usize = 1 << 20;
const MOST_TASKS: usize = 1 << 8;

/// BERT and its relatives with the same layer.
fn bert(facts: &ModelFacts<'_>, kind: &str, (labels, shares): Labels) -> Result<EncoderSpec, FactError> {
    refuse(facts, &["is_decoder", "add_cross_attention"])?;
    let is_roberta = matches!(kind, "roberta" | "xlm-roberta" | "camembert");
    let hidden = number(facts, &["hidden_size", "dim"], 768)?;
    let heads = number(facts, &["num_attention_heads", "n_heads"], 12)?;
    let layers = number(facts, &["num_hidden_layers", "n_layers"], if kind == "distilbert" { 6 } else { 12 })?;
    let rows = number(facts, &["max_position_embeddings"], 512)?;
    // RoBERTa and MPNet count positions from behind that of padding.
    let counts_from_padding = is_roberta || kind == "mpnet";
    // MPNet's code has a padding of its own, whatever the file says.
    let padding = if kind == "mpnet" { 1 } else { number(facts, &["pad_token_id"], 1)? };
    let first = if counts_from_padding { padding.saturating_add(1) } else { 0 };
    let head_dim = even_share(hidden, heads)?;
    let positions = facts.text("position_embedding_type")?.unwrap_or("absolute");
    let places = match (positions, kind) {
        ("absolute", "mpnet") => TokenPlaces::TableAndDistances { rows, first },
        ("absolute", _) => TokenPlaces::Table { rows, first },
        ("alibi", "bert") => TokenPlaces::Alibi,
        ("rotary", "xlm-roberta") => rotary_facts::flash_rope(facts, head_dim)?,
        (other, _) => {
            let what = format!("position_embedding_type '{}' of a {kind}", other.escape_debug());
            return Err(FactError::Unsupported(what));
        }
    };
    let longest = match places {
        TokenPlaces::Table { .. } | TokenPlaces::TableAndDistances { .. } => rows.saturating_sub(first),
        TokenPlaces::Rope(_) | TokenPlaces::Alibi => rows,
    };
    let usual = facts.text("hidden_act")?.or(facts.text("activation")?).unwrap_or("gelu");
    let (mlp, of_mlp) = match facts.text("feed_forward_type")?.unwrap_or("original") {
        "original" => (MlpForm::Plain, activation(usual)?),
        "geglu" => (MlpForm::Gated, Activation::GeluErf),
        "reglu" => (MlpForm::Gated, Activation::Relu),
        other => return Err(FactError::Unsupported(format!("feed_forward_type '{}'", other.escape_debug()))),
    };
    let kinds = match kind {
        "distilbert" | "mpnet" => 0,
        _ => number(facts, &["type_vocab_size"], 2)?,
    };
    Ok(EncoderSpec {
        hidden,
        heads,
        head_dim,
        layers,
        vocabulary: number(facts, &["vocab_size"], 30_522)?,
        longest,
        places,
        // Tokenizers of RoBERTa's kind give all tokens the first type.
        kinds: TokenKinds { count: kinds, of_pairs: kind == "bert" },
        mlp,
        activation: of_mlp,
        experts: None,
        adapters: if kind == "xlm-roberta" { adapters(facts)? } else { Adapters::default() },
        norm: NormSpec { kind: NormKind::LayerWithBias, eps: facts.float("layer_norm_eps", "")?.unwrap_or(1e-12) },
        biases: Biases::Of { inputs: true, out: true, up: mlp == MlpForm::Plain, down: true },
        head: match kind {
            "bert" => HeadForm::Pooler,
            "distilbert" => HeadForm::Distil,
            _ => HeadForm::TwoProducts,
        },
        labels,
        shares,
    })
}

/// The adapters of Jina's XLM-R (Sturua et al., 2024, arXiv 2409.10173).
fn adapters(facts: &ModelFacts<'_>) -> Result<Adapters, FactError> {
    let Some(tasks) = facts.layer_types("lora_adaptations")? else { return Ok(Adapters::default()) };
    let rank = number(facts, &["lora_rank"], 4)?;
    let alpha = facts.float("lora_alpha", "")?.unwrap_or(1.0);
    if rank == 0 || rank > MOST_WIDTH || tasks.len() > MOST_TASKS || !alpha.is_finite() {
        return Err(inconsistent(format!("{} adapters of rank {rank}", tasks.len())));
    }
    Ok(Adapters { tasks, rank, scale: alpha / rank as f64 })
}

#[cfg(test)]
mod tests {
    use model_boss_engine::LabelShares;

    use super::*;

    #[test]
    fn em_1_a_configuration_is_read_under_the_names_of_its_family() {
        let of = |json: &str| EncoderSpec::from_config(json.as_bytes());
        let bert = r#"{"model_type":"bert","hidden_size":12,"num_attention_heads":3,"num_hidden_layers":2,"vocab_size":9,
            "max_position_embeddings":40}"#;
        let spec = of(bert).unwrap();
        assert_eq!((spec.longest, spec.activation), (40, Activation::GeluErf));
        assert_eq!(spec.places, TokenPlaces::Table { rows: 40, first: 0 });
        assert_eq!((spec.labels, spec.shares), (vec!["LABEL_0".into(), "LABEL_1".into()], LabelShares::Together));
        let one = of(&bert.replace(":40", r#":40,"id2label":{"0":"good"}"#)).unwrap();
        assert_eq!((one.labels, one.shares), (vec!["good".to_owned()], LabelShares::Apart));
        let numbers = of(&bert.replace(":40", r#":40,"id2label":{"0":0,"1":null}"#)).unwrap();
        assert_eq!(numbers.labels, ["0", "null"]);
        assert_eq!(of(&bert.replace(":40", r#":40,"id2label":["a"]"#)).unwrap().labels.len(), 2);
        let roberta = bert.replace("\"bert\"", "\"roberta\"");
        assert_eq!((of(&roberta).unwrap().longest, of(&roberta).unwrap().kinds.of_pairs), (38, false));
        assert_eq!(of(&roberta).unwrap().places, TokenPlaces::Table { rows: 40, first: 2 });
        let mpnet = roberta.replace("\"roberta\"", "\"mpnet\"").replace(":40", ":40,\"pad_token_id\":7");
        assert_eq!(of(&mpnet).unwrap().places, TokenPlaces::TableAndDistances { rows: 40, first: 2 });
        let distil = r#"{"model_type":"distilbert","dim":12,"n_heads":3,"n_layers":2,"vocab_size":9,"activation":"relu",
            "max_position_embeddings":40}"#;
        assert_eq!(of(distil).unwrap().activation, Activation::Relu);
        let jina = bert.replace(":40", r#":40,"position_embedding_type":"alibi","feed_forward_type":"reglu""#);
        let jina = of(&jina).unwrap();
        assert_eq!((jina.places, jina.mlp, jina.activation), (TokenPlaces::Alibi, MlpForm::Gated, Activation::Relu));
        for (wrong, said) in [
            (bert.replace("\"bert\"", "\"llama\""), "llama"),
            (bert.replace(":3", ":5"), "5 heads"),
            (bert.replace(":40", ":40,\"position_embedding_type\":\"relative_key\""), "relative_key"),
            (bert.replace(":9,", ":9,\"hidden_act\":\"snake\","), "snake"),
            (bert.replace(":9,", ":9,\"feed_forward_type\":\"snake\","), "snake"),
            (bert.replace(":9,", ":9,\"is_decoder\":true,"), "is_decoder"),
            (bert.replace(":2,", ":5000,"), "5000 layers"),
            (roberta.replace(":40", ":2"), "2 positions"),
            (bert.replace(":40", ":40,\"num_labels\":0"), "0 labels"),
        ] {
            assert!(of(&wrong).unwrap_err().to_string().contains(said), "{wrong}");
        }
    }
}
