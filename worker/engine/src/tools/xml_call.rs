//! Calls whose parameters are between tags: Qwen3-Coder's and GLM's. They become JSON by the types of the tool's
//! schema.

use serde_json::Value;

use super::format::ToolFormat;
use super::values::{Kinds, kinds};

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

/// The value of a parameter as JSON: a text, unless its schema allows another value that is spelled like this. `root`
/// has what references of the schema name.
pub(super) fn value(schema: Option<&Value>, root: &Value, text: &str) -> String {
    let text = text.strip_prefix('\n').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    let kinds = schema.map_or(Kinds::ALL, |schema| kinds(schema, root));
    let word = match text.trim() {
        // Models that write Python's words.
        "True" => "true",
        "False" => "false",
        "None" => "null",
        word => word,
    };
    match serde_json::from_str::<Value>(word) {
        Ok(value) if !value.is_string() && (kinds.has(Kinds::of(&value)) || !kinds.has(Kinds::TEXT)) => {
            value.to_string()
        }
        _ => Value::String(text.to_owned()).to_string(),
    }
}
