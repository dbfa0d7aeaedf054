//! Whether a value is one of a schema's, where that can be said for certain.

use std::collections::BTreeSet;

use fancy_regex::RegexBuilder;
use serde_json::{Map, Value};

use super::narrow::joined::{is_of_type, types};
use super::values::{format, referred, values_of};

/// How deep schemas and references are followed.
const MOST_DEPTH: usize = 16;

/// Steps back of a search for a pattern.
const MOST_STEPS: usize = 20_000;

/// Keywords that allow every value.
const ANNOTATIONS: [&str; 13] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

/// Whether a schema allows a value; `None` where that is not known.
pub(super) fn holds(value: &Value, schema: &Value, root: &Value) -> Option<bool> {
    within(value, schema, root, MOST_DEPTH)
}

/// Whether a pattern is found in a text.
pub(super) fn is_found(pattern: &str, text: &str) -> Option<bool> {
    RegexBuilder::new(pattern).backtrack_limit(MOST_STEPS).build().ok()?.is_match(text).ok()
}

/// A value as one that equals it is spelled too.
pub(super) fn canonical(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(canonical).collect(),
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().map(|(key, value)| (key.clone(), canonical(value))).collect();
            sorted.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(Map::from_iter(sorted))
        }
        Value::Number(number) => number.as_f64().map_or_else(|| value.clone(), Value::from),
        other => other.clone(),
    }
}

fn within(value: &Value, schema: &Value, root: &Value, depth: usize) -> Option<bool> {
    let fields = match schema {
        Value::Bool(all) => return Some(*all),
        Value::Object(fields) => fields,
        _ => return None,
    };
    let depth = depth.checked_sub(1)?;
    let mut is = Some(true);
    for (name, keyword) in fields {
        let held = held(value, name, keyword, fields, root, depth);
        match held {
            Some(true) => {}
            Some(false) => return Some(false),
            None => is = None,
        }
    }
    is
}

fn held(
    value: &Value,
    name: &str,
    keyword: &Value,
    fields: &Map<String, Value>,
    root: &Value,
    depth: usize,
) -> Option<bool> {
    let inside = |value: &Value, schema: &Value| within(value, schema, root, depth);
    let branches = || Some(keyword.as_array()?.iter().map(|branch| inside(value, branch)).collect::<Vec<_>>());
    Some(match (name, value) {
        ("type", _) => types(fields).into_iter().any(|name| is_of_type(value, name)),
        ("enum" | "const", _) => values_of(fields)?.contains(&value),
        ("allOf", _) => return all(branches()?),
        ("anyOf", _) => return all(branches()?.into_iter().map(|is| is.map(|is| !is)).collect()).map(|none| !none),
        ("oneOf", _) => {
            let known: Option<Vec<bool>> = branches()?.into_iter().collect();
            known?.into_iter().filter(|is| *is).count() == 1
        }
        ("not", _) => return inside(value, keyword).map(|is| !is),
        ("$ref", _) => return inside(value, referred(fields, root)?),
        ("minimum", Value::Number(number)) => number.as_f64()? >= keyword.as_f64()?,
        ("maximum", Value::Number(number)) => number.as_f64()? <= keyword.as_f64()?,
        ("exclusiveMinimum", Value::Number(number)) => number.as_f64()? > keyword.as_f64()?,
        ("exclusiveMaximum", Value::Number(number)) => number.as_f64()? < keyword.as_f64()?,
        ("multipleOf", Value::Number(number)) => {
            // Of fractions it is not said.
            number.as_i64()?.checked_rem(keyword.as_i64()?)? == 0
        }
        ("minLength", Value::String(text)) => text.chars().count() as u64 >= keyword.as_u64()?,
        ("maxLength", Value::String(text)) => text.chars().count() as u64 <= keyword.as_u64()?,
        ("pattern", Value::String(text)) => return is_found(keyword.as_str()?, text),
        ("format", Value::String(text)) => match format(keyword.as_str()?) {
            Some(expression) => return is_found(&format!("^(?:{expression})$"), text),
            None => return None,
        },
        ("minItems", Value::Array(items)) => items.len() as u64 >= keyword.as_u64()?,
        ("maxItems", Value::Array(items)) => items.len() as u64 <= keyword.as_u64()?,
        ("uniqueItems", Value::Array(items)) => {
            let different: BTreeSet<String> = items.iter().map(|item| canonical(item).to_string()).collect();
            *keyword != Value::Bool(true) || different.len() == items.len()
        }
        ("prefixItems", Value::Array(items)) => {
            return all(items.iter().zip(keyword.as_array()?).map(|(item, schema)| inside(item, schema)).collect());
        }
        ("items", Value::Array(items)) if !keyword.is_array() => {
            let first = fields.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
            return all(items.iter().skip(first).map(|item| inside(item, keyword)).collect());
        }
        ("minProperties", Value::Object(own)) => own.len() as u64 >= keyword.as_u64()?,
        ("maxProperties", Value::Object(own)) => own.len() as u64 <= keyword.as_u64()?,
        ("required", Value::Object(own)) => {
            keyword.as_array()?.iter().filter_map(Value::as_str).all(|key| own.contains_key(key))
        }
        ("properties", Value::Object(own)) => {
            let named = keyword.as_object()?;
            return all(own.iter().filter_map(|(key, value)| Some(inside(value, named.get(key)?))).collect());
        }
        ("additionalProperties", Value::Object(own)) => {
            if fields.contains_key("patternProperties") {
                return None;
            }
            let is_named = |key: &str| fields.get("properties").is_some_and(|named| named.get(key).is_some());
            let others = own.iter().filter(|(key, _)| !is_named(key));
            return all(others.map(|(_, value)| inside(value, keyword)).collect());
        }
        ("propertyNames", Value::Object(own)) => {
            return all(own.keys().map(|key| inside(&Value::from(key.as_str()), keyword)).collect());
        }
        (
            "minimum"
            | "maximum"
            | "exclusiveMinimum"
            | "exclusiveMaximum"
            | "multipleOf"
            | "minLength"
            | "maxLength"
            | "pattern"
            | "format"
            | "minItems"
            | "maxItems"
            | "uniqueItems"
            | "prefixItems"
            | "items"
            | "minProperties"
            | "maxProperties"
            | "required"
            | "properties"
            | "additionalProperties"
            | "propertyNames",
            other,
        ) => !(name == "items" && other.is_array()),
        _ if ANNOTATIONS.contains(&name) => true,
        _ => return None,
    })
}

/// Whether all are so.
fn all(each: Vec<Option<bool>>) -> Option<bool> {
    if each.contains(&Some(false)) {
        return Some(false);
    }
    (!each.contains(&None)).then_some(true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn en_5_a_value_is_known_to_be_of_a_schema_or_not() {
        let root = json!({"$defs": {"x": {"type": "integer", "multipleOf": 3}}});
        for (schema, value, is) in [
            (json!({"type": "string", "pattern": "^a", "maxLength": 2}), json!("ab"), Some(true)),
            (json!({"type": "string", "pattern": "^a", "maxLength": 2}), json!("abc"), Some(false)),
            (json!({"$ref": "#/$defs/x"}), json!(6), Some(true)),
            (json!({"$ref": "#/$defs/x"}), json!(7), Some(false)),
            (json!({"anyOf": [{"const": 1}, {"unheard": 2}]}), json!(1), Some(true)),
            (json!({"anyOf": [{"const": 1}, {"unheard": 2}]}), json!(2), None),
            (json!({"oneOf": [{"minimum": 1}, {"maximum": 3}]}), json!(2), Some(false)),
            (json!({"not": {"format": "date"}}), json!("2024-02-30"), Some(true)),
            (
                json!({"properties": {"a": {"minItems": 1}}, "additionalProperties": false}),
                json!({"a": []}),
                Some(false),
            ),
            (json!({"propertyNames": {"pattern": "^a"}, "required": ["ab"]}), json!({"ab": 1}), Some(true)),
            (json!({"items": {"type": "null"}, "prefixItems": [{}]}), json!([1, null, 2]), Some(false)),
        ] {
            assert_eq!(holds(&value, &schema, &root), is, "{schema}: {value}");
        }
    }
}
