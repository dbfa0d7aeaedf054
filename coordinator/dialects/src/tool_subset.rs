//! `allowed_tools`, OpenAI's choice among some of the tools that a request offers. The candle worker reads it itself,
//! and its prompt keeps all tools, as the prefix cache has them. Other engines and providers get the allowed tools
//! alone: most do not know this choice, and some ignore it.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use crate::error::DialectError;
use crate::fields::{Fields, malformed, raw};

const CHOICE: &str = "tool_choice";
const TOOLS: &str = "tools";

/// The tools that a choice allows.
struct ToolSubset {
    /// The choice among them, `auto` or `required`.
    mode: String,
    names: BTreeSet<String>,
}

impl ToolSubset {
    /// The allowed tools of a choice; `None`: it is a choice of another kind.
    fn of(choice: &Value) -> Result<Option<Self>, DialectError> {
        if choice["type"] != "allowed_tools" {
            return Ok(None);
        }
        let wrong = || {
            let message = format!(
                "'{CHOICE}' of type 'allowed_tools' must have 'allowed_tools' with a 'mode', auto or required, and with \
                 'tools', each a function with its name"
            );
            DialectError::invalid(CHOICE, message)
        };
        let allowed = &choice["allowed_tools"];
        let mode = allowed["mode"].as_str().filter(|mode| ["auto", "required"].contains(mode)).ok_or_else(wrong)?;
        let listed = allowed["tools"].as_array().ok_or_else(wrong)?;
        let names = listed.iter().map(|tool| tool["function"]["name"].as_str().map(str::to_owned));
        let names = names.collect::<Option<BTreeSet<_>>>().ok_or_else(wrong)?;
        if names.is_empty() && mode == "required" {
            return Err(DialectError::invalid(CHOICE, format!("'{CHOICE}' demands a call, and allows no tool")));
        }
        Ok(Some(Self { mode: mode.to_owned(), names }))
    }

    /// The allowed ones of the tools that a request offers.
    fn among<T>(&self, tools: Vec<T>, name: impl Fn(&T) -> String) -> Result<Vec<T>, DialectError> {
        let offered: BTreeSet<String> = tools.iter().map(&name).collect();
        if let Some(unknown) = self.names.difference(&offered).next() {
            let message = format!("'{CHOICE}' names the tool '{unknown}', which is not among '{TOOLS}'");
            return Err(DialectError::invalid(CHOICE, message));
        }
        Ok(tools.into_iter().filter(|tool| self.names.contains(&name(tool))).collect())
    }
}

/// Leaves out of a chat the tools that its choice does not allow.
pub fn only_allowed_tools(chat: &mut Map<String, Value>) -> Result<(), DialectError> {
    let Some(subset) = chat.get(CHOICE).map(ToolSubset::of).transpose()?.flatten() else { return Ok(()) };
    let tools = match chat.remove(TOOLS) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(no_list()),
    };
    let name = |tool: &Value| tool["function"]["name"].as_str().unwrap_or_default().to_owned();
    let allowed = subset.among(tools, name)?;
    chat.remove(CHOICE);
    if !allowed.is_empty() {
        chat.insert(TOOLS.to_owned(), Value::Array(allowed));
        chat.insert(CHOICE.to_owned(), json!(subset.mode));
    }
    Ok(())
}

/// [`only_allowed_tools`] for a chat whose fields keep their bytes.
pub(crate) fn only_allowed_in(fields: &mut Fields) -> Result<(), DialectError> {
    let choice = fields.get(CHOICE).map_or("null", |choice| choice.get());
    let choice: Value = serde_json::from_str(choice).map_err(malformed)?;
    let Some(subset) = ToolSubset::of(&choice)? else { return Ok(()) };
    let given = fields.remove(TOOLS);
    let tools = given.as_deref().map_or("null", RawValue::get);
    let tools: Option<Vec<&RawValue>> = serde_json::from_str(tools).map_err(|_| no_list())?;
    let allowed = subset.among(tools.unwrap_or_default(), |tool| name_of(tool))?;
    fields.remove(CHOICE);
    if !allowed.is_empty() {
        fields.insert(TOOLS.to_owned(), to_raw_value(&allowed).map_err(malformed)?);
        fields.insert(CHOICE.to_owned(), raw(&json!(subset.mode))?);
    }
    Ok(())
}

/// The name of a tool, read without the rest of it; empty if it has none.
fn name_of(tool: &RawValue) -> String {
    #[derive(Deserialize)]
    struct OfferedTool {
        function: OfferedFunction,
    }
    #[derive(Deserialize)]
    struct OfferedFunction {
        name: String,
    }
    serde_json::from_str::<OfferedTool>(tool.get()).map(|tool| tool.function.name).unwrap_or_default()
}

fn no_list() -> DialectError {
    DialectError::invalid(TOOLS, format!("'{TOOLS}' must be a list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest of a chat, which both functions leave alike.
    fn narrowed(tools: &str, choice: &Value) -> Result<(Option<String>, Option<Value>), DialectError> {
        let mut fields: Fields =
            serde_json::from_str(&format!(r#"{{"tools":{tools},"tool_choice":{choice}}}"#)).unwrap();
        let mut chat: Map<String, Value> = serde_json::from_value(json!(fields)).unwrap();
        let (whole, kept) = (only_allowed_tools(&mut chat), only_allowed_in(&mut fields));
        assert_eq!(whole, kept);
        kept?;
        assert_eq!(serde_json::to_value(&fields).unwrap(), Value::Object(chat.clone()));
        Ok((fields.get(TOOLS).map(|tools| tools.get().to_owned()), chat.remove(CHOICE)))
    }

    const GIVEN: &str = r#"[{"type":"function","function":{"name":"a","parameters":{"z":1.10,"b":2}}},
        {"type":"function","function":{"parameters":{"z":1.10,"b":2}, "name":"b"}}]"#;

    fn choice(mode: &str, names: &[&str]) -> Value {
        let tools: Vec<Value> =
            names.iter().map(|name| json!({ "type": "function", "function": { "name": name } })).collect();
        json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } })
    }

    #[test]
    fn en_7_tools_that_are_not_allowed_are_left_out_and_the_others_keep_their_bytes() {
        let (tools, mode) = narrowed(GIVEN, &choice("required", &["b"])).unwrap();
        let only = r#"[{"type":"function","function":{"parameters":{"z":1.10,"b":2}, "name":"b"}}]"#;
        assert_eq!((tools.as_deref(), mode), (Some(only), Some(json!("required"))));
        let (tools, mode) = narrowed(GIVEN, &choice("auto", &["b", "a"])).unwrap();
        assert!(tools.is_some_and(|tools| tools.starts_with(r#"[{"type":"function","function":{"name":"a""#)));
        assert_eq!(mode, Some(json!("auto")));
        assert_eq!(narrowed(GIVEN, &choice("auto", &[])).unwrap(), (None, None));
        assert_eq!(narrowed("null", &choice("auto", &[])).unwrap(), (None, None));
        for other in [json!("auto"), json!(null), json!({ "type": "function", "function": { "name": "a" } })] {
            let (tools, kept) = narrowed(GIVEN, &other).unwrap();
            assert_eq!((tools.as_deref(), kept), (Some(GIVEN), Some(other)));
        }
    }

    #[test]
    fn en_6_a_choice_that_no_engine_could_follow_is_refused_by_name() {
        for (tools, choice, field) in [
            (GIVEN, choice("auto", &["c"]), CHOICE),
            ("[]", choice("auto", &["a"]), CHOICE),
            ("[7]", choice("auto", &["a"]), CHOICE),
            (GIVEN, choice("required", &[]), CHOICE),
            (GIVEN, choice("perhaps", &["a"]), CHOICE),
            (GIVEN, json!({ "type": "allowed_tools" }), CHOICE),
            (GIVEN, json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [{}] } }), CHOICE),
            ("{}", choice("auto", &["a"]), TOOLS),
        ] {
            let error = narrowed(tools, &choice).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{choice}: {error}");
            assert!(error.message.contains(field), "{error}");
        }
    }
}
