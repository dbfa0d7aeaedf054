//! Whether a value is one of a schema's, where that can be said for certain.

use std::collections::BTreeSet;

use fancy_regex::RegexBuilder;
use serde_json::{Map, Value};

use super::joined::{is_of_type, types};
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
        ("if", _) => return condition(fields, &|schema| inside(value, schema)),
        // Both are looked at beside the condition, and say nothing without one.
        ("then" | "else", _) => true,
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
        // In earlier drafts a list of schemas is of the first items, and `additionalItems` of the others.
        ("items", Value::Array(items)) if keyword.is_array() => {
            return all(items.iter().zip(keyword.as_array()?).map(|(item, schema)| inside(item, schema)).collect());
        }
        ("items", Value::Array(items)) => {
            let first = fields.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
            return all(items.iter().skip(first).map(|item| inside(item, keyword)).collect());
        }
        ("additionalItems", Value::Array(items)) => {
            let first = fields.get("items").and_then(Value::as_array).map_or(usize::MAX, Vec::len);
            return all(items.iter().skip(first).map(|item| inside(item, keyword)).collect());
        }
        ("contains", Value::Array(items)) => {
            let count = |name: &str| fields.get(name).and_then(Value::as_f64);
            let found: Option<Vec<bool>> = items.iter().map(|item| inside(item, keyword)).collect();
            let found = found?.into_iter().filter(|is| *is).count() as f64;
            found >= count("minContains").unwrap_or(1.0) && count("maxContains").is_none_or(|most| found <= most)
        }
        ("dependentRequired" | "dependentSchemas" | "dependencies", Value::Object(own)) => {
            let demanded = keyword.as_object()?.iter().filter(|(key, _)| own.contains_key(*key));
            let holds = |(_, demand): (&String, &Value)| match demand {
                Value::Array(keys) => Some(keys.iter().filter_map(Value::as_str).all(|key| own.contains_key(key))),
                schema => inside(value, schema),
            };
            return all(demanded.map(holds).collect());
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
            let is_named = |key: &str| fields.get("properties").is_some_and(|named| named.get(key).is_some());
            let patterns = fields.get("patternProperties").and_then(Value::as_object);
            let of_other = |(key, value): (&String, &Value)| {
                let found: Option<Vec<bool>> =
                    patterns.into_iter().flatten().map(|(by, _)| is_found(by, key)).collect();
                if found?.contains(&true) { Some(true) } else { inside(value, keyword) }
            };
            return all(own.iter().filter(|(key, _)| !is_named(key)).map(of_other).collect());
        }
        ("patternProperties", Value::Object(own)) => {
            let of_pattern = |(pattern, schema): (&String, &Value)| {
                let of_key = |(key, value): (&String, &Value)| match is_found(pattern, key)? {
                    true => inside(value, schema),
                    false => Some(true),
                };
                all(own.iter().map(of_key).collect())
            };
            return all(keyword.as_object()?.iter().map(of_pattern).collect());
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
            | "additionalItems"
            | "patternProperties"
            | "propertyNames"
            | "contains"
            | "minContains"
            | "maxContains"
            | "dependentRequired"
            | "dependentSchemas"
            | "dependencies",
            _,
        ) => true,
        _ if ANNOTATIONS.contains(&name) => true,
        _ => return None,
    })
}

/// Whether the branch of a condition holds.
fn condition(fields: &Map<String, Value>, holds: &dyn Fn(&Value) -> Option<bool>) -> Option<bool> {
    let of = |name: &str| fields.get(name).map_or(Some(true), holds);
    match fields.get("if").map_or(Some(true), holds) {
        Some(true) => of("then"),
        Some(false) => of("else"),
        // Where both hold it does not matter.
        None => (of("then") == Some(true) && of("else") == Some(true)).then_some(true),
    }
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

    /// Beside the crate that knows all keywords.
    #[test]
    fn en_5_keywords_of_lists_objects_and_conditions_are_known() {
        let values = [
            json!([]),
            json!([1]),
            json!(["a", 2, 3]),
            json!({}),
            json!({"a": 1}),
            json!({"a": 1, "b": "x"}),
            json!({"xa": 1, "xb": 2, "c": null}),
            json!(7),
            json!("text"),
        ];
        for schema in [
            json!({"contains": {"type": "integer"}}),
            json!({"contains": {"type": "integer"}, "minContains": 2, "maxContains": 2}),
            json!({"contains": {"type": "string"}, "minContains": 0}),
            json!({"patternProperties": {"^x": {"maximum": 1}}}),
            json!({"patternProperties": {"^x": {}}, "properties": {"c": {}}, "additionalProperties": false}),
            json!({"patternProperties": {"^x": {}}, "additionalProperties": {"type": "integer"}}),
            json!({"dependentRequired": {"a": ["b"]}}),
            json!({"dependentSchemas": {"a": {"required": ["b"]}, "c": false}}),
            json!({"if": {"type": "array"}, "then": {"maxItems": 1}, "else": {"type": "object"}}),
            json!({"if": {"required": ["a"]}, "then": {"properties": {"a": {"minimum": 2}}}}),
            json!({"then": false}),
            json!({"minContains": 4}),
        ] {
            let validator = jsonschema::validator_for(&schema).unwrap();
            for value in &values {
                assert_eq!(holds(value, &schema, &schema), Some(validator.is_valid(value)), "{schema}: {value}");
            }
        }
        let draft_7 = json!({"items": [{"type": "integer"}], "additionalItems": {"type": "string"}});
        for (value, is) in [(json!([1, "a"]), true), (json!(["a"]), false), (json!([1, 2]), false), (json!([]), true)] {
            assert_eq!(holds(&value, &draft_7, &draft_7), Some(is), "{value}");
        }
    }
}
