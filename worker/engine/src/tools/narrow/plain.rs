//! Spellings in schemas of tools that JSON Schema does not have and that clients send all the same.

use serde_json::Value;

/// Keywords that are as absent where they are null: lists and maps of other languages that were never set.
const UNSET: [&str; 6] = ["required", "properties", "items", "enum", "anyOf", "description"];

/// Names of types in other languages.
const TYPES: [(&str, &str); 9] = [
    ("float", "number"),
    ("double", "number"),
    ("int", "integer"),
    ("long", "integer"),
    ("str", "string"),
    ("bool", "boolean"),
    ("list", "array"),
    ("dict", "object"),
    ("None", "null"),
];

/// Replaces the spellings by those of JSON Schema.
pub(in crate::tools) fn make_plain(schema: &mut Value) {
    match schema {
        Value::Array(values) => values.iter_mut().for_each(make_plain),
        Value::Object(fields) => {
            fields.retain(|name, value| !(value.is_null() && UNSET.contains(&name.as_str())));
            if fields.get("type").is_some_and(|kind| kind == "any") {
                fields.shift_remove("type");
            }
            let kind = fields.get("type").and_then(Value::as_str);
            if let Some((_, known)) = TYPES.iter().find(|(other, _)| Some(*other) == kind) {
                fields.insert("type".to_owned(), (*known).into());
            }
            let inside = fields.iter_mut().filter(|(name, _)| !["enum", "const", "default"].contains(&name.as_str()));
            inside.for_each(|(_, value)| make_plain(value));
        }
        _ => {}
    }
}
