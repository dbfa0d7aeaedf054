//! Descriptions of encoders from the metadata of GGUF files, as llama.cpp's converter writes them. Their layers have a
//! norm behind each part; ModernBERT is a family of its own.

use model_boss_protocol::GGUF_ENCODERS;
use model_boss_weights::gguf::{GgufModel, Header, Strings};

use super::family::EncoderFamily;
use super::keys::{Labels, even_share};
use super::labels::{MOST_LABELS, shares_of};
use super::modern::ModernSpec;
use super::rotary_facts::experts_of;
use super::spec::{Adapters, Biases, EncoderSpec, HeadForm, MlpForm, TokenKinds, TokenPlaces};
use crate::error::ModelError;
use crate::spec::fact_error::FactError;
use crate::spec::facts::{GgufFacts, ModelFacts, RopeDefaults};
use crate::spec::{Activation, GgufSpecError, NormKind, NormSpec};

/// Whether a file is that of an encoder.
pub(super) fn is_encoder(model: &GgufModel) -> bool {
    model.header().is_ok_and(|header| architecture(&header).is_some_and(|name| GGUF_ENCODERS.contains(&name)))
}

fn architecture<'a>(header: &Header<'a>) -> Option<&'a str> {
    header.find("general.architecture").ok().flatten()
}

/// The family of a file.
pub(super) fn family_of(model: &GgufModel) -> Result<Box<dyn EncoderFamily>, ModelError> {
    let failed = |error: FactError| ModelError::Gguf(error.into());
    let header = model.header()?;
    let name = architecture(&header).unwrap_or_default();
    let facts = ModelFacts::Gguf(GgufFacts::new(&header, model, name));
    let labels = labels_of(&header, name);
    if name == "modern-bert" {
        return Ok(Box::new(ModernSpec::from_gguf(&facts, labels).map_err(failed)?));
    }
    if !GGUF_ENCODERS.contains(&name) {
        return Err(GgufSpecError::Architecture(name.escape_debug().to_string()).into());
    }
    let spec = spec_of(&facts, name, labels).and_then(EncoderSpec::check);
    Ok(Box::new(spec.map_err(failed)?))
}

/// The labels of a classifier; one without a name where the file lists none.
fn labels_of(header: &Header<'_>, architecture: &str) -> Labels {
    let listed: Option<Strings<'_>> = header.find(&format!("{architecture}.classifier.output_labels")).ok().flatten();
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let names: Vec<String> = listed.map_or_else(Vec::new, |names| names.take(MOST_LABELS).map(text).collect());
    let names = if names.is_empty() { vec!["LABEL_0".to_owned()] } else { names };
    let shares = shares_of(names.len() == 1);
    (names, shares)
}

fn spec_of(facts: &ModelFacts<'_>, name: &str, (labels, shares): Labels) -> Result<EncoderSpec, FactError> {
    let number = |key: &str| facts.number("", key)?.ok_or_else(|| facts.missing(key));
    let (hidden, heads) = (number("embedding_length")?, number("attention.head_count")?);
    let (layers, context) = (number("block_count")?, number("context_length")?);
    let head_dim = even_share(hidden, heads)?;
    if facts.flag("", "attention.causal")? == Some(true) {
        return Err(FactError::Unsupported("an encoder with causal attention".to_owned()));
    }
    let positions = facts.gguf_rows("position_embd.weight");
    let rope = RopeDefaults::usual(head_dim, context);
    let places = match (name, positions) {
        ("bert", Some(rows)) => TokenPlaces::Table { rows, first: 0 },
        ("bert", None) => return Err(FactError::Unsupported("an encoder `bert` without `position_embd`".to_owned())),
        ("jina-bert-v2", _) => TokenPlaces::Alibi,
        _ => TokenPlaces::Rope(facts.rope(&rope)?),
    };
    let gated = matches!(name, "nomic-bert" | "jina-bert-v2");
    // Jina's small early models have no gates.
    let gated = gated && (facts.gguf_has("blk.0.ffn_gate.weight") || doubled(facts));
    let activation = if name == "nomic-bert" { Activation::Silu } else { Activation::GeluErf };
    let experts = match facts.number("", "moe_every_n_layers")?.filter(|every| *every > 0) {
        Some(every) if name == "nomic-bert-moe" => {
            let of = [number("expert_count")?, number("expert_used_count")?, number("feed_forward_length")?];
            Some(experts_of(every, of, activation)?)
        }
        _ => None,
    };
    let eps = facts.float("", "attention.layer_norm_epsilon")?;
    Ok(EncoderSpec {
        hidden,
        heads,
        head_dim,
        layers,
        vocabulary: facts.gguf_rows("token_embd.weight").unwrap_or(0),
        longest: positions.map_or(context, |rows| rows.min(context)),
        places,
        kinds: TokenKinds {
            count: facts.gguf_rows("token_types.weight").unwrap_or(0),
            of_pairs: name != "jina-bert-v3",
        },
        mlp: if gated { MlpForm::Gated } else { MlpForm::Plain },
        activation,
        experts,
        adapters: Adapters::default(),
        norm: NormSpec { kind: NormKind::LayerWithBias, eps: eps.unwrap_or(1e-12) },
        biases: Biases::AsStored,
        head: HeadForm::Gguf,
        labels,
        shares,
    })
}

/// Whether the first layer has gate and up in one matrix.
fn doubled(facts: &ModelFacts<'_>) -> bool {
    let inner = facts.number("", "feed_forward_length").ok().flatten();
    let rows = facts.gguf_rows("blk.0.ffn_up.weight");
    inner.zip(rows).is_some_and(|(inner, rows)| rows == 2 * inner)
}
