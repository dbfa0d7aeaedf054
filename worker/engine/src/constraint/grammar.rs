//! The forms that an answer can be bound to, as requests state them.

use llguidance::api::TopLevelGrammar;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::error::GrammarError;
use super::gbnf::lark_of_gbnf;
use super::literal::literal;
use super::normal::normalised;
use super::schema_fault::schema_fault;

/// A form of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Grammar {
    /// JSON that is valid against this schema, which is JSON text. Made without optional white space, and with numbers
    /// of no more digits than those of 64 bits have.
    JsonSchema(String),
    /// The same, with white space allowed: an answer that a client began may have some.
    SpacedJsonSchema(String),
    /// JSON of a schema whose keywords are left out where they cannot be held to.
    LenientJsonSchema(String),
    /// A text that matches a regular expression as a whole.
    Regex(String),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
    /// Calls of tools, in the same Lark. Numbers of JSON in it are bounded in their length, as in schemas.
    Calls(String),
    /// A grammar in llama.cpp's GBNF.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Another form, with more around it.
    Around {
        /// The same Lark as that of calls, in which `@answer` is the other form.
        text: String,
        /// The other form.
        answer: Box<Self>,
    },
}

/// The name of a form in the text around it.
const ANSWER: &str = "answer";

/// The key by which llguidance reads its options from a schema.
const OPTIONS: &str = "x-guidance";

/// White space in JSON that a client began: as much as people write, and no more, so that an answer ends.
const SPACES: &str = r"[ \n\t]{0,24}";

impl Grammar {
    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(json!({ "type": "object" }).to_string())
    }

    /// A grammar in whichever of the two notations it is written: rules of GBNF have `::=`.
    pub fn in_either_notation(text: String) -> Self {
        if text.contains("::=") { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    /// The same form for an answer that a client began with this text.
    #[must_use]
    pub fn begun(self) -> Self {
        match self {
            Self::JsonSchema(schema) => Self::SpacedJsonSchema(schema),
            other => other,
        }
    }

    pub(super) fn is_schema(&self) -> bool {
        match self {
            Self::Around { answer, .. } => answer.is_schema(),
            _ => matches!(self, Self::JsonSchema(_) | Self::SpacedJsonSchema(_) | Self::LenientJsonSchema(_)),
        }
    }

    /// The schema, if it is one and an object.
    pub(super) fn schema(&self) -> Option<Map<String, Value>> {
        match self {
            Self::JsonSchema(schema) | Self::SpacedJsonSchema(schema) | Self::LenientJsonSchema(schema) => {
                serde_json::from_str(schema).ok()
            }
            _ => None,
        }
    }

    /// Whether numbers end. Those of other forms are as long as the client's grammar has them.
    pub(super) fn has_bounded_numbers(&self) -> bool {
        match self {
            Self::Around { answer, .. } => answer.has_bounded_numbers(),
            _ => self.is_schema() || matches!(self, Self::Calls(_)),
        }
    }

    /// Bytes of its text.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::JsonSchema(text)
            | Self::SpacedJsonSchema(text)
            | Self::LenientJsonSchema(text)
            | Self::Regex(text)
            | Self::Lark(text)
            | Self::Calls(text)
            | Self::Gbnf(text) => text.len(),
            Self::Choice(choices) => choices.iter().map(String::len).sum(),
            Self::Around { text, answer } => text.len() + answer.size(),
        }
    }

    /// The grammar as llguidance reads it.
    pub(super) fn source(&self) -> Result<TopLevelGrammar, GrammarError> {
        match self {
            Self::JsonSchema(schema) => Ok(TopLevelGrammar::from_json_schema(with_options(schema, Written::Tight)?)),
            Self::SpacedJsonSchema(schema) => {
                Ok(TopLevelGrammar::from_json_schema(with_options(schema, Written::Spaced)?))
            }
            Self::LenientJsonSchema(schema) => {
                Ok(TopLevelGrammar::from_json_schema(with_options(schema, Written::Leniently)?))
            }
            Self::Regex(expression) => Ok(TopLevelGrammar::from_regex(expression)),
            Self::Lark(grammar) | Self::Calls(grammar) => Ok(TopLevelGrammar::from_lark(grammar.clone())),
            Self::Gbnf(grammar) => {
                let lark = lark_of_gbnf(grammar).map_err(|error| GrammarError::Unusable(error.to_string()))?;
                Ok(TopLevelGrammar::from_lark(lark))
            }
            Self::Choice(choices) => {
                if choices.is_empty() {
                    return Err(GrammarError::Unusable("there is nothing to choose from".to_owned()));
                }
                let choices: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
                // One terminal, so that a choice that begins another one does not hide it.
                Ok(TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}\n", choices.join(" | "))))
            }
            Self::Around { text, answer } => {
                let mut all = TopLevelGrammar::from_lark(text.clone());
                let mut inside = answer.source()?.grammars;
                if let Some(first) = inside.first_mut() {
                    first.name = Some(ANSWER.to_owned());
                }
                all.grammars.append(&mut inside);
                Ok(all)
            }
        }
    }
}

/// The way in which a schema's values are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Tight,
    Spaced,
    /// Tight, and without the keywords that cannot be held to.
    Leniently,
}

/// A schema with our options in it, in place of any that a client put there.
fn with_options(schema: &str, written: Written) -> Result<Value, GrammarError> {
    let schema: Value = serde_json::from_str(schema)
        .map_err(|error| GrammarError::Unusable(format!("the schema is no JSON: {error}")))?;
    let mut object = match schema {
        Value::Object(object) => object,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(GrammarError::Unusable("the schema 'false' allows no answer".to_owned())),
        _ => return Err(GrammarError::Unusable("a schema must be an object".to_owned())),
    };
    let fault = schema_fault(&object, written == Written::Leniently);
    if let Some(fault) = fault {
        return Err(GrammarError::Unusable(fault));
    }
    object = normalised(object).map_err(GrammarError::Unusable)?;
    let options = match written {
        Written::Tight => json!({ "whitespace_flexible": false }),
        Written::Spaced => json!({ "whitespace_flexible": true, "whitespace_pattern": SPACES }),
        Written::Leniently => json!({ "whitespace_flexible": false, "lenient": true, "coerce_one_of": true }),
    };
    object.insert(OPTIONS.to_owned(), options);
    Ok(Value::Object(object))
}
