//! Schemas of all values but some: of those in a list, and of those within bounds.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::joined::{is_of_type, types};

/// Integers that are listed without some of them.
const MOST_INTEGERS: i64 = 400;

/// Numbers that are left out by the ranges between them.
const MOST_NUMBERS: usize = 8;

/// A schema of the values of another one but for these. `domain` has all values of that one, where they are few.
pub(super) fn values(excluded: &[&Value], domain: Option<Vec<Value>>, within: &Map<String, Value>) -> Option<Value> {
    if let Some(domain) = domain {
        let others: Vec<Value> = domain.into_iter().filter(|value| !excluded.contains(&value)).collect();
        return (!others.is_empty()).then(|| json!({ "enum": others }));
    }
    let ways: Vec<Value> = types(within).into_iter().filter_map(|name| of_type(excluded, name)).collect();
    (!ways.is_empty()).then(|| json!({ "anyOf": ways }))
}

/// The values of a type but for some.
fn of_type(excluded: &[&Value], name: &str) -> Option<Value> {
    let excluded: Vec<&Value> = excluded.iter().copied().filter(|value| is_of_type(value, name)).collect();
    if excluded.is_empty() {
        return Some(json!({ "type": name }));
    }
    match name {
        "string" => {
            let texts: Vec<&str> = excluded.into_iter().filter_map(Value::as_str).collect();
            Some(json!({ "type": "string", "pattern": format!("^({})$", other_texts(&texts)) }))
        }
        "boolean" => {
            let others: Vec<bool> =
                [true, false].into_iter().filter(|word| !excluded.contains(&&json!(word))).collect();
            (!others.is_empty()).then(|| json!({ "enum": others }))
        }
        "integer" | "number" if excluded.len() <= MOST_NUMBERS => {
            let mut numbers: Vec<f64> = excluded.into_iter().filter_map(Value::as_f64).collect();
            numbers.sort_by(f64::total_cmp);
            let first = numbers.first().map(|first| json!({ "type": name, "exclusiveMaximum": first }));
            let last = numbers.last().map(|last| json!({ "type": name, "exclusiveMinimum": last }));
            let between = numbers.windows(2).filter(|pair| name == "number" || pair[1] - pair[0] > 1.0);
            let between =
                between.map(|pair| json!({ "type": name, "exclusiveMinimum": pair[0], "exclusiveMaximum": pair[1] }));
            Some(json!({ "anyOf": first.into_iter().chain(between).chain(last).collect::<Vec<_>>() }))
        }
        _ => None,
    }
}

/// An expression of all texts but some.
fn other_texts(excluded: &[&str]) -> String {
    let is_over = excluded.iter().any(|text| text.is_empty());
    let mut by_first: BTreeMap<char, Vec<&str>> = BTreeMap::new();
    for text in excluded {
        let mut rest = text.chars();
        if let Some(first) = rest.next() {
            by_first.entry(first).or_default().push(rest.as_str());
        }
    }
    if by_first.is_empty() {
        return r"[\s\S]+".to_owned();
    }
    let escaped = |c: &char| regex_syntax::escape(&c.to_string());
    let firsts: String = by_first.keys().map(|c| if *c == '^' { r"\^".to_owned() } else { escaped(c) }).collect();
    let mut ways = vec![format!(r"[^{firsts}][\s\S]*")];
    ways.extend(by_first.iter().map(|(first, rests)| format!("{}({})", escaped(first), other_texts(rests))));
    let empty = if is_over { "" } else { "|" };
    format!("{}{empty}", ways.join("|"))
}

/// Values outside of the bounds of a schema.
pub(super) fn beyond_bounds(fields: &Map<String, Value>, within: &Map<String, Value>) -> Vec<Value> {
    let mut ways = Vec::new();
    let of = types(within);
    let number = ["integer", "number"].into_iter().find(|name| of.contains(name));
    if let Some(number) = number {
        for (name, opposite) in [
            ("minimum", "exclusiveMaximum"),
            ("maximum", "exclusiveMinimum"),
            ("exclusiveMinimum", "maximum"),
            ("exclusiveMaximum", "minimum"),
        ] {
            ways.extend(fields.get(name).map(|bound| json!({ "type": number, opposite: bound })));
        }
    }
    for (kind, least, most) in [
        ("string", "minLength", "maxLength"),
        ("array", "minItems", "maxItems"),
        ("object", "minProperties", "maxProperties"),
    ] {
        if !of.contains(&kind) {
            continue;
        }
        if let Some(below) = fields.get(least).and_then(Value::as_u64).and_then(|bound| bound.checked_sub(1)) {
            ways.push(json!({ "type": kind, most: below }));
        }
        if let Some(bound) = fields.get(most).and_then(Value::as_u64) {
            ways.push(json!({ "type": kind, least: bound.saturating_add(1) }));
        }
    }
    ways
}

/// Integers within bounds that are no multiples.
pub(super) fn not_multiples(fields: &Map<String, Value>, within: &Map<String, Value>) -> Option<Value> {
    let factor = fields.get("multipleOf").and_then(Value::as_i64).filter(|factor| *factor > 1)?;
    let least = within.get("minimum").and_then(Value::as_i64)?;
    let most = within.get("maximum").and_then(Value::as_i64)?;
    if !types(within).contains(&"integer") || most.checked_sub(least)? > MOST_INTEGERS {
        return None;
    }
    let others: Vec<i64> = (least..=most).filter(|number| number % factor != 0).collect();
    (!others.is_empty()).then(|| json!({ "enum": others }))
}
