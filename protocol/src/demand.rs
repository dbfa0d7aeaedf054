//! Demands of requests that not every engine meets, by their fields. An answer of 200 that ignores one would be wrong.
//! Such a field is refused by its name, and the refusal names an engine that supports it.
//!
//! The fields are those of OpenAI's API, llama.cpp, vLLM and SGLang; other dialects are translated into them first.

use std::fmt;

use serde_json::Value;

use crate::{ApiError, ErrorCode};

/// The engine or change by which a demand can be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// llama.cpp's server.
    LlamaServer,
    /// An external engine with this name, started by a command line.
    Command(&'static str),
    /// Any external engine can meet the demand.
    AnyEngine,
    /// A model of a cloud provider.
    Provider,
    /// Another form of the demand can be met.
    Instead(&'static str),
}

impl Remedy {
    /// Whether llama.cpp's server supports the field.
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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The field's name.
    pub field: &'static str,
    /// The demanded act, as it follows "cannot".
    pub act: &'static str,
    /// The engine or change by which the demand can be met.
    pub remedy: Remedy,
    /// Fields that give details of the demand. They demand nothing by themselves.
    pub details: &'static [&'static str],
    /// Whether the candle worker meets it.
    pub is_met_here: bool,
    /// Whether it demands a form of the answer.
    pub is_form: bool,
    usual: Usual,
}

/// The values of a field that demand nothing, besides the empty ones. Many clients send all fields with such values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Usual {
    Empty,
    Texts(&'static [&'static str]),
    AtLeast(f64),
    AtMost(f64),
}

const OWN: &str = "our own worker";
const FORM: &str = "force the form of an answer yet";
const TOKENS: &str = "restrict the tokens of an answer this way";

const AS_GRAMMAR: &str = "send 'grammar' to a GGUF model with backend = \"llama-server\" in its manifest, or 'guided_regex' to \
                          one that vLLM serves by a [command]";
const CHOOSE: &str = "choose tokens this way";

/// Every demand that some engine does not meet.
pub const DEMANDS: [Demand; 35] = [
    form("grammar", Remedy::LlamaServer),
    form("json_schema", Remedy::LlamaServer),
    form("guided_json", Remedy::Command("vLLM")),
    form("guided_regex", Remedy::Command("vLLM")),
    form("guided_choice", Remedy::Command("vLLM")),
    form("guided_grammar", Remedy::Command("vLLM")),
    form("guided_json_object", Remedy::Command("vLLM")),
    form("structured_outputs", Remedy::Command("vLLM")),
    demand("structural_tag", FORM, Remedy::Command("vLLM")),
    // Fields of TensorRT-LLM, text-generation-webui and TabbyAPI.
    demand("guided_decoding", FORM, Remedy::Instead(AS_GRAMMAR)),
    form("grammar_string", Remedy::Instead(AS_GRAMMAR)),
    form("regex_pattern", Remedy::Instead(AS_GRAMMAR)),
    form("regex", Remedy::Command("SGLang")),
    form("ebnf", Remedy::Command("SGLang")),
    demand("functions", "read 'functions'", Remedy::Instead("send them as 'tools'")),
    Demand {
        usual: Usual::Texts(&["\"none\"", "\"auto\""]),
        ..demand("function_call", "read 'function_call'", Remedy::Instead("send 'tools' and 'tool_choice'"))
    },
    demand("allowed_token_ids", TOKENS, Remedy::Command("vLLM")),
    demand("bad_words", TOKENS, Remedy::Command("vLLM")),
    demand("min_tokens", TOKENS, Remedy::Command("vLLM")),
    demand("stop_token_ids", TOKENS, Remedy::Command("vLLM")),
    demand("use_beam_search", "search by beams", Remedy::Command("vLLM")),
    demand("prompt_logprobs", "tell 'prompt_logprobs'", Remedy::Command("vLLM")),
    demand("lora", "add adapters to a request", Remedy::LlamaServer),
    demand("audio", "speak", Remedy::Provider),
    Demand {
        usual: Usual::Texts(&["[\"text\"]"]),
        ..demand("modalities", "answer by anything but text", Remedy::Provider)
    },
    Demand { is_met_here: true, ..demand("suffix", "fill a gap in a text", Remedy::Provider) },
    demand("web_search_options", "search the web", Remedy::Provider),
    // llama.cpp's samplers. The values that turn them off are from its server's README.
    sampler("mirostat", Usual::Empty, &["mirostat_tau", "mirostat_eta"]),
    met(sampler(
        "dry_multiplier",
        Usual::AtMost(0.0),
        &["dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"],
    )),
    met(sampler("xtc_probability", Usual::AtMost(0.0), &["xtc_threshold"])),
    met(sampler("typical_p", Usual::AtLeast(1.0), &[])),
    met(sampler("top_n_sigma", Usual::AtMost(0.0), &[])),
    sampler("dynatemp_range", Usual::AtMost(0.0), &["dynatemp_exponent"]),
    sampler("adaptive_target", Usual::AtMost(0.0), &["adaptive_decay"]),
    Demand {
        usual: Usual::AtLeast(1.0),
        ..demand("tfs_z", CHOOSE, Remedy::Instead("send 'min_p', which took its place in llama.cpp"))
    },
];

const fn demand(field: &'static str, act: &'static str, remedy: Remedy) -> Demand {
    Demand { field, act, remedy, details: &[], is_met_here: false, is_form: false, usual: Usual::Empty }
}

/// A form of the answer, which the candle worker holds to.
const fn form(field: &'static str, remedy: Remedy) -> Demand {
    Demand { is_met_here: true, is_form: true, ..demand(field, FORM, remedy) }
}

/// The same demand, which the candle worker meets.
const fn met(demand: Demand) -> Demand {
    Demand { is_met_here: true, ..demand }
}

const fn sampler(field: &'static str, usual: Usual, details: &'static [&'static str]) -> Demand {
    Demand { usual, details, ..demand(field, CHOOSE, Remedy::LlamaServer) }
}

impl Demand {
    /// The first of [`DEMANDS`] that a request makes. `text` gives the JSON text of a field of the request.
    pub fn first_in<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        DEMANDS.into_iter().find(|demand| demand.is_in(&text))
    }

    /// Whether a request makes this demand.
    pub fn is_in<'a>(self, text: impl Fn(&str) -> Option<&'a str>) -> bool {
        text(self.field).is_some_and(|text| self.is_made_by(text))
    }

    /// The refusal of this demand by the engine `who`, in words.
    pub fn refused_by(self, who: &str) -> UnmetDemand {
        UnmetDemand::of(who, self.field, self.act, self.remedy)
    }

    /// The names of the demand's field and of its details.
    pub fn fields(self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.field).chain(self.details.iter().copied())
    }

    /// Whether a value demands anything.
    fn is_made_by(self, text: &str) -> bool {
        let is = |words: &[&str]| {
            let plain: String = text.chars().filter(|c| !c.is_ascii_whitespace()).take(16).collect();
            words.contains(&plain.as_str())
        };
        // An empty schema permits every value, and still demands JSON.
        let empty: &[&str] = if self.field == "json_schema" || self.field == "guided_json" {
            &["null", "\"\""]
        } else {
            &["null", "false", "\"\"", "[]", "{}"]
        };
        let number = text.trim().parse::<f64>().ok();
        let is_usual = match self.usual {
            Usual::Empty => false,
            Usual::Texts(texts) => is(texts),
            Usual::AtLeast(least) => number.is_some_and(|number| number >= least),
            Usual::AtMost(most) => number.is_some_and(|number| number <= most),
        };
        !is(empty) && number != Some(0.0) && !is_usual
    }
}

/// Checks that the candle worker can meet all demands of a request but for the form of the answer, which it reads by
/// itself. `text` gives the JSON text of a field of the request.
///
/// Errors: 400 that names the field, and the engine that supports it.
pub fn refuse_unmet<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Result<(), ApiError> {
    match DEMANDS.into_iter().find(|demand| !demand.is_met_here && demand.is_in(&text)) {
        Some(demand) => Err(demand.refused_by(OWN).into()),
        None => Ok(()),
    }
}

/// Checks that a worker which holds to no form can meet all demands of a request.
///
/// Errors: 400 that names the field, and the engine that supports it.
pub fn refuse_demands<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Result<(), ApiError> {
    if let Some(demand) = Demand::first_in(&text) {
        return Err(demand.refused_by(OWN).into());
    }
    let format = text("response_format").unwrap_or("null");
    match serde_json::from_str(format).unwrap_or(Value::Null) {
        Value::Null => Ok(()),
        Value::Object(format) => match format.get("type").and_then(Value::as_str) {
            Some("text") => Ok(()),
            Some(kind) => {
                let act = format!("force answers of type '{kind}' yet");
                Err(beyond_worker("response_format", &act, Remedy::AnyEngine))
            }
            None => Err(ApiError::invalid("response_format.type", "'response_format.type' is missing, or no text")),
        },
        _ => {
            let message = "'response_format' must be an object with a 'type', such as {\"type\": \"text\"}";
            Err(ApiError::invalid("response_format", message))
        }
    }
}

/// The refusal of a request's field that the candle worker does not support; `act` follows "cannot".
pub fn beyond_worker(param: &str, act: &str, remedy: Remedy) -> ApiError {
    UnmetDemand::of(OWN, param, act, remedy).into()
}

/// A demand that an engine does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmetDemand {
    /// The field that makes the demand.
    pub field: String,
    /// The demand and its remedy, for people.
    pub message: String,
}

impl UnmetDemand {
    /// The refusal of a request's field that the engine `who` does not support; `act` follows "cannot".
    pub fn of(who: &str, param: &str, act: &str, remedy: Remedy) -> Self {
        let field = param.rsplit('.').next().unwrap_or(param);
        let named = if act.contains(field) { String::new() } else { format!(", which '{param}' asks for") };
        Self { field: param.to_owned(), message: format!("{who} cannot {act}{named}; {remedy}") }
    }
}

impl From<UnmetDemand> for ApiError {
    fn from(demand: UnmetDemand) -> Self {
        Self::new(ErrorCode::UnsupportedByModel, demand.message).with_param(demand.field)
    }
}

/// The form that a `response_format` demands; `None` where it is text or absent.
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
            let error = ApiError::from(demand.refused_by("our own worker"));
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
    fn en_6_a_form_of_any_kind_is_refused_by_name_with_an_engine_and_what_is_no_form_is_named() {
        let refused = |format: &str| refuse_demands(|name| (name == "response_format").then_some(format)).err();
        for kind in ["json_object", "json_schema", "regex", "json", "grammar", "structural_tag", "ebnf"] {
            let error = refused(&format!("{{\"type\":\"{kind}\"}}")).unwrap();
            assert_eq!((error.code, error.param.as_deref()), (ErrorCode::UnsupportedByModel, Some("response_format")));
            assert!(error.message.contains(kind) && error.message.contains("llama-server"), "{error}");
        }
        for (format, param) in [
            ("\"json\"", "response_format"),
            ("[]", "response_format"),
            ("true", "response_format"),
            ("{}", "response_format.type"),
            ("{\"type\":7}", "response_format.type"),
        ] {
            let error = refused(format).unwrap();
            assert_eq!((error.code, error.param.as_deref()), (ErrorCode::InvalidRequest, Some(param)), "{format}");
        }
        for format in ["null", "{\"type\":\"text\"}"] {
            assert_eq!(refused(format), None, "{format}");
        }
    }

    #[test]
    fn en_6_what_clients_spell_out_and_mean_nothing_by_is_no_demand() {
        for request in [
            serde_json::json!({}),
            serde_json::json!({ "grammar": "", "guided_json": null, "functions": [], "structured_outputs": {} }),
            serde_json::json!({ "function_call": "none", "modalities": ["text"], "min_tokens": 0 }),
            serde_json::json!({ "function_call": "auto", "use_beam_search": false, "lora": [], "json_schema": null }),
        ] {
            assert_eq!(first(&request), None, "{request}");
        }
        assert_eq!(first(&serde_json::json!({ "json_schema": {} })), Some("json_schema"), "it asks for JSON");
        assert_eq!(first(&serde_json::json!({ "modalities": ["text", "audio"] })), Some("modalities"));
    }

    #[test]
    fn en_6_samplers_that_are_off_demand_nothing_and_those_that_are_on_are_named() {
        // The values that clients of Ollama and llama.cpp send by default.
        let off = serde_json::json!({
            "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "tfs_z": 1.0, "typical_p": 1.0, "top_n_sigma": -1,
            "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
            "dry_sequence_breakers": ["\n", ":"], "xtc_probability": 0, "xtc_threshold": 0.1, "dynatemp_range": 0.0,
            "dynatemp_exponent": 1.0, "adaptive_target": -1.0, "adaptive_decay": 0.9,
        });
        assert_eq!(first(&off), None);
        for (field, value) in [
            ("mirostat", "2"),
            ("tfs_z", "0.5"),
            ("typical_p", "0.7"),
            ("typical_p", "9.5e-1"),
            ("top_n_sigma", "1.5"),
            ("dry_multiplier", "0.8"),
            ("xtc_probability", "0.5"),
            ("dynatemp_range", "0.1"),
            ("adaptive_target", "0.3"),
        ] {
            let mut on = off.clone();
            on[field] = serde_json::from_str(value).unwrap();
            assert_eq!(first(&on), Some(field), "{value}");
        }
        for (field, value) in [("typical_p", "1"), ("typical_p", " 1.00 "), ("mirostat", "0.0"), ("min_tokens", "0.0")]
        {
            assert_eq!(Demand::first_in(|name| (name == field).then_some(value)), None, "{field}: {value}");
        }
    }
}
