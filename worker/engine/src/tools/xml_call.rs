//! Calls whose parameters are between tags: Qwen3-Coder's and GLM's. They become JSON by the types of the tool's
//! schema.

use serde_json::Value;

use super::format::ToolFormat;

/// The tags around one parameter.
pub(super) struct Tags {
    /// Behind the tool's name.
    pub(super) head_end: &'static str,
    pub(super) key: (&'static str, &'static str),
    pub(super) value: (&'static str, &'static str),
    /// The end of the call.
    pub(super) end: &'static str,
}

const QWEN_CODER: Tags =
    Tags { head_end: ">", key: ("<parameter=", ">"), value: ("", "</parameter>"), end: "</function>" };
const GLM: Tags = Tags {
    head_end: "\n",
    key: ("<arg_key>", "</arg_key>"),
    value: ("<arg_value>", "</arg_value>"),
    end: "</tool_call>",
};

pub(super) fn tags(format: ToolFormat) -> &'static Tags {
    if format == ToolFormat::Glm { &GLM } else { &QWEN_CODER }
}

/// The value of a parameter as JSON.
pub(super) fn value(schema: Option<&Value>, text: &str) -> String {
    let text = text.strip_prefix('\n').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    let as_text = || Value::String(text.to_owned()).to_string();
    if schema.is_some_and(is_text) {
        return as_text();
    }
    match serde_json::from_str::<Value>(text.trim()) {
        Ok(Value::String(_)) => as_text(),
        Ok(value) => value.to_string(),
        Err(_) => match text.trim() {
            // Models that write Python's words.
            "True" => "true".to_owned(),
            "False" => "false".to_owned(),
            "None" => "null".to_owned(),
            _ => as_text(),
        },
    }
}

/// Whether a schema allows texts only.
pub(super) fn is_text(schema: &Value) -> bool {
    let all_texts = |values: &Vec<Value>| !values.is_empty() && values.iter().all(Value::is_string);
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().all(|kind| kind == "string"),
        _ => schema.get("enum").and_then(Value::as_array).is_some_and(all_texts),
    }
}
