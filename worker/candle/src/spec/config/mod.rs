//! Reads `config.json` into a [`DecoderSpec`]: finds the family, and says in the words of the file what is wrong with
//! it.

use model_boss_protocol::{CONFIG_ARCHITECTURES, config_architecture};
use model_boss_weights::quantised::{DescriptionError, FormatError, QuantisedFormat};
use serde_json::Value;

use crate::spec::DecoderSpec;
use crate::spec::check::check;
use crate::spec::fact_error::FactError;
use crate::spec::facts::{ConfigFacts, ModelFacts};
use crate::spec::families;

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
    /// The file that describes the quantisation cannot be used.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// The numbers contradict each other, or no model can have them.
    #[error("config.json is inconsistent: {0}")]
    Inconsistent(String),
}

impl From<FactError> for ConfigJsonError {
    fn from(error: FactError) -> Self {
        match error {
            FactError::Malformed(what) => Self::Malformed(what),
            FactError::Key(error) => Self::Malformed(error.to_string()),
            FactError::Unsupported(what) => Self::Unsupported(what),
            FactError::Inconsistent(what) => Self::Inconsistent(what),
        }
    }
}

impl DecoderSpec {
    /// Reads a `config.json`, and how the model's matrices are quantised.
    pub fn from_config(json: &[u8]) -> Result<(Self, Option<QuantisedFormat>), ConfigJsonError> {
        let malformed = |error: serde_json::Error| ConfigJsonError::Malformed(error.to_string());
        Self::of_config(&serde_json::from_slice(json).map_err(malformed)?)
    }

    /// The same of a `config.json` that was read.
    pub(crate) fn of_config(whole: &Value) -> Result<(Self, Option<QuantisedFormat>), ConfigJsonError> {
        let Some(fields) = whole.as_object() else {
            return Err(ConfigJsonError::Malformed("it is no object".to_owned()));
        };
        let named = match fields.get("architectures") {
            Some(Value::Array(names)) => names.first().and_then(Value::as_str),
            _ => None,
        };
        let model_type = fields.get("model_type").and_then(Value::as_str);
        let unknown = |name: &str| ConfigJsonError::Architecture(format!("'{}'", name.escape_debug()));
        // The coordinator uses the same list and sends no other architecture here.
        let known = named.map(|name| config_architecture(name).ok_or_else(|| unknown(name))).transpose()?;
        let Some(name) = known.or(model_type) else {
            return Err(ConfigJsonError::Architecture("of a config.json without 'architectures'".to_owned()));
        };
        let inner = fields.get("text_config").and_then(|text| text.get("model_type")).and_then(Value::as_str);
        let name = if families::is_wrapper(name) { inner.unwrap_or("llama") } else { name };
        let family = families::of_config(name).ok_or_else(|| unknown(name))?;
        let format = QuantisedFormat::read(whole)?;
        let facts = ModelFacts::Config(ConfigFacts::new(fields));
        let mut spec = family(&facts)?;
        if facts.flag("is_causal", "")? == Some(false) {
            spec.look_behind()?;
        } else if !spec.sees_behind() && facts.flag("use_bidirectional_attention", "")? == Some(true) {
            let what = format!("use_bidirectional_attention in a {name}");
            return Err(ConfigJsonError::Unsupported(what));
        }
        check(&spec)?;
        Ok((spec, format))
    }
}

#[cfg(test)]
mod tests;
