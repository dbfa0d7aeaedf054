//! ModelFacts about a model, by the keys of `config.json` or of GGUF metadata. Families read both formats by one
//! function: each fact has a key in either. The module knows keys and types, no family.

use super::config_facts::ConfigFacts;
use super::gguf_facts::GgufFacts;
use crate::spec::fact_error::{FactError, FoundFact};

/// The facts of one model.
pub(crate) enum ModelFacts<'a> {
    Config(ConfigFacts),
    Gguf(GgufFacts<'a>),
}

impl ModelFacts<'_> {
    /// A count or a width. In GGUF an array with the same number for each layer counts as one number.
    pub(crate) fn number(&self, config: &str, gguf: &str) -> FoundFact<usize> {
        match self {
            Self::Config(facts) => facts.number(config),
            Self::Gguf(facts) => facts.number(gguf),
        }
    }

    /// A number for each layer, if there are several.
    pub(crate) fn numbers(&self, config: &str, gguf: &str) -> FoundFact<Vec<usize>> {
        match self {
            Self::Config(facts) => facts.numbers(config),
            Self::Gguf(facts) => facts.numbers(gguf),
        }
    }

    /// A number that may have a fraction.
    pub(crate) fn float(&self, config: &str, gguf: &str) -> FoundFact<f64> {
        match self {
            Self::Config(facts) => facts.float(config),
            Self::Gguf(facts) => facts.float(gguf),
        }
    }

    /// A number that may have a fraction for each layer.
    pub(crate) fn floats(&self, config: &str, gguf: &str) -> FoundFact<Vec<f32>> {
        match self {
            Self::Config(facts) => facts.floats(config),
            Self::Gguf(facts) => facts.floats(gguf),
        }
    }

    /// The rows of a GGUF file's tensor.
    pub(crate) fn gguf_rows(&self, tensor: &str) -> Option<usize> {
        match self {
            Self::Gguf(facts) => Some(facts.rows(tensor)).filter(|rows| *rows > 0),
            Self::Config(_) => None,
        }
    }

    /// A choice of two.
    pub(crate) fn flag(&self, config: &str, gguf: &str) -> FoundFact<bool> {
        match self {
            Self::Config(facts) => facts.flag(config),
            Self::Gguf(facts) => facts.flag(gguf),
        }
    }

    /// A fact that only `config.json` has a key for.
    pub(crate) fn config_flag(&self, key: &str, in_gguf: bool) -> Result<Option<bool>, FactError> {
        match self {
            Self::Config(facts) => facts.flag(key),
            Self::Gguf(_) => Ok(Some(in_gguf)),
        }
    }

    /// A name.
    pub(crate) fn text(&self, config: &str) -> FoundFact<&str> {
        match self {
            Self::Config(facts) => facts.text(config),
            Self::Gguf(_) => Ok(None),
        }
    }

    /// The kind of each layer as `config.json` names them.
    pub(crate) fn layer_types(&self, key: &str) -> FoundFact<Vec<String>> {
        match self {
            Self::Config(facts) => facts.texts(key),
            Self::Gguf(_) => Ok(None),
        }
    }

    /// Whether `config.json` has the key with `null`, which is another choice than its absence.
    pub(crate) fn is_null(&self, config: &str) -> bool {
        matches!(self, Self::Config(facts) if facts.is_null(config))
    }

    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self, Self::Gguf(_))
    }

    /// Whether a GGUF file has a tensor of that name. Of other files only the configuration is known.
    pub(crate) fn gguf_has(&self, tensor: &str) -> bool {
        matches!(self, Self::Gguf(facts) if facts.has(tensor))
    }

    /// Whether any layer of a GGUF file has a tensor of that name.
    pub(crate) fn gguf_has_any(&self, tensor: &str, layers: usize) -> bool {
        (0..layers).any(|layer| self.gguf_has(&format!("blk.{layer}.{tensor}")))
    }

    /// Whether matrices of experts are stored as MXFP4, as `quantization_config` says.
    pub(crate) fn is_mxfp4(&self) -> Result<bool, FactError> {
        let Self::Config(facts) = self else { return Ok(false) };
        let table = facts.table("quantization_config")?;
        Ok(table.is_some_and(|table| table.text("quant_method").ok().flatten() == Some("mxfp4")))
    }

    /// Whether `config.json` has one rope for all kinds of layers.
    pub(crate) fn lacks_tables_for_kinds(&self) -> Result<bool, FactError> {
        match self {
            Self::Config(facts) => facts.lacks_tables_for_kinds(),
            Self::Gguf(_) => Ok(false),
        }
    }

    /// A name that only GGUF has a key for.
    pub(crate) fn gguf_text(&self, key: &str) -> FoundFact<&str> {
        match self {
            Self::Gguf(facts) => facts.find(key),
            Self::Config(_) => Ok(None),
        }
    }

    /// The error for a key that is missing.
    pub(crate) fn missing(&self, key: &str) -> FactError {
        match self {
            Self::Gguf(facts) => facts.missing(key),
            Self::Config(_) => FactError::Malformed(format!("`{key}` is missing")),
        }
    }

    /// The kind of scaling in the table of rope in `config.json`.
    pub(crate) fn rope_kind(&self) -> FoundFact<String> {
        match self {
            Self::Config(facts) => facts.rope_kind(),
            Self::Gguf(_) => Ok(None),
        }
    }

    /// Numbers of the table of rope in `config.json`.
    pub(crate) fn rope_numbers(&self, key: &str) -> FoundFact<Vec<usize>> {
        match self {
            Self::Config(facts) => facts.rope_numbers(key),
            Self::Gguf(_) => Ok(None),
        }
    }

    /// A number of the table of rope in `config.json`.
    pub(crate) fn rope_float(&self, key: &str) -> FoundFact<f64> {
        match self {
            Self::Config(facts) => facts.rope_float(key),
            Self::Gguf(_) => Ok(None),
        }
    }
}
