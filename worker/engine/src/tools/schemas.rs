//! The schemas of arguments, as grammars are made of them.

use serde_json::{Map, Value, json};

/// A schema from its text.
pub(super) fn schema_of(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

/// Python's words for the values of JSON that a schema allows and that Python spells in its own way.
pub(super) fn python_words(schema: &Map<String, Value>) -> Vec<&'static str> {
    if schema.contains_key("enum") || schema.contains_key("const") {
        return Vec::new();
    }
    let branches = ["anyOf", "oneOf"].into_iter().filter_map(|name| schema.get(name)?.as_array()).flatten();
    let mut words: Vec<&str> = branches.filter_map(Value::as_object).flat_map(python_words).collect();
    let kinds = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().collect(),
        kind => Vec::from_iter(kind),
    };
    for kind in kinds.into_iter().filter_map(Value::as_str) {
        match kind {
            "boolean" => words.extend(["True", "False"]),
            "null" => words.push("None"),
            _ => {}
        }
    }
    words
}

/// The schema of arguments, which are an object whatever it says.
pub(super) fn object_schema(schema: &Value) -> Map<String, Value> {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    if !schema.contains_key("properties") && schema.keys().all(|key| key == "type") {
        schema.insert("properties".to_owned(), json!({}));
        schema.insert("additionalProperties".to_owned(), json!(false));
    }
    schema.insert("type".to_owned(), json!("object"));
    let mut whole = Value::Object(schema);
    if !joins_schemas(&whole) {
        close(&mut whole);
    }
    match whole {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// Closes objects to fields that no schema names, where nothing is said about them: a tool has no use for them, and a
/// small model goes on inventing them. Clients leave `additionalProperties` out, and Ollama's drop it.
fn close(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    let is_joined = schema.contains_key("anyOf") || schema.contains_key("oneOf");
    if schema.contains_key("properties") && !schema.contains_key("patternProperties") && !is_joined {
        if !schema.contains_key("additionalProperties") {
            name_required(schema);
        }
        schema.entry("additionalProperties").or_insert(json!(false));
    }
    for name in ["properties", "$defs", "definitions"] {
        schema.get_mut(name).and_then(Value::as_object_mut).into_iter().flatten().for_each(|(_, inside)| close(inside));
    }
    for name in ["prefixItems", "anyOf", "oneOf"] {
        if !(is_joined && schema.contains_key("properties")) {
            schema.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().for_each(close);
        }
    }
    schema.get_mut("items").into_iter().for_each(close);
}

/// Adds the fields that are required and that no schema names: they may have any value.
fn name_required(schema: &mut Map<String, Value>) {
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for key in required.iter().filter_map(Value::as_str) {
            properties.entry(key).or_insert_with(|| json!({}));
        }
    }
}

/// Whether schemas are joined anywhere: each may have fields that another one does not name.
fn joins_schemas(schema: &Value) -> bool {
    const JOINS: [&str; 6] =
        ["allOf", "if", "dependencies", "dependentSchemas", "unevaluatedProperties", "$dynamicRef"];
    match schema {
        Value::Object(fields) => {
            JOINS.iter().any(|name| fields.contains_key(*name))
                || (fields.contains_key("$ref") && fields.contains_key("properties"))
                || fields.values().any(joins_schemas)
        }
        Value::Array(values) => values.iter().any(joins_schemas),
        _ => false,
    }
}
