//! Keywords about which keys an object has: counts, keys that demand others, and what nothing evaluates.

use serde_json::{Map, Value, json};

use super::super::joined::{any, requires, types};

/// Ways in which so many keys of an object may be there.
const MOST_WAYS: usize = 20;

/// Keys that demand others, each of which may be missing.
const MOST_DEPENDENTS: usize = 4;

/// `dependentRequired`, `dependentSchemas`, and `dependencies` of earlier drafts: a key is not there, or what it
/// demands holds.
pub(super) fn dependents(fields: &mut Map<String, Value>, also: &mut Vec<Value>) {
    for name in ["dependentRequired", "dependentSchemas", "dependencies"] {
        let Some(Value::Object(all)) = fields.shift_remove(name) else { continue };
        for (key, demanded) in all {
            let demanded = match demanded {
                Value::Array(keys) => json!({ "type": "object", "required": keys }),
                schema => schema,
            };
            // Each key that may be missing doubles the ways.
            if requires(fields, &key) || also.len() >= MOST_DEPENDENTS {
                also.push(demanded);
            } else {
                also.extend(any(vec![demanded, json!({ "type": "object", "properties": { key: false } })]));
            }
        }
    }
}

/// `minProperties` and `maxProperties` of objects with keys that may be missing: which of them are there, and no
/// others.
pub(super) fn count_of_properties(fields: &mut Map<String, Value>, also: &mut Vec<Value>) {
    let count = |name: &str| fields.get(name).and_then(Value::as_u64).map(|count| count as usize);
    let (least, most) = (count("minProperties").unwrap_or(0), count("maxProperties"));
    let properties = fields.get("properties").and_then(Value::as_object);
    let named = properties.into_iter().flatten().filter(|(_, schema)| **schema != Value::Bool(false));
    let (required, optional): (Vec<&String>, Vec<&String>) =
        named.map(|(key, _)| key).partition(|key| requires(fields, key));
    if (least == 0 && most.is_none()) || optional.is_empty() {
        return;
    }
    let needed = least.saturating_sub(required.len());
    if needed > optional.len() {
        if fields.get("additionalProperties") == Some(&Value::Bool(false)) && !fields.contains_key("patternProperties")
        {
            // There are no such objects, but other values.
            let others: Vec<&str> = types(fields).into_iter().filter(|name| *name != "object").collect();
            also.push(if others.is_empty() { Value::Bool(false) } else { json!({ "type": others }) });
            fields.shift_remove("minProperties");
            return;
        }
        // All that have names are there, and others.
        let mut keys: Vec<Value> = required.iter().chain(&optional).map(|key| json!(key)).collect();
        for key in fields.get("required").and_then(Value::as_array).into_iter().flatten() {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        fields.insert("required".to_owned(), keys.into());
        return;
    }
    let kept = most.map_or(optional.len(), |most| most.saturating_sub(required.len()).min(optional.len()));
    let mut ways = Vec::new();
    // Too many ways are cut off: those that are left have the first keys.
    for there in choices(optional.len(), kept) {
        for demanded in choices(there.len(), needed) {
            let demanded: Vec<&String> = demanded.into_iter().map(|at| optional[there[at]]).collect();
            let missing = (0..optional.len()).filter(|at| !there.contains(at));
            let missing: Map<String, Value> = missing.map(|at| (optional[at].clone(), Value::Bool(false))).collect();
            ways.push(json!({ "type": "object", "required": demanded, "properties": missing }));
        }
        if ways.len() > MOST_WAYS {
            break;
        }
    }
    ways.truncate(MOST_WAYS);
    let others: Vec<&str> = types(fields).into_iter().filter(|name| *name != "object").collect();
    ways.extend((!others.is_empty()).then(|| json!({ "type": others })));
    also.push(any(ways).unwrap_or(Value::Bool(false)));
    for name in ["minProperties", "maxProperties"] {
        fields.shift_remove(name);
    }
    fields.shift_remove("patternProperties");
    fields.insert("additionalProperties".to_owned(), json!(false));
}

/// Choices of some of so many, as places in order, the first ones first; no more than can be used.
fn choices(of: usize, some: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..some {
        let longer = all.iter().flat_map(|chosen| {
            let first = chosen.last().map_or(0, |last| last + 1);
            (first..of).map(|next| [chosen.as_slice(), &[next]].concat())
        });
        all = longer.collect();
        // A choice too near to the end cannot be completed.
        all.retain(|chosen| chosen.len() + of - chosen.last().map_or(0, |last| last + 1) >= some);
        all.truncate(MOST_WAYS);
    }
    all
}

/// `unevaluatedProperties: false` and `unevaluatedItems: false`, where one schema or several that all hold say what is
/// evaluated.
pub(super) fn unevaluated(fields: &mut Map<String, Value>) {
    let others = ["anyOf", "oneOf", "$ref", "if", "dependentSchemas", "$dynamicRef"];
    if others.iter().any(|name| fields.contains_key(*name)) {
        return;
    }
    if fields.get("unevaluatedProperties") == Some(&Value::Bool(false)) {
        let parts = fields.get("allOf").and_then(Value::as_array).cloned().unwrap_or_default();
        let is_plain = |part: &Value| {
            part.as_object().is_some_and(|part| {
                part.keys().all(|name| ["type", "properties", "required", "description"].contains(&name.as_str()))
            })
        };
        if fields.contains_key("patternProperties") || !parts.iter().all(is_plain) {
            return;
        }
        fields.shift_remove("unevaluatedProperties");
        if let Value::Object(named) = fields.entry("properties").or_insert_with(|| json!({})) {
            let keys = parts.iter().filter_map(|part| part.get("properties")?.as_object());
            for key in keys.flat_map(Map::keys) {
                named.entry(key).or_insert(Value::Bool(true));
            }
        }
        fields.entry("additionalProperties").or_insert(json!(false));
    }
    if fields.get("unevaluatedItems") == Some(&Value::Bool(false)) && !fields.contains_key("allOf") {
        fields.shift_remove("unevaluatedItems");
        fields.entry("items").or_insert(json!(false));
    }
}
