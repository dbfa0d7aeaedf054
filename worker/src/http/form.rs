//! The form that a request demands of its answer. Every spelling in use becomes one grammar.
//!
//! The fields are those of OpenAI's API, llama.cpp, vLLM, SGLang, TabbyAPI and text-generation-webui.

use std::sync::Arc;

use model_boss_engine::constraint::{CompiledGrammar, Grammar};
use model_boss_engine::tools::lenient_form;
use model_boss_protocol::{ApiError, DEMANDS, Remedy, beyond_worker};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::{ErrorAnswer, text_error};
use super::fields::RequestFields;
use crate::state::Serving;
use crate::text::TextFailure;

/// A demanded form, and the field that demands it.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) grammar: Grammar,
    pub(super) field: String,
}

const RESPONSE_FORMAT: &str = "response_format";

/// The form that a request demands, if it does.
pub(super) fn form(fields: &RequestFields<'_>) -> Result<Option<Form>, ApiError> {
    let mut found = response_format(fields)?;
    for demand in DEMANDS.into_iter().filter(|demand| demand.is_form && demand.is_in(|name| fields.text(name))) {
        let form = of_field(fields, demand.field)?;
        if let Some(first) = &found {
            let (first, second) = (&first.field, demand.field);
            let message = format!("'{first}' and '{second}' both demand a form of the answer; send one of them");
            return Err(ApiError::invalid(second, message));
        }
        found = Some(form);
    }
    Ok(found)
}

/// Compiles the form of an answer, which may have begun already.
pub(super) async fn compiled(
    serving: &Serving,
    form: Option<Form>,
    begun: Option<String>,
) -> Result<Option<CompiledGrammar>, ErrorAnswer> {
    let Some(Form { grammar, field }) = form else { return Ok(None) };
    let compile = async |grammar: Grammar| {
        serving.forms.compile(&serving.text, grammar).await.map_err(|failure| form_error(failure, &field, serving))
    };
    let compiled = compile(grammar.clone()).await?;
    let Some(begun) = begun.map(Arc::<str>::from) else { return Ok(Some(compiled)) };
    if let Some(behind) = behind(compiled, Arc::clone(&begun)).await {
        return Ok(Some(behind));
    }
    // People write JSON with white space.
    match behind(compile(grammar.begun()).await?, begun).await {
        Some(behind) => Ok(Some(behind)),
        None => {
            let message = format!("the last message begins an answer that does not have the form of '{field}'");
            Err(ApiError::invalid("messages", message).into())
        }
    }
}

async fn behind(grammar: CompiledGrammar, begun: Arc<str>) -> Option<CompiledGrammar> {
    // A panic on a blocking thread has already been reported on stderr.
    tokio::task::spawn_blocking(move || grammar.behind(&begun)).await.unwrap_or(None)
}

/// The client's error for a form that cannot be held to.
fn form_error(failure: TextFailure, field: &str, serving: &Serving) -> ApiError {
    match failure {
        TextFailure::Refused(why) | TextFailure::Limit(why) => {
            ApiError::invalid(field, format!("'{field}' cannot be used: {why}"))
        }
        other => text_error(other, field, serving.info.context_length),
    }
}

fn of_field(fields: &RequestFields<'_>, field: &'static str) -> Result<Form, ApiError> {
    if field == "structured_outputs" {
        return structured_outputs(fields.require(field)?);
    }
    let grammar = match field {
        "grammar" | "guided_grammar" | "grammar_string" | "ebnf" => Grammar::in_either_notation(fields.require(field)?),
        "regex" | "guided_regex" | "regex_pattern" => Grammar::Regex(fields.require(field)?),
        "guided_choice" => Grammar::Choice(fields.require(field)?),
        "guided_json_object" => {
            fields.require::<bool>(field)?;
            Grammar::json_object()
        }
        _ => schema(field, fields.require(field)?)?,
    };
    Ok(Form { grammar, field: field.to_owned() })
}

/// A schema, or a text with one, as vLLM takes it.
fn schema(field: &str, schema: Value) -> Result<Grammar, ApiError> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Grammar::JsonSchema(schema.to_string())),
        Value::String(text) => Ok(Grammar::JsonSchema(text)),
        _ => Err(ApiError::invalid(field, format!("'{field}' must be a JSON schema: an object"))),
    }
}

#[derive(Deserialize)]
struct FormatFields {
    r#type: Option<String>,
    json_schema: Option<Value>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

fn response_format(fields: &RequestFields<'_>) -> Result<Option<Form>, ApiError> {
    let Some(value) = fields.get::<Value>(RESPONSE_FORMAT)? else { return Ok(None) };
    if !value.is_object() {
        let message = "'response_format' must be an object with a 'type', such as {\"type\": \"text\"}";
        return Err(ApiError::invalid(RESPONSE_FORMAT, message));
    }
    let format: FormatFields = fields.require(RESPONSE_FORMAT)?;
    let place = |name: &str| format!("{RESPONSE_FORMAT}.{name}");
    let Some(kind) = &format.r#type else {
        return Err(ApiError::invalid(place("type"), "'response_format.type' is missing, or no text"));
    };
    let others = &format.others;
    let text = |names: &[&str]| {
        let found = names.iter().find_map(|name| others.get(*name)?.as_str());
        let field = place(names.first().unwrap_or(&""));
        found.map(str::to_owned).ok_or_else(|| ApiError::invalid(&field, format!("'{field}' is missing, or no text")))
    };
    let (field, grammar) = match kind.as_str() {
        "text" => return Ok(None),
        // llama-server takes a schema beside this type.
        "json_object" => match others.get("schema").filter(|schema| !schema.is_null()) {
            Some(given) => (place("schema"), schema(&place("schema"), given.clone())?),
            None => (RESPONSE_FORMAT.to_owned(), Grammar::json_object()),
        },
        "json_schema" => {
            let inside = format.json_schema.as_ref().and_then(|named| named.get("schema"));
            let (field, given) = match (inside, others.get("schema")) {
                (Some(given), _) => (place("json_schema.schema"), given),
                (None, Some(given)) => (place("schema"), given),
                (None, None) => {
                    let field = place("json_schema.schema");
                    return Err(ApiError::invalid(&field, format!("'{field}' is missing")));
                }
            };
            // Without a word on it the schema is strict: a keyword that cannot be held to is an error.
            let strict = format.json_schema.as_ref().and_then(|named| named.get("strict"));
            let grammar = match given {
                Value::Object(given) if strict == Some(&Value::Bool(false)) => lenient_form(given.clone()),
                given => schema(&field, given.clone())?,
            };
            (field, grammar)
        }
        "regex" => (RESPONSE_FORMAT.to_owned(), Grammar::Regex(text(&["regex", "pattern", "value"])?)),
        "grammar" => {
            (RESPONSE_FORMAT.to_owned(), Grammar::in_either_notation(text(&["grammar", "value", "definition"])?))
        }
        kind => {
            let act = format!("force answers of type '{kind}'");
            return Err(beyond_worker(RESPONSE_FORMAT, &act, Remedy::AnyEngine));
        }
    };
    Ok(Some(Form { grammar, field }))
}

/// The one form inside vLLM's object.
fn structured_outputs(given: Map<String, Value>) -> Result<Form, ApiError> {
    const FIELD: &str = "structured_outputs";
    // The others are settings of vLLM's own libraries.
    const FORMS: [&str; 6] = ["json", "regex", "choice", "grammar", "json_object", "structural_tag"];
    let is_given = |value: &Value| !value.is_null() && *value != Value::Bool(false);
    let mut forms = FORMS.into_iter().filter_map(|name| Some((name, given.get(name).filter(|value| is_given(value))?)));
    let (Some((name, value)), None) = (forms.next(), forms.next()) else {
        let message = format!("'{FIELD}' must have one of json, regex, choice, grammar and json_object");
        return Err(ApiError::invalid(FIELD, message));
    };
    let field = format!("{FIELD}.{name}");
    let read = |what: &str| ApiError::invalid(&field, format!("'{field}' must be {what}"));
    let text = || value.as_str().map(str::to_owned).ok_or_else(|| read("a text"));
    let grammar = match name {
        "json" => schema(&field, value.clone())?,
        "regex" => Grammar::Regex(text()?),
        "grammar" => Grammar::in_either_notation(text()?),
        "json_object" => Grammar::json_object(),
        "choice" => Grammar::Choice(serde_json::from_value(value.clone()).map_err(|_| read("a list of texts"))?),
        _ => return Err(beyond_worker(&field, "force the form of an answer by tags", Remedy::Command("vLLM"))),
    };
    Ok(Form { grammar, field })
}
