//! Schemas in keywords that grammars can hold answers to, for tools that are not `strict`.
//!
//! Every value of a narrowed schema is one of the client's schema; some that the client allows are lost. What has no
//! such form is left as it is, and the library leaves it out. Meanings are those of JSON Schema 2020-12.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::excluded;
use super::values::{referred, values_of};

/// How deep references and negations are followed.
const MOST_DEPTH: usize = 8;

/// Values of which a list without equals is spelled out.
const MOST_VALUES: usize = 9;

/// Lists that are spelled out.
const MOST_LISTS: usize = 400;

/// Branches of which each is held apart from the others.
const MOST_BRANCHES: usize = 8;

/// The narrowed schema of arguments.
pub(super) fn narrowed(schema: Map<String, Value>) -> Map<String, Value> {
    let root = Value::Object(schema.clone());
    match (Narrowing { root: &root }).of(Value::Object(schema)) {
        Value::Object(schema) => schema,
        // No arguments at all: the library says so.
        other => Map::from_iter([("type".to_owned(), json!("object")), ("allOf".to_owned(), json!([other]))]),
    }
}

/// The schema whose values are those of both.
pub(super) fn both(a: Value, b: Value) -> Value {
    let is_any = |schema: &Value| *schema == Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty);
    match (a, b) {
        (Value::Bool(false), _) | (_, Value::Bool(false)) => Value::Bool(false),
        (a, b) if a == b || is_any(&b) => a,
        (a, b) if is_any(&a) => b,
        (a, b) => json!({ "allOf": [a, b] }),
    }
}

/// The schema whose values are those of any.
fn any(mut schemas: Vec<Value>) -> Option<Value> {
    schemas.retain(|schema| *schema != Value::Bool(false));
    match schemas.len() {
        0 => None,
        1 => schemas.pop(),
        _ => Some(json!({ "anyOf": schemas })),
    }
}

/// The types that a schema names, or all.
pub(super) fn types(schema: &Map<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec!["null", "boolean", "number", "string", "array", "object"],
    }
}

/// Keys that demand others, each of which may be missing.
const MOST_DEPENDENTS: usize = 4;

/// Ways in which so many keys of an object may be there.
const MOST_WAYS: usize = 20;

struct Narrowing<'a> {
    root: &'a Value,
}

impl Narrowing<'_> {
    fn of(&self, schema: Value) -> Value {
        let Value::Object(mut fields) = schema else { return schema };
        for (name, value) in &mut fields {
            let inside = std::mem::take(value);
            *value = match (name.as_str(), inside) {
                (
                    "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                    Value::Object(named),
                ) => named.into_iter().map(|(key, schema)| (key, self.of(schema))).collect(),
                ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(listed)) => {
                    listed.into_iter().map(|schema| self.of(schema)).collect()
                }
                (
                    "items" | "additionalProperties" | "additionalItems" | "contains" | "then" | "else",
                    inside @ Value::Object(_),
                ) => self.of(inside),
                // The negation of what is narrower would be wider.
                (_, inside) => inside,
            };
        }
        // Schemas that hold beside the others.
        let mut also = Vec::new();
        self.not(&mut fields, &mut also);
        self.condition(&mut fields, &mut also);
        self.one_of(&mut fields, &mut also);
        dependents(&mut fields, &mut also);
        self.property_names(&mut fields);
        count_of_properties(&mut fields, &mut also);
        unevaluated(&mut fields);
        self.contains(&mut fields);
        self.unique(&mut fields, &mut also);
        also.retain(|schema| *schema != Value::Bool(true));
        if also.contains(&Value::Bool(false)) {
            return Value::Bool(false);
        }
        if !also.is_empty() {
            let all = fields.entry("allOf").or_insert_with(|| json!([]));
            if let Value::Array(all) = all {
                all.extend(also);
            }
        }
        Value::Object(fields)
    }

    fn not(&self, fields: &mut Map<String, Value>, also: &mut Vec<Value>) {
        if let Some(negated) = fields.get("not").and_then(|not| self.negated(not, fields, MOST_DEPTH)) {
            also.push(negated);
            fields.shift_remove("not");
        }
    }

    /// `if`, `then` and `else`: the first two hold, or the last one and not the first.
    fn condition(&self, fields: &mut Map<String, Value>, also: &mut Vec<Value>) {
        let Some(condition) = fields.get("if").cloned() else { return };
        let [then, other] = ["then", "else"].map(|name| fields.get(name).cloned().unwrap_or(Value::Bool(true)));
        let holds = both(self.of(condition.clone()), then.clone());
        let or = match self.negated(&condition, fields, MOST_DEPTH) {
            Some(negated) => both(negated, other),
            // Whether it holds or not, both do.
            None => both(then, other),
        };
        for name in ["if", "then", "else"] {
            fields.shift_remove(name);
        }
        also.push(any(vec![holds, or]).unwrap_or(Value::Bool(false)));
    }

    /// `oneOf` whose branches may have values in common: one branch, and not the others.
    fn one_of(&self, fields: &mut Map<String, Value>, also: &mut Vec<Value>) {
        let Some(branches) = fields.get("oneOf").and_then(Value::as_array) else { return };
        let pairs = branches.iter().enumerate().flat_map(|(at, a)| branches[..at].iter().map(move |b| (a, b)));
        if branches.len() > MOST_BRANCHES || pairs.into_iter().all(|(a, b)| self.are_apart(a, b)) {
            return;
        }
        let mut ways = Vec::new();
        for (at, branch) in branches.iter().enumerate() {
            let others = branches.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other);
            let others = others.filter(|other| !self.are_apart(branch, other));
            let within = merged_types(fields, branch);
            let negated = others.filter_map(|other| self.negated(other, &within, MOST_DEPTH));
            ways.push(negated.fold(branch.clone(), both));
        }
        fields.shift_remove("oneOf");
        also.push(any(ways).unwrap_or(Value::Bool(false)));
    }

    /// Whether two schemas have certainly no value in common.
    fn are_apart(&self, a: &Value, b: &Value) -> bool {
        let (Some(a), Some(b)) = (self.resolved(a), self.resolved(b)) else { return false };
        let (of_a, of_b) = (types(a), types(b));
        let is_number = |name: &str| name == "integer" || name == "number";
        if !of_a.iter().any(|x| of_b.iter().any(|y| x == y || (is_number(x) && is_number(y)))) {
            return true;
        }
        if let (Some(a), Some(b)) = (values_of(a), values_of(b)) {
            return a.iter().all(|value| !b.contains(value));
        }
        let key_of = |schema: &Map<String, Value>, key: &str| {
            let required = schema.get("required").and_then(Value::as_array);
            let is_required = required.is_some_and(|keys| keys.iter().any(|k| k == key));
            let values = schema.get("properties")?.get(key)?.as_object().and_then(values_of)?;
            is_required.then(|| values.into_iter().cloned().collect::<Vec<_>>())
        };
        let keys = a.get("properties").and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key);
        keys.into_iter().any(|key| match (key_of(a, key), key_of(b, key)) {
            (Some(a), Some(b)) => a.iter().all(|value| !b.contains(value)),
            _ => false,
        })
    }

    /// The fields of a schema, or of what it refers to.
    fn resolved<'s>(&'s self, schema: &'s Value) -> Option<&'s Map<String, Value>> {
        let fields = schema.as_object()?;
        referred(fields, self.root).map_or(Some(fields), Value::as_object)
    }

    /// A schema that has no value of this one. `within` holds of the values as well.
    fn negated(&self, schema: &Value, within: &Map<String, Value>, depth: usize) -> Option<Value> {
        let fields = match schema {
            Value::Bool(all) => return Some(Value::Bool(!all)),
            Value::Object(fields) if fields.is_empty() => return Some(Value::Bool(false)),
            Value::Object(fields) => fields,
            _ => return None,
        };
        let depth = depth.checked_sub(1)?;
        // A value need only fail one keyword.
        let mut ways = Vec::new();
        if let Some(values) = values_of(fields) {
            ways.extend(excluded::values(&values, self.domain(&Value::Object(within.clone())), within));
        }
        if fields.contains_key("type") {
            let named = types(fields);
            let others = types(within).into_iter().filter(|name| !named.contains(name));
            let others: Vec<&str> = others.filter(|name| !(*name == "integer" && named.contains(&"number"))).collect();
            // A number may be an integer.
            let others: Vec<&str> =
                others.into_iter().filter(|name| !(*name == "number" && named.contains(&"integer"))).collect();
            ways.extend((!others.is_empty()).then(|| json!({ "type": others })));
        }
        if types(within).contains(&"object") {
            for key in fields.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
            {
                if !requires(within, key) {
                    ways.push(json!({ "type": "object", "properties": { key: false } }));
                }
            }
            for (key, schema) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
                let own = within.get("properties").and_then(|all| all.get(key)).and_then(|own| self.resolved(own));
                let empty = Map::new();
                if let Some(negated) = self.negated(schema, own.unwrap_or(&empty), depth)
                    && negated != Value::Bool(false)
                {
                    ways.push(json!({ "type": "object", "required": [key], "properties": { key: negated } }));
                }
            }
        }
        ways.extend(beyond_bounds(fields, within));
        for branch in fields.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            ways.extend(self.negated(branch, within, depth));
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(branches) = fields.get(name).and_then(Value::as_array) {
                let negated: Option<Vec<Value>> =
                    branches.iter().map(|branch| self.negated(branch, within, depth)).collect();
                ways.extend(negated.map(|all| all.into_iter().fold(Value::Bool(true), both)));
            }
        }
        ways.extend(fields.get("not").map(|not| self.of(not.clone())));
        ways.extend(referred(fields, self.root).and_then(|schema| self.negated(schema, within, depth)));
        any(ways)
    }

    /// `propertyNames`: keys that no schema names are those of a pattern.
    fn property_names(&self, fields: &mut Map<String, Value>) {
        let Some(names) = fields.get("propertyNames") else { return };
        let other = fields.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        let is_open = other != Value::Bool(false) && !fields.contains_key("patternProperties");
        let Some(names) = self.resolved(names).cloned() else { return };
        let bound = |name: &str| names.get(name).and_then(Value::as_u64);
        let mut added = Map::new();
        if let Some(values) = values_of(&names) {
            let values: Vec<&str> = values.into_iter().filter_map(Value::as_str).collect();
            if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
                properties.iter_mut().filter(|(key, _)| !values.contains(&key.as_str())).for_each(|(_, schema)| {
                    *schema = Value::Bool(false);
                });
            }
            if is_open {
                let named = fields.entry("properties").or_insert_with(|| json!({}));
                for value in values {
                    if let Value::Object(named) = named {
                        named.entry(value).or_insert_with(|| other.clone());
                    }
                }
                added.insert("additionalProperties".to_owned(), json!(false));
            }
        } else if is_open && let Some(pattern) = names.get("pattern").and_then(Value::as_str) {
            added.insert("patternProperties".to_owned(), json!({ pattern: other }));
            added.insert("additionalProperties".to_owned(), json!(false));
        } else if is_open && (names.contains_key("minLength") || names.contains_key("maxLength")) {
            let most = bound("maxLength").map(|most| most.to_string()).unwrap_or_default();
            let pattern = format!("^[A-Za-z_]{{{},{most}}}$", bound("minLength").unwrap_or(0));
            added.insert("patternProperties".to_owned(), json!({ pattern: other }));
            added.insert("additionalProperties".to_owned(), json!(false));
        } else if is_open {
            return;
        }
        fields.shift_remove("propertyNames");
        fields.extend(added);
    }

    /// `contains`: the first items are such.
    fn contains(&self, fields: &mut Map<String, Value>) {
        let Some(contained) = fields.get("contains").cloned() else { return };
        let count = |name: &str| fields.get(name).and_then(Value::as_u64);
        let (least, most) = (count("minContains").unwrap_or(1), count("maxContains"));
        if least > MOST_VALUES as u64 {
            return;
        }
        let items = fields.get("items").cloned().unwrap_or(Value::Bool(true));
        if items.is_array() {
            return;
        }
        let mut first = fields.get("prefixItems").and_then(Value::as_array).cloned().unwrap_or_default();
        let least = least as usize;
        while first.len() < least {
            first.push(items.clone());
        }
        for item in first.iter_mut().take(least) {
            *item = both(std::mem::take(item), contained.clone());
        }
        let empty = Map::new();
        if most.is_some() {
            let within = items.as_object().unwrap_or(&empty);
            let Some(others) = self.negated(&contained, within, MOST_DEPTH) else { return };
            for item in first.iter_mut().skip(least) {
                *item = both(std::mem::take(item), others.clone());
            }
            fields.insert("items".to_owned(), both(items, others));
        }
        if least > 0 {
            let at_least = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0).max(least as u64);
            fields.insert("minItems".to_owned(), at_least.into());
        }
        if !first.is_empty() {
            fields.insert("prefixItems".to_owned(), first.into());
        }
        for name in ["contains", "minContains", "maxContains"] {
            fields.shift_remove(name);
        }
    }

    /// `uniqueItems` of few values: the lists of them, in any order as long as there are not too many.
    fn unique(&self, fields: &mut Map<String, Value>, also: &mut Vec<Value>) {
        if fields.get("uniqueItems") != Some(&Value::Bool(true)) || fields.contains_key("prefixItems") {
            return;
        }
        let bound = |name: &str| fields.get(name).and_then(Value::as_u64).map(|bound| bound as usize);
        let (least, most) = (bound("minItems").unwrap_or(0), bound("maxItems").unwrap_or(usize::MAX));
        if most < 2 {
            fields.shift_remove("uniqueItems");
            return;
        }
        let Some(mut values) = fields.get("items").and_then(|items| self.domain(items)) else { return };
        let mut seen = BTreeSet::new();
        values.retain(|value| seen.insert(value.to_string()));
        let Some(lists) = lists_of(&values, least, most) else { return };
        let others: Vec<&str> = types(fields).into_iter().filter(|name| *name != "array").collect();
        let mut ways = vec![json!({ "enum": lists })];
        ways.extend((!others.is_empty()).then(|| json!({ "type": others })));
        also.push(any(ways).unwrap_or(Value::Bool(false)));
        for name in ["items", "uniqueItems", "minItems", "maxItems"] {
            fields.shift_remove(name);
        }
    }

    /// All values of a schema, where they are few.
    fn domain(&self, schema: &Value) -> Option<Vec<Value>> {
        let fields = self.resolved(schema)?;
        let named = types(fields);
        if let Some(values) = values_of(fields) {
            let is_of = |value: &Value| named.iter().any(|name| is_of_type(value, name));
            return Some(values.into_iter().filter(|value| is_of(value)).cloned().collect());
        }
        if let Some(branches) = fields.get("anyOf").and_then(Value::as_array)
            && fields.keys().all(|name| name == "anyOf")
        {
            let all: Option<Vec<Vec<Value>>> = branches.iter().map(|branch| self.domain(branch)).collect();
            return all.map(|all| all.concat());
        }
        match named.as_slice() {
            ["boolean"] => Some(vec![json!(true), json!(false)]),
            ["null"] => Some(vec![Value::Null]),
            ["integer"] if !fields.contains_key("multipleOf") => {
                let least = fields.get("minimum").and_then(Value::as_i64)?;
                let most = fields.get("maximum").and_then(Value::as_i64)?;
                let is_exclusive = fields.keys().any(|name| name.starts_with("exclusive"));
                let few = most.checked_sub(least).is_some_and(|apart| apart < MOST_VALUES as i64);
                (few && !is_exclusive).then(|| (least..=most).map(Value::from).collect())
            }
            _ => None,
        }
    }
}

fn requires(schema: &Map<String, Value>, key: &str) -> bool {
    schema.get("required").and_then(Value::as_array).is_some_and(|keys| keys.iter().any(|name| name == key))
}

/// Whether a value is of a type.
pub(super) fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

/// A branch with the types and properties of the schema around it, as what is said of its values.
fn merged_types(fields: &Map<String, Value>, branch: &Value) -> Map<String, Value> {
    let mut within = branch.as_object().cloned().unwrap_or_default();
    for name in ["type", "properties"] {
        if let Some(value) = fields.get(name) {
            within.entry(name).or_insert_with(|| value.clone());
        }
    }
    within
}

/// Values outside of the bounds of a schema.
fn beyond_bounds(fields: &Map<String, Value>, within: &Map<String, Value>) -> Vec<Value> {
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
            ways.push(json!({ "type": kind, least: bound + 1 }));
        }
    }
    ways
}

/// `dependentRequired`, `dependentSchemas`, and `dependencies` of earlier drafts: a key is not there, or what it
/// demands holds.
fn dependents(fields: &mut Map<String, Value>, also: &mut Vec<Value>) {
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

/// `minProperties` and `maxProperties` of objects with keys that may be missing: which of them are there, and no others.
fn count_of_properties(fields: &mut Map<String, Value>, also: &mut Vec<Value>) {
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
        // Others would have to come, and they may come twice.
        fields.shift_remove("minProperties");
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
fn unevaluated(fields: &mut Map<String, Value>) {
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

/// Lists of different values: in any order, or in the order of the values where those are too many.
fn lists_of(values: &[Value], least: usize, most: usize) -> Option<Vec<Value>> {
    let most = most.min(values.len());
    if values.len() > MOST_VALUES {
        return None;
    }
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut last: Vec<Vec<usize>> = vec![Vec::new()];
    let mut in_order = false;
    for length in 0..=most {
        if length >= least {
            all.extend(last.iter().cloned());
        }
        if all.len() + last.len() > MOST_LISTS {
            in_order = true;
            break;
        }
        last = last
            .iter()
            .flat_map(|list| {
                let others = (0..values.len()).filter(|value| !list.contains(value));
                others.map(|value| [list.as_slice(), &[value]].concat()).collect::<Vec<_>>()
            })
            .collect();
    }
    if in_order {
        let of = |set: u32| (0..values.len()).filter(move |value| set & (1 << value) != 0).collect::<Vec<_>>();
        let sets = (0..1_u32 << values.len()).map(of);
        all = sets.filter(|set| (least..=most).contains(&set.len())).collect();
    }
    (!all.is_empty()).then(|| all.iter().map(|list| list.iter().map(|at| values[*at].clone()).collect()).collect())
}
