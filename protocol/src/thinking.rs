//! Thinking: whether a model that can reason in text before its answer does so, and for how many tokens (RC-23). The
//! form here is that of manifests, tasks, requests and start lines; each engine's own form is the dialect's part.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use crate::ApiError;

/// Whether a model that can reason in text before its answer does so.
///
/// Files have `on`, `off` or a number of tokens. Requests may also have Anthropic's object, `{"type": "enabled",
/// "budget_tokens": 2048}` or `{"type": "disabled"}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// Thinking without a limit of tokens.
    On,
    /// No thinking: the model answers at once.
    Off,
    /// Thinking of at most this many tokens. At the limit it is ended and the model answers. 0 is [`Thinking::Off`].
    Budget(u32),
}

/// The variable of chat templates, under the two names in use: Qwen, GLM and SmolLM read the first, Granite and
/// DeepSeek the second.
pub const THINKING_SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Names that other servers give the number of tokens for thinking: llama.cpp's, under the name that its older builds
/// have too, vLLM's, and two more. A negative number is no limit. The first that is set counts, as `thinking` would,
/// unless that is set too.
pub const THINKING_BUDGETS: [&str; 4] =
    ["thinking_budget_tokens", "thinking_token_budget", "reasoning_budget_tokens", "reasoning_budget"];

/// A field about thinking with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadThinking {
    /// The field.
    pub field: String,
    /// The fault and the valid values, for people.
    pub message: String,
}

impl From<BadThinking> for ApiError {
    fn from(error: BadThinking) -> Self {
        Self::invalid(error.field, error.message)
    }
}

const FORMS: &str = "\"on\", \"off\", a number of tokens, or {\"type\": \"enabled\", \"budget_tokens\": N}";

impl Thinking {
    /// [`Self::in_fields`], with an error for clients.
    pub fn of_chat(
        thinking: Option<&Value>,
        template: Option<&Value>,
        effort: Option<&Value>,
        otherwise: Option<Self>,
    ) -> Result<Option<Self>, ApiError> {
        Ok(Self::in_fields(thinking, template, effort, otherwise)?)
    }

    /// The thinking that a chat's fields ask for. The first of these fields decides: `thinking`, the template's
    /// switch in `chat_template_kwargs`, OpenAI's `reasoning_effort`, then `otherwise`. A switch that is on sets no
    /// limit: an existing budget stays.
    ///
    /// Errors: a field with an invalid value, by name.
    pub fn in_fields(
        thinking: Option<&Value>,
        template: Option<&Value>,
        effort: Option<&Value>,
        otherwise: Option<Self>,
    ) -> Result<Option<Self>, BadThinking> {
        if let Some(value) = thinking.filter(|value| !value.is_null()) {
            return Self::of_field("thinking", value).map(Some);
        }
        let effort = effort.filter(|value| !value.is_null()).map(Self::of_effort).transpose()?;
        let switch = THINKING_SWITCHES.iter().find_map(|name| template?.get(name)?.as_bool());
        let said = effort.or(otherwise);
        Ok(match switch {
            Some(false) => Some(Self::Off),
            Some(true) => Some(said.filter(|said| said.is_on()).unwrap_or(Self::On)),
            None => said,
        })
    }

    /// Reads the field `name` of a request.
    pub fn of_field(name: &str, value: &Value) -> Result<Self, BadThinking> {
        Self::deserialize(value).map_err(|error| BadThinking {
            field: name.to_owned(),
            message: format!("'{name}' must be {FORMS}: {error}"),
        })
    }

    /// OpenAI's `reasoning_effort` as a number of tokens, the same for every engine.
    fn of_effort(value: &Value) -> Result<Self, BadThinking> {
        match value.as_str() {
            Some("none" | "minimal") => Ok(Self::Off),
            Some("low") => Ok(Self::Budget(2_048)),
            Some("medium") => Ok(Self::Budget(8_192)),
            Some("high" | "xhigh" | "max") => Ok(Self::Budget(24_576)),
            _ => {
                let message = format!("'reasoning_effort' cannot be {value}; none, low, medium or high");
                Err(BadThinking { field: "reasoning_effort".to_owned(), message })
            }
        }
    }

    /// Whether the model thinks at all.
    pub const fn is_on(self) -> bool {
        !matches!(self, Self::Off | Self::Budget(0))
    }

    /// The limit of tokens for thinking; `None` is no limit.
    pub const fn budget(self) -> Option<u32> {
        match self {
            Self::On => None,
            Self::Off => Some(0),
            Self::Budget(tokens) => Some(tokens),
        }
    }

    /// The value of a request's field `thinking`, in the form that most engines know.
    pub fn to_field(self) -> Value {
        match self {
            Self::Budget(tokens @ 1..) => json!({ "type": "enabled", "budget_tokens": tokens }),
            Self::On => json!({ "type": "enabled" }),
            Self::Off | Self::Budget(0) => json!({ "type": "disabled" }),
        }
    }
}

impl fmt::Display for Thinking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Off => f.write_str("off"),
            Self::Budget(tokens) => write!(f, "{tokens}"),
        }
    }
}

impl std::str::FromStr for Thinking {
    type Err = String;

    /// Reads the form of headers and command lines.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            digits => {
                digits.parse().map(Self::Budget).map_err(|_| format!("'{digits}' is not on, off or a number of tokens"))
            }
        }
    }
}

impl Serialize for Thinking {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::On => serializer.serialize_str("on"),
            Self::Off => serializer.serialize_str("off"),
            Self::Budget(tokens) => serializer.serialize_u32(*tokens),
        }
    }
}

impl<'de> Deserialize<'de> for Thinking {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ThinkingForms)
    }
}

struct ThinkingForms;

impl<'de> Visitor<'de> for ThinkingForms {
    type Value = Thinking;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("on, off or a number of tokens")
    }

    fn visit_bool<E>(self, on: bool) -> Result<Thinking, E> {
        Ok(if on { Thinking::On } else { Thinking::Off })
    }

    fn visit_u64<E: serde::de::Error>(self, tokens: u64) -> Result<Thinking, E> {
        let too_many = |_| E::custom(format!("{tokens} tokens are more than any model thinks"));
        u32::try_from(tokens).map(Thinking::Budget).map_err(too_many)
    }

    fn visit_i64<E: serde::de::Error>(self, tokens: i64) -> Result<Thinking, E> {
        let negative = |_| E::custom(format!("{tokens} tokens: a budget is 0 or more"));
        u64::try_from(tokens).map_err(negative).and_then(|tokens| self.visit_u64(tokens))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Thinking, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Thinking, A::Error> {
        use serde::de::Error;

        let (mut kind, mut tokens) = (None::<String>, None::<u32>);
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "type" => kind = Some(map.next_value()?),
                "budget_tokens" => tokens = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (kind.as_deref(), tokens) {
            (Some("disabled"), _) => Ok(Thinking::Off),
            (Some("enabled" | "adaptive"), tokens) => Ok(tokens.map_or(Thinking::On, Thinking::Budget)),
            (Some(other), _) => Err(A::Error::custom(format!("'type' is '{other}', not enabled or disabled"))),
            (None, _) => Err(A::Error::missing_field("type")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> Result<Thinking, BadThinking> {
        Thinking::of_field("thinking", value)
    }

    #[test]
    fn rc_23_it_is_on_off_or_a_number_of_tokens_and_requests_may_say_it_as_anthropic_does() {
        for (value, wanted) in [
            (json!("on"), Thinking::On),
            (json!("off"), Thinking::Off),
            (json!(true), Thinking::On),
            (json!(2_048), Thinking::Budget(2_048)),
            (json!("2048"), Thinking::Budget(2_048)),
            (json!({ "type": "enabled", "budget_tokens": 1_024 }), Thinking::Budget(1_024)),
            (json!({ "budget_tokens": 9, "type": "enabled", "display": "omitted" }), Thinking::Budget(9)),
            (json!({ "type": "enabled" }), Thinking::On),
            (json!({ "type": "disabled" }), Thinking::Off),
        ] {
            assert_eq!(read(&value).unwrap(), wanted, "{value}");
            assert_eq!(read(&wanted.to_field()).unwrap(), wanted, "{value}");
            assert_eq!(read(&serde_json::to_value(wanted).unwrap()).unwrap(), wanted, "{value}");
        }
        assert_eq!(read(&Thinking::Budget(0).to_field()).unwrap(), Thinking::Off);
        for (value, word) in [
            (json!("perhaps"), "'perhaps'"),
            (json!(-1), "-1"),
            (json!(1e12), "1000000000000"),
            (json!({ "budget_tokens": 5 }), "`type`"),
            (json!({ "type": "maybe" }), "'maybe'"),
            (json!([1]), "sequence"),
        ] {
            let error = read(&value).unwrap_err();
            assert!(error.message.contains(word) && error.field == "thinking", "{value}: {error:?}");
        }
    }

    #[test]
    fn rc_23_the_request_goes_before_the_manifest_and_a_switch_keeps_a_budget() {
        let (off, on, budget) = (Some(Thinking::Off), Some(Thinking::On), Some(Thinking::Budget(7)));
        let switch = |on: bool| json!({ "enable_thinking": on });
        for (thinking, template, effort, otherwise, wanted) in [
            (None, None, None, None, None),
            (None, None, None, budget, budget),
            (Some(json!(7)), Some(switch(false)), Some(json!("high")), off, budget),
            (Some(Value::Null), None, Some(json!("low")), off, Some(Thinking::Budget(2_048))),
            (None, Some(switch(true)), None, budget, budget),
            (None, Some(switch(true)), None, off, on),
            (None, Some(json!({ "thinking": false })), Some(json!("high")), on, off),
            (None, Some(json!({ "other": false })), Some(json!("none")), on, off),
        ] {
            let said = Thinking::of_chat(thinking.as_ref(), template.as_ref(), effort.as_ref(), otherwise).unwrap();
            assert_eq!(said, wanted, "{thinking:?} {template:?} {effort:?} {otherwise:?}");
        }
        let error = Thinking::of_chat(None, None, Some(&json!("a lot")), None).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("reasoning_effort"));
    }
}
