//! ModelFacts of `config.json`. An absent field and `null` mean the same, as in `transformers`, unless a family says
//! otherwise.

use serde_json::{Map, Value};

use crate::spec::fact_error::{FactError, FoundFact};

/// A configuration, that of the language model where it is one part of several.
pub(crate) struct ConfigFacts {
    fields: Map<String, Value>,
}

impl ConfigFacts {
    /// `whole` with the fields of its `text_config`, if it has one, before its own.
    pub(crate) fn new(whole: &Map<String, Value>) -> Self {
        let mut fields = whole.clone();
        if let Some(Value::Object(inner)) = fields.remove("text_config") {
            // Fields of the whole alone are no facts about its text. Its head belongs to the whole.
            fields.retain(|key, _| matches!(key.as_str(), "tie_word_embeddings" | "quantization_config"));
            for (key, value) in inner {
                if key != "tie_word_embeddings" || fields.get(&key).is_none_or(Value::is_null) {
                    fields.insert(key, value);
                }
            }
        }
        Self { fields }
    }

    /// The fields as they are.
    pub(crate) fn plain(fields: Map<String, Value>) -> Self {
        Self { fields }
    }

    /// All fields.
    pub(crate) fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.fields.get(key).is_some_and(Value::is_null)
    }

    pub(crate) fn number(&self, key: &str) -> FoundFact<usize> {
        match self.get(key) {
            Some(Value::Array(list)) => {
                let numbers = list.iter().map(|value| as_number(key, value)).collect::<Result<Vec<_>, _>>()?;
                match numbers.split_first() {
                    Some((first, rest)) if rest.iter().all(|other| other == first) => Ok(Some(*first)),
                    _ => Err(FactError::Unsupported(format!("layers that differ in {key}"))),
                }
            }
            value => value.map(|value| as_number(key, value)).transpose(),
        }
    }

    pub(crate) fn numbers(&self, key: &str) -> FoundFact<Vec<usize>> {
        match self.get(key) {
            Some(Value::Array(list)) => {
                list.iter().map(|value| as_number(key, value)).collect::<Result<_, _>>().map(Some)
            }
            _ => Ok(None),
        }
    }

    pub(crate) fn float(&self, key: &str) -> FoundFact<f64> {
        self.get(key).map(|value| as_float(key, value)).transpose()
    }

    pub(crate) fn flag(&self, key: &str) -> FoundFact<bool> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| malformed(key, "true or false", value));
        self.get(key).map(read).transpose()
    }

    pub(crate) fn text(&self, key: &str) -> FoundFact<&str> {
        self.get(key).map(|value| value.as_str().ok_or_else(|| malformed(key, "a text", value))).transpose()
    }

    pub(crate) fn texts(&self, key: &str) -> FoundFact<Vec<String>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| malformed(key, "a list", value))?;
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| malformed(key, "texts", value));
        list.iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// An object of further fields.
    pub(crate) fn table(&self, key: &str) -> FoundFact<Self> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let fields = value.as_object().ok_or_else(|| malformed(key, "an object", value))?;
        Ok(Some(Self { fields: fields.clone() }))
    }

    /// Whether no field has a value.
    pub(crate) fn is_empty(&self) -> bool {
        self.fields.values().all(Value::is_null)
    }

    pub(crate) fn floats(&self, key: &str) -> FoundFact<Vec<f32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| malformed(key, "a list", value))?;
        let number = |value: &Value| as_float(key, value).map(|number| number as f32);
        list.iter().map(number).collect::<Result<_, _>>().map(Some)
    }
}

fn as_number(key: &str, value: &Value) -> Result<usize, FactError> {
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| malformed(key, "a whole number", value))
}

fn as_float(key: &str, value: &Value) -> Result<f64, FactError> {
    value.as_f64().ok_or_else(|| malformed(key, "a number", value))
}

fn malformed(key: &str, wanted: &str, value: &Value) -> FactError {
    let mut given: String = value.to_string().chars().take(60).collect();
    if given.len() < value.to_string().len() {
        given.push('…');
    }
    FactError::Malformed(format!("`{key}` is {given}, not {wanted}"))
}
