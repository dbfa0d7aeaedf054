//! Keywords whose values are not of their kind: the library does not name all of them.

use serde_json::{Map, Value};

/// Keywords whose value is a schema.
const OF_SCHEMA: [&str; 11] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];

/// Keywords whose value is an object of schemas.
const OF_NAMED: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];

/// Keywords whose value is a list of schemas.
const OF_LISTED: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// The first keyword of a schema that has no value of its kind, as words.
pub(super) fn malformed(schema: &Map<String, Value>) -> Option<String> {
    in_schema(schema, "#")
}

fn in_schema(schema: &Map<String, Value>, at: &str) -> Option<String> {
    schema.iter().find_map(|(name, value)| in_keyword(name, value, at))
}

fn in_keyword(name: &str, value: &Value, at: &str) -> Option<String> {
    let place = format!("{at}/{name}");
    match (name, value) {
        ("items", Value::Array(listed)) => in_list(listed, &place),
        (name, value) if name == "items" || OF_SCHEMA.contains(&name) => in_value(value, &place),
        (name, Value::Object(named)) if OF_NAMED.contains(&name) => {
            named.iter().find_map(|(key, value)| in_value(value, &format!("{place}/{key}")))
        }
        (name, _) if OF_NAMED.contains(&name) => Some(format!("'{name}' at {at} must be an object of schemas")),
        (name, Value::Array(listed)) if OF_LISTED.contains(&name) => in_list(listed, &place),
        (name, _) if OF_LISTED.contains(&name) => Some(format!("'{name}' at {at} must be a list of schemas")),
        ("multipleOf", Value::Number(number)) if number.as_f64().is_some_and(|number| number <= 0.0) => {
            Some(format!("'multipleOf' at {at} must be above 0, and is {number}"))
        }
        _ => None,
    }
}

fn in_list(listed: &[Value], place: &str) -> Option<String> {
    listed.iter().enumerate().find_map(|(at, value)| in_value(value, &format!("{place}/{at}")))
}

fn in_value(value: &Value, place: &str) -> Option<String> {
    match value {
        Value::Object(schema) => in_schema(schema, place),
        Value::Bool(_) => None,
        other => Some(format!("{place} must be a schema, which is an object or a boolean, and is {other}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn en_6_a_keyword_without_a_value_of_its_kind_is_named_with_its_place() {
        let fault = |schema: Value| malformed(schema.as_object().unwrap());
        for (schema, words) in [
            (json!({"properties": {"a": {"items": 5}}}), "#/properties/a/items must be a schema"),
            (json!({"properties": 3}), "'properties' at # must be an object"),
            (json!({"anyOf": [{"prefixItems": {}}]}), "'prefixItems' at #/anyOf/0"),
            (json!({"not": {"multipleOf": 0}}), "'multipleOf' at #/not"),
            (json!({"items": [true, null]}), "#/items/1"),
        ] {
            let found = fault(schema.clone()).unwrap_or_default();
            assert!(found.contains(words), "{schema}: {found}");
        }
        // Data is no schema.
        assert_eq!(fault(json!({"enum": [{"properties": 3}], "default": {"items": 5}, "items": true})), None);
    }
}
