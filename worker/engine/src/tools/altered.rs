//! Values that differ from others: an item or a key that comes twice is altered where a list or an object would
//! otherwise have too few.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::holds::{canonical, holds, is_found};
use crate::regular::RegularSets;

/// Values that are tried of each part of one.
const MOST_TRIED: usize = 80;

/// Texts of a pattern that are tried.
const MOST_TEXTS: usize = 40;

/// How deep a value is altered.
const MOST_DEPTH: usize = 3;

/// An item that no one of `seen` equals and that schemas of a list allow as they allow this one, at its place.
pub(super) fn altered_item(
    item: &Value,
    schemas: &[Value],
    index: usize,
    seen: &BTreeSet<String>,
    root: &Value,
) -> Option<Value> {
    let of = |schema: &Value| {
        let first = schema.get("prefixItems").and_then(|all| all.get(index));
        [first.or_else(|| schema.get("items")), schema.get("contains")]
            .into_iter()
            .flatten()
            .cloned()
            .collect::<Vec<_>>()
    };
    let held: Vec<Value> = schemas.iter().flat_map(of).collect();
    let known: Option<Vec<bool>> = held.iter().map(|schema| holds(item, schema, root)).collect();
    let known = known?;
    let is_as_good =
        |value: &Value| held.iter().zip(&known).all(|(schema, is)| holds(value, schema, root) == Some(*is));
    let own = held.iter().flat_map(|schema| own_values(schema, item, root));
    let texts =
        held.iter().filter(|_| item.is_string()).flat_map(|schema| texts_of(schema).into_iter().map(Value::from));
    let mut tried = own.chain(others(item, seen.len(), MOST_DEPTH)).chain(texts);
    tried.find(|value| !seen.contains(&canonical(value).to_string()) && is_as_good(value))
}

/// A key that no one of `seen` equals and whose value schemas of an object hold as they do that of this key.
pub(super) fn altered_key(key: &str, schemas: &[Value], seen: &BTreeSet<String>, root: &Value) -> Option<String> {
    let part = |schema: &Value, name: &str| schema.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
    let is_as_good = |other: &str| {
        schemas.iter().all(|schema| {
            let mut patterns = part(schema, "patternProperties").into_iter();
            let names = schema.get("propertyNames");
            !part(schema, "properties").contains_key(other)
                && patterns.all(|(pattern, _)| match (is_found(&pattern, key), is_found(&pattern, other)) {
                    (Some(own), Some(other)) => own == other,
                    _ => false,
                })
                && names.is_none_or(|names| holds(&json!(other), names, root) == Some(true))
        })
    };
    let patterns = schemas.iter().flat_map(|schema| {
        let names = schema.get("propertyNames").cloned().into_iter();
        names.chain(part(schema, "patternProperties").into_iter().map(|(pattern, _)| json!({ "pattern": pattern })))
    });
    let own = patterns.flat_map(|schema| texts_of(&schema));
    texts_like(key, seen.len()).into_iter().chain(own).find(|other| !seen.contains(other) && is_as_good(other))
}

/// Values that a schema says itself, of those that are like another one.
fn own_values(schema: &Value, like: &Value, root: &Value) -> Vec<Value> {
    let referred = schema.as_object().and_then(|fields| super::values::referred(fields, root));
    let schema = referred.unwrap_or(schema);
    let mut all: Vec<Value> = schema.get("enum").and_then(Value::as_array).cloned().unwrap_or_default();
    if let (Some(factor), Some(number)) = (schema.get("multipleOf").and_then(Value::as_i64), like.as_i64()) {
        let steps = (1..MOST_TRIED as i64).flat_map(|step| [step, -step]);
        all.extend(steps.filter_map(|step| Some(json!(number.checked_add(factor.checked_mul(step)?)?))));
    }
    all
}

/// Some texts of a schema's pattern, and those that it lists.
fn texts_of(schema: &Value) -> Vec<String> {
    let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let mut all: Vec<String> = listed.map(str::to_owned).collect();
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
        let bound = |name: &str| schema.get(name).and_then(Value::as_u64).map(|bound| bound as usize);
        let lengths = (bound("minLength").unwrap_or(0), bound("maxLength").unwrap_or(usize::MAX));
        all.extend(RegularSets::default().texts(&[(pattern, true)], lengths, MOST_TEXTS));
    }
    all
}

/// Values like another one, where so many are known.
fn others(value: &Value, known: usize, depth: usize) -> Vec<Value> {
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    let mut all = Vec::new();
    match value {
        Value::String(text) => all.extend(texts_like(text, known).into_iter().map(Value::from)),
        Value::Number(number) => {
            let steps = (1..MOST_TRIED as i64 / 2).flat_map(|step| [step, -step]);
            match (number.as_i64(), number.as_f64()) {
                (Some(number), _) => all.extend(steps.filter_map(|step| Some(json!(number.checked_add(step)?)))),
                (None, Some(number)) => all.extend(steps.map(|step| json!(number + step as f64))),
                _ => {}
            }
            let parts = [0.5, 0.25, 0.1, 0.01, 0.001];
            all.extend(
                number
                    .as_f64()
                    .into_iter()
                    .flat_map(|n| parts.map(|part| [json!(n + part), json!(n - part)]))
                    .flatten(),
            );
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate().take(MOST_DEPTH) {
                all.extend(others(item, known, depth).into_iter().take(MOST_TRIED).map(|item| {
                    let mut items = items.clone();
                    items[at] = item;
                    Value::Array(items)
                }));
            }
            all.extend(items.last().map(|last| Value::Array([items.as_slice(), std::slice::from_ref(last)].concat())));
        }
        Value::Object(fields) => {
            for (key, own) in fields.iter().take(4 * MOST_DEPTH) {
                all.extend(others(own, known, depth).into_iter().take(MOST_TRIED).map(|own| {
                    let mut fields = fields.clone();
                    fields.insert(key.clone(), own);
                    Value::Object(fields)
                }));
            }
        }
        _ => {}
    }
    // Of any kind, where a list has them all.
    all.extend([json!(true), json!(false), Value::Null, json!("a"), json!([]), json!({})]);
    all.extend((0..MOST_TRIED).map(|number| json!(number)));
    all.extend(('a'..='z').map(|c| json!(c.to_string())));
    all
}

/// Texts like another one: with a number behind it, with other ends, or with another start.
fn texts_like(text: &str, known: usize) -> Vec<String> {
    let behind = |mark: char| (2..10).map(move |number| format!("{text}{mark}{number}"));
    let mut all: Vec<String> = behind('_').chain(behind('-')).collect();
    all.extend((2..100).chain(known..known + MOST_TRIED).map(|number| format!("{text}{number}")));
    let letters = || ('0'..='9').chain('a'..='z').chain('A'..='Z');
    if let Some(last) = text.char_indices().next_back() {
        all.extend(letters().map(|c| format!("{}{c}", &text[..last.0])));
    }
    let mut rest = text.chars();
    if rest.next().is_some() {
        all.extend(letters().map(|c| format!("{c}{}", rest.as_str())));
    }
    all.extend(letters().flat_map(|c| [format!("{text}{c}"), format!("{c}{text}")]));
    all.retain(|other| other != text);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_5_items_and_keys_are_altered_as_their_schemas_allow() {
        let set = |values: &[Value]| values.iter().map(|value| canonical(value).to_string()).collect::<BTreeSet<_>>();
        for (item, schema, wanted) in [
            (json!("a"), json!({}), Some(json!("a_2"))),
            (json!("a"), json!({"items": {"type": "string", "pattern": "^[a-c]$"}}), Some(json!("b"))),
            (json!("ab-1"), json!({"items": {"pattern": "^[a-z]{2}-[0-9]$"}}), Some(json!("ab-0"))),
            (json!(3), json!({"items": {"type": "integer", "maximum": 3}}), Some(json!(2))),
            (json!(6), json!({"items": {"type": "integer", "multipleOf": 6}}), Some(json!(12))),
            (json!({"a": "x", "b": 1}), json!({"items": {"required": ["a"]}}), Some(json!({"a": "x_2", "b": 1}))),
            (json!("2024-01-01"), json!({"items": {"format": "date"}}), Some(json!("2024-01-02"))),
            (json!(null), json!({"items": {"type": "null"}}), None),
            (json!("a"), json!({"items": {"unheard": 1}}), None),
        ] {
            let seen = set(std::slice::from_ref(&item));
            assert_eq!(altered_item(&item, std::slice::from_ref(&schema), 0, &seen, &Value::Null), wanted, "{schema}");
        }
        for (schema, wanted) in [
            (json!({}), Some("a_2")),
            (json!({"properties": {"a_2": {}}}), Some("a_3")),
            (json!({"patternProperties": {"^[a-z]+$": {}}}), Some("b")),
            (json!({"propertyNames": {"maxLength": 1, "pattern": "[a-f0]"}}), Some("0")),
            (json!({"propertyNames": {"enum": ["a"]}}), None),
        ] {
            let seen = BTreeSet::from(["a".to_owned()]);
            let key = altered_key("a", std::slice::from_ref(&schema), &seen, &Value::Null);
            assert_eq!(key.as_deref(), wanted, "{schema}");
        }
    }
}
