//! Parts of schemas: types, and schemas joined to one.

use serde_json::{Map, Value, json};

/// The schema whose values are those of both.
pub(in crate::tools) fn both(a: Value, b: Value) -> Value {
    let is_any = |schema: &Value| *schema == Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty);
    match (a, b) {
        (Value::Bool(false), _) | (_, Value::Bool(false)) => Value::Bool(false),
        (a, b) if a == b || is_any(&b) => a,
        (a, b) if is_any(&a) => b,
        (a, b) => json!({ "allOf": [a, b] }),
    }
}

/// The schema whose values are those of any.
pub(in crate::tools) fn any(mut schemas: Vec<Value>) -> Option<Value> {
    schemas.retain(|schema| *schema != Value::Bool(false));
    match schemas.len() {
        0 => None,
        1 => schemas.pop(),
        _ => Some(json!({ "anyOf": schemas })),
    }
}

/// The types that a schema names, or all.
pub(in crate::tools) fn types(schema: &Map<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec!["null", "boolean", "number", "string", "array", "object"],
    }
}

/// Whether the types of a schema have all values of those of another one.
pub(in crate::tools) fn covers(schema: &Map<String, Value>, within: &Map<String, Value>) -> bool {
    let named = types(schema);
    let has = |name: &&str| named.contains(name) || (*name == "integer" && named.contains(&"number"));
    types(within).iter().all(has)
}

/// Whether a schema demands a key.
pub(in crate::tools) fn requires(schema: &Map<String, Value>, key: &str) -> bool {
    schema.get("required").and_then(Value::as_array).is_some_and(|keys| keys.iter().any(|name| name == key))
}

/// Whether a value is of a type.
pub(in crate::tools) fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}
