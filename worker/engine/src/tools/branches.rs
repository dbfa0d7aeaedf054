//! A schema of objects as one of several schemas without branches, as formats need them that spell objects key by key.

use serde_json::{Map, Value, json};

use super::joined::both;
use super::values::referred;

/// Schemas of which one holds. More are not made.
const MOST_VARIANTS: usize = 24;

/// How deep references and branches are followed.
const MOST_DEPTH: usize = 12;

/// Schemas that are looked at.
const MOST_STEPS: usize = 1_000;

/// Schemas without `allOf`, `anyOf`, `oneOf` and `$ref`, of which one holds where the schema does. A value of several
/// branches of `oneOf` is not told from others. `None` where there are too many.
pub(super) fn variants(schema: &Map<String, Value>, root: &Value) -> Option<Vec<Map<String, Value>>> {
    let mut left = MOST_STEPS;
    within(schema, root, MOST_DEPTH, &mut left)
}

fn within(
    schema: &Map<String, Value>,
    root: &Value,
    depth: usize,
    left: &mut usize,
) -> Option<Vec<Map<String, Value>>> {
    let depth = depth.checked_sub(1)?;
    *left = left.checked_sub(1)?;
    let mut base = schema.clone();
    let [all, any, one, _] = ["allOf", "anyOf", "oneOf", "$ref"].map(|name| base.shift_remove(name));
    let mut of = |schema: &Value| match schema {
        Value::Bool(true) => Some(vec![Map::new()]),
        Value::Object(fields) => within(fields, root, depth, left),
        _ => Some(Vec::new()),
    };
    let mut found = vec![base];
    let listed = |value: Option<Value>| match value {
        Some(Value::Array(listed)) => Some(listed),
        _ => None,
    };
    for part in listed(all).into_iter().flatten().chain(referred(schema, root).cloned()) {
        found = crossed(&found, &of(&part)?)?;
    }
    for branches in [any, one].into_iter().filter_map(listed) {
        let branches: Option<Vec<_>> = branches.iter().map(&mut of).collect();
        found = crossed(&found, &branches?.concat())?;
    }
    Some(found)
}

/// Each of some schemas with each of others.
fn crossed(some: &[Map<String, Value>], others: &[Map<String, Value>]) -> Option<Vec<Map<String, Value>>> {
    if some.len() * others.len() > MOST_VARIANTS {
        return None;
    }
    Some(some.iter().flat_map(|a| others.iter().filter_map(move |b| merged(a, b))).collect())
}

/// The schema of what both allow; `None` if that is nothing.
fn merged(a: &Map<String, Value>, b: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut whole = a.clone();
    for (name, value) in b {
        let Some(own) = whole.get(name).cloned() else {
            whole.insert(name.clone(), value.clone());
            continue;
        };
        let merged = match (name.as_str(), own, value) {
            (_, own, value) if own == *value => own,
            ("required", Value::Array(mut keys), Value::Array(others)) => {
                keys.extend(others.iter().filter(|key| !keys.contains(key)).cloned().collect::<Vec<_>>());
                keys.into()
            }
            ("type", own, value) => {
                let names = |value: &Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
                let others = names(value);
                let has = |name: &Value| {
                    others.contains(name) || (*name == "integer" && others.iter().any(|other| other == "number"))
                };
                let mut shared: Vec<Value> = names(&own).into_iter().filter(has).collect();
                if shared.is_empty() && own == "number" && others.contains(&json!("integer")) {
                    shared.push(json!("integer"));
                }
                match shared.len() {
                    0 => return None,
                    1 => shared.remove(0),
                    _ => shared.into(),
                }
            }
            ("minLength" | "minItems" | "minProperties" | "minimum" | "exclusiveMinimum", own, value) => {
                if own.as_f64() >= value.as_f64() { own } else { value.clone() }
            }
            ("maxLength" | "maxItems" | "maxProperties" | "maximum" | "exclusiveMaximum", own, value) => {
                if own.as_f64() <= value.as_f64() { own } else { value.clone() }
            }
            ("enum", Value::Array(own), Value::Array(others)) => {
                let shared: Vec<Value> = own.into_iter().filter(|value| others.contains(value)).collect();
                if shared.is_empty() {
                    return None;
                }
                shared.into()
            }
            ("items" | "additionalProperties", own, value) => both(own, value.clone()),
            // Keys that one of both does not name are those of its other properties.
            ("properties", own @ Value::Object(_), _) => own,
            // The first says it: of descriptions, and of what has no form in common.
            (_, own, _) => own,
        };
        whole.insert(name.clone(), merged);
    }
    let named = properties(a, b);
    let required = whole.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    if required.into_iter().any(|key| named.get(key) == Some(&Value::Bool(false))) {
        return None;
    }
    if !named.is_empty() {
        whole.insert("properties".to_owned(), Value::Object(named));
    }
    Some(whole)
}

fn properties(a: &Map<String, Value>, b: &Map<String, Value>) -> Map<String, Value> {
    let none = Map::new();
    let of = |schema: &Map<String, Value>| schema.get("properties").and_then(Value::as_object).cloned();
    let other = |schema: &Map<String, Value>| match schema.get("patternProperties") {
        Some(_) => Value::Bool(true),
        None => schema.get("additionalProperties").cloned().unwrap_or(Value::Bool(true)),
    };
    let (of_a, of_b) = (of(a).unwrap_or_else(|| none.clone()), of(b).unwrap_or(none));
    let mut all = Map::new();
    for (key, schema) in &of_a {
        all.insert(key.clone(), both(schema.clone(), of_b.get(key).cloned().unwrap_or_else(|| other(b))));
    }
    for (key, schema) in of_b {
        all.entry(key).or_insert_with(|| both(schema, other(a)));
    }
    all
}
