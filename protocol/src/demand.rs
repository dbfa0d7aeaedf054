//! Demands on an answer that our own worker cannot meet yet, by the fields of requests that make them. An answer of 200
//! would break that promise. Such a field is refused by its name, and the refusal says which engine takes it.
//!
//! Fields are those of OpenAI's API, llama.cpp, vLLM and SGLang; the other dialects are translated into them first.

use std::fmt;

use serde_json::Value;

use crate::{ApiError, ErrorCode};

/// The way to meet a demand that our own worker does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// llama.cpp's server.
    LlamaServer,
    /// An engine with this name, started by a command line.
    Command(&'static str),
    /// Both kinds of engines.
    AnyEngine,
    /// A provider's model.
    Provider,
    /// Another way to say it.
    Instead(&'static str),
}

impl Remedy {
    /// Whether llama.cpp's server knows the field.
    pub const fn is_llama_server(self) -> bool {
        matches!(self, Self::LlamaServer | Self::AnyEngine)
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LlamaServer => {
                f.write_str("leave it out, or serve a GGUF model with backend = \"llama-server\" in its manifest")
            }
            Self::Command(name) => {
                write!(f, "leave it out, or serve the model by {name} with a [command] in its manifest")
            }
            Self::AnyEngine => f.write_str(
                "leave it out, or serve the model with backend = \"llama-server\" (GGUF files) or by vLLM with a \
                 [command] in its manifest",
            ),
            Self::Provider => f.write_str("leave it out, or ask a model of a provider"),
            Self::Instead(what) => f.write_str(what),
        }
    }
}

/// A field by which a request demands something of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Its name.
    pub field: &'static str,
    /// The act that it asks for, behind "cannot".
    pub act: &'static str,
    /// The way to meet it.
    pub remedy: Remedy,
}

const OWN: &str = "our own worker";
const FORM: &str = "force the form of an answer yet";
const TOKENS: &str = "restrict the tokens of an answer this way";

/// Every demand that our own worker does not meet.
pub const DEMANDS: [Demand; 24] = [
    demand("grammar", FORM, Remedy::LlamaServer),
    demand("json_schema", FORM, Remedy::LlamaServer),
    demand("guided_json", FORM, Remedy::Command("vLLM")),
    demand("guided_regex", FORM, Remedy::Command("vLLM")),
    demand("guided_choice", FORM, Remedy::Command("vLLM")),
    demand("guided_grammar", FORM, Remedy::Command("vLLM")),
    demand("guided_json_object", FORM, Remedy::Command("vLLM")),
    demand("structured_outputs", FORM, Remedy::Command("vLLM")),
    demand("structural_tag", FORM, Remedy::Command("vLLM")),
    demand("regex", FORM, Remedy::Command("SGLang")),
    demand("ebnf", FORM, Remedy::Command("SGLang")),
    demand("functions", "read 'functions'", Remedy::Instead("send them as 'tools'")),
    demand("function_call", "read 'function_call'", Remedy::Instead("send 'tools' and 'tool_choice'")),
    demand("allowed_token_ids", TOKENS, Remedy::Command("vLLM")),
    demand("bad_words", TOKENS, Remedy::Command("vLLM")),
    demand("min_tokens", TOKENS, Remedy::Command("vLLM")),
    demand("stop_token_ids", TOKENS, Remedy::Command("vLLM")),
    demand("use_beam_search", "search by beams", Remedy::Command("vLLM")),
    demand("prompt_logprobs", "tell 'prompt_logprobs'", Remedy::Command("vLLM")),
    demand("n_probs", "read 'n_probs'", Remedy::Instead("send 'logprobs'")),
    demand("lora", "add adapters to a request", Remedy::LlamaServer),
    demand("audio", "speak", Remedy::Provider),
    demand("modalities", "answer by anything but text", Remedy::Provider),
    demand("web_search_options", "search the web", Remedy::Provider),
];

const fn demand(field: &'static str, act: &'static str, remedy: Remedy) -> Demand {
    Demand { field, act, remedy }
}

impl Demand {
    /// The first of [`DEMANDS`] that a request makes. `text` gives the JSON text of a field of the request.
    pub fn first_in<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        DEMANDS.into_iter().find(|demand| text(demand.field).is_some_and(|text| demand.is_made_by(text)))
    }

    /// The refusal of something, in words, that cannot do it.
    pub fn refused_by(self, who: &str) -> ApiError {
        beyond(who, self.field, self.act, self.remedy)
    }

    /// Whether a value asks for anything: clients spell out what is usual.
    fn is_made_by(self, text: &str) -> bool {
        let usual: &[&str] = match self.field {
            "function_call" => &["\"none\"", "\"auto\""],
            "modalities" => &["[\"text\"]"],
            _ => &[],
        };
        let is = |words: &[&str]| {
            let plain: String = text.chars().filter(|c| !c.is_ascii_whitespace()).take(16).collect();
            words.contains(&plain.as_str())
        };
        // A schema of nothing allows everything, and is a wish for JSON all the same.
        let empty: &[&str] = if self.field == "json_schema" || self.field == "guided_json" {
            &["null", "\"\""]
        } else {
            &["null", "false", "0", "\"\"", "[]", "{}"]
        };
        !is(empty) && !is(usual)
    }
}

/// Whether our own worker can do all that a request demands. `text` gives the JSON text of a field of the request.
///
/// Errors: 400 that names the field, and what meets the demand.
pub fn refuse_unmet<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Result<(), ApiError> {
    if let Some(demand) = Demand::first_in(&text) {
        return Err(demand.refused_by(OWN));
    }
    let format = text("response_format").unwrap_or("null");
    let format: Value = serde_json::from_str(format).unwrap_or(Value::Null);
    match (wanted_form(&format), &format) {
        (Some(kind @ ("json_object" | "json_schema" | "structural_tag" | "grammar")), _) => {
            let act = format!("force answers of type '{kind}' yet");
            Err(beyond_worker("response_format", &act, Remedy::AnyEngine))
        }
        (None, Value::Null) => Ok(()),
        (None, format) if format["type"] == "text" => Ok(()),
        _ => Err(ApiError::invalid("response_format.type", "'response_format.type' must be 'text'")),
    }
}

/// The refusal of what our own worker cannot do with a request's field; `act` follows "cannot".
pub fn beyond_worker(param: &str, act: &str, remedy: Remedy) -> ApiError {
    beyond(OWN, param, act, remedy)
}

fn beyond(who: &str, param: &str, act: &str, remedy: Remedy) -> ApiError {
    let field = param.rsplit('.').next().unwrap_or(param);
    let named = if act.contains(field) { String::new() } else { format!(", which '{param}' asks for") };
    let message = format!("{who} cannot {act}{named}; {remedy}");
    ApiError::new(ErrorCode::UnsupportedByModel, message).with_param(param)
}

/// The form that a `response_format` asks for; `None` where it is text, or nothing.
pub fn wanted_form(format: &Value) -> Option<&str> {
    format.get("type").and_then(Value::as_str).filter(|kind| *kind != "text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(request: &Value) -> Option<&'static str> {
        let texts: Vec<(String, String)> =
            request.as_object().unwrap().iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
        let text = |name: &str| texts.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str());
        Demand::first_in(text).map(|demand| demand.field)
    }

    #[test]
    fn en_6_every_demand_is_found_and_its_refusal_names_the_field_and_what_to_do() {
        for demand in DEMANDS {
            let request = serde_json::json!({ "messages": [], demand.field: { "x": 1 } });
            assert_eq!(first(&request), Some(demand.field));
            let error = demand.refused_by("our own worker");
            assert_eq!((error.status(), error.param.as_deref()), (400, Some(demand.field)));
            assert!(error.message.contains(demand.field) && error.message.contains("; "), "{error}");
            let engine = match demand.remedy {
                Remedy::LlamaServer | Remedy::AnyEngine => "llama-server",
                Remedy::Command(name) => name,
                Remedy::Provider => "provider",
                Remedy::Instead(what) => what,
            };
            assert!(error.message.contains(engine), "{error}");
        }
    }

    #[test]
    fn en_6_what_clients_spell_out_and_mean_nothing_by_is_no_demand() {
        for request in [
            serde_json::json!({}),
            serde_json::json!({ "grammar": "", "guided_json": null, "functions": [], "structured_outputs": {} }),
            serde_json::json!({ "function_call": "none", "modalities": ["text"], "min_tokens": 0, "n_probs": 0 }),
            serde_json::json!({ "function_call": "auto", "use_beam_search": false, "lora": [], "json_schema": null }),
        ] {
            assert_eq!(first(&request), None, "{request}");
        }
        assert_eq!(first(&serde_json::json!({ "json_schema": {} })), Some("json_schema"), "it asks for JSON");
        assert_eq!(first(&serde_json::json!({ "modalities": ["text", "audio"] })), Some("modalities"));
    }
}
