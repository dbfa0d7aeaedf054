//! Schemas of all values but some: of those in a list, and of those within bounds.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::joined::{is_of_type, types};

/// Integers that are listed without some of them.
const MOST_INTEGERS: i64 = 400;

/// Ranges between multiples.
const MOST_RANGES: i64 = 100;

/// The parts of a range that are left out at each of its ends. With a bound such as 1.99 the library leaves 1.9 out,
/// which the other part brings back.
const END_PARTS: [f64; 2] = [0.01, 0.1];

/// The smallest step between multiples that are left out, and between a bound that is excluded and the next number.
const LEAST_STEP: f64 = 1e-3;

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

/// Numbers that a schema's `multipleOf` and `type` do not allow: integers that are no multiples, as a list, and numbers
/// between the multiples, as ranges. Where there is no bound they are those near to zero.
pub(super) fn not_multiples(fields: &Map<String, Value>, within: &Map<String, Value>) -> Vec<Value> {
    let of = types(within);
    let factor = fields.get("multipleOf").and_then(Value::as_f64).filter(|factor| *factor > 0.0);
    let is_whole =
        fields.contains_key("type") && !types(fields).contains(&"number") && types(fields).contains(&"integer");
    let mut ways = Vec::new();
    if of.contains(&"integer")
        && let Some(factor) = factor.filter(|factor| *factor > 1.0 && factor.fract() == 0.0)
    {
        ways.extend(other_integers(factor as i64, within));
    }
    if of.contains(&"number") {
        // All that are no integers are no multiples of one.
        let step = factor.filter(|_| !is_whole).or_else(|| is_whole.then_some(1.0));
        ways.extend(step.and_then(|step| between_multiples(step, within)));
        if let Some(factor) = factor.filter(|factor| is_whole && *factor > 1.0 && factor.fract() == 0.0) {
            ways.extend(other_integers(factor as i64, within));
        }
    }
    ways
}

fn other_integers(factor: i64, within: &Map<String, Value>) -> Option<Value> {
    let (least, most) = bounds(within, MOST_INTEGERS as f64)?;
    // Multiples that must hold beside are looked at here: lists are not compared with them later.
    let own = within.get("multipleOf").and_then(Value::as_i64).filter(|own| *own > 0);
    let is_own = |number: &i64| own.is_none_or(|own| number % own == 0);
    let (least, most) = (least.ceil() as i64, most.floor() as i64);
    let others: Vec<i64> = (least..=most).filter(|number| number % factor != 0).filter(is_own).collect();
    (!others.is_empty()).then(|| json!({ "enum": others }))
}

/// Ranges between the multiples of a number, without a part at their ends.
fn between_multiples(step: f64, within: &Map<String, Value>) -> Option<Value> {
    let (least, most) = bounds(within, step * MOST_RANGES as f64)?;
    if !(LEAST_STEP..1e9).contains(&step) || within.contains_key("multipleOf") {
        return None;
    }
    let rounded = |number: f64| (number / LEAST_STEP).round() * LEAST_STEP;
    let tidy = |number: f64| format!("{:.6}", number).parse::<f64>().unwrap_or(number);
    let first = (least / step).floor() as i64;
    let ranges = (first..first + MOST_RANGES).flat_map(|number| END_PARTS.map(|part| (number, part)));
    let ranges = ranges.filter_map(|(number, part)| {
        let (from, to) = (number as f64 * step, (number + 1) as f64 * step);
        let (from, to) = (tidy((from + step * part).max(least)), tidy((to - step * part).min(most)));
        (from <= to && rounded(from) != rounded(to))
            .then(|| json!({ "type": "number", "minimum": from, "maximum": to }))
    });
    let ranges: Vec<Value> = ranges.collect();
    (!ranges.is_empty()).then(|| json!({ "anyOf": ranges }))
}

/// The bounds of numbers of a schema, no farther from each other than `width`.
fn bounds(within: &Map<String, Value>, width: f64) -> Option<(f64, f64)> {
    let bound = |names: [&str; 2], pick: fn(f64, f64) -> f64| {
        names.into_iter().filter_map(|name| within.get(name)?.as_f64()).reduce(pick)
    };
    let least = bound(["minimum", "exclusiveMinimum"], f64::max);
    let most = bound(["maximum", "exclusiveMaximum"], f64::min);
    let (least, most) = match (least, most) {
        (Some(least), Some(most)) => (least, most.min(least + width)),
        // Numbers near to zero are wanted most.
        (Some(least), None) => {
            (least.max(0.0).min(least + width / 2.0), least.max(0.0).min(least + width / 2.0) + width / 2.0)
        }
        (None, Some(most)) => (most.min(width / 2.0) - width / 2.0, most.min(width)),
        (None, None) => (-width / 4.0, width / 4.0 * 3.0),
    };
    let excludes = |name: &str, bound: f64| within.get(name).and_then(Value::as_f64) == Some(bound);
    let sliver = |is: bool| if is { LEAST_STEP } else { 0.0 };
    let least = least + sliver(excludes("exclusiveMinimum", least));
    let most = most - sliver(excludes("exclusiveMaximum", most));
    (least <= most && least.abs().max(most.abs()) < 1e12).then_some((least, most))
}
