//! Schemas in keywords that grammars can hold answers to, for tools that are not `strict`.
//!
//! Every value of a narrowed schema is one of the client's schema; some that the client allows are lost. What has no
//! such form is left as it is, and the library leaves it out. Meanings are those of JSON Schema 2020-12.

mod excluded;
mod keys;
mod lists;
mod names;
mod patterns;
mod plain;

use std::cell::Cell;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use self::lists::{MOST_VALUES, apart, lists_of};
use self::names::NameMeans;
pub(super) use self::plain::make_plain;
use super::joined::{any, both, covers, is_of_type, requires, types};
use super::values::{referred, values_of};
use crate::constraint::parts;
use crate::regular::RegularSets;

/// How deep references and negations are followed.
const MOST_DEPTH: usize = 8;

/// Branches of which each is held apart from the others.
const MOST_BRANCHES: usize = 8;

/// A schema of which all that meets it meets the given one, in keywords that grammars hold to where that is possible.
pub(super) fn narrowed(schema: Map<String, Value>) -> Map<String, Value> {
    let root = Value::Object(schema);
    let with = |nested: usize| {
        let left = Cell::new(MOST_PARTS);
        let narrowing = Narrowing { root: &root, left, sets: RegularSets::default(), nested: Cell::new(nested) };
        match narrowing.of(root.clone()) {
            Value::Object(schema) => schema,
            // No arguments at all: the library says so.
            other => Map::from_iter([("type".to_owned(), json!("object")), ("allOf".to_owned(), json!([other]))]),
        }
    };
    let whole = with(MOST_NESTED);
    if depth(whole.values()) < MOST_LEVELS { whole } else { with(0) }
}

/// Conditions and `oneOf` within others that are spelled out: the library tries each way of one with each of another.
const MOST_NESTED: usize = 4;

/// Levels of a schema: one that has more cannot be read.
const MOST_LEVELS: usize = 120;

/// The levels of values inside of others.
fn depth<'a>(values: impl Iterator<Item = &'a Value>) -> usize {
    let of = |value: &Value| match value {
        Value::Array(items) => depth(items.iter()),
        Value::Object(fields) => depth(fields.values()),
        _ => 0,
    };
    1 + values.map(of).max().unwrap_or(0)
}

/// Parts of schemas that may be added, and looked at to find out what fails them. The rest is left as it is.
const MOST_PARTS: usize = 20_000;

struct Narrowing<'a> {
    root: &'a Value,
    /// Parts that may still be added.
    left: Cell<usize>,
    sets: RegularSets,
    /// Conditions and `oneOf` that may still be spelled out within those around.
    nested: Cell<usize>,
}

impl Narrowing<'_> {
    fn of(&self, schema: Value) -> Value {
        let Value::Object(mut fields) = schema else { return schema };
        let nested = self.nested.get();
        let has_ways = fields.contains_key("if") || fields.contains_key("oneOf");
        self.nested.set(nested.saturating_sub(usize::from(has_ways)));
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
        patterns::readable_pattern(&mut fields, &mut also, &self.sets);
        patterns::readable_keys(&mut fields, &self.sets);
        self.not(&mut fields, &mut also);
        if nested > 0 {
            self.condition(&mut fields, &mut also);
            self.one_of(&mut fields, &mut also);
        }
        keys::dependents(&mut fields, &mut also);
        self.property_names(&mut fields);
        keys::count_of_properties(&mut fields, &mut also);
        keys::unevaluated(&mut fields);
        self.contains(&mut fields);
        self.unique(&mut fields, &mut also);
        self.nested.set(nested);
        self.joined(fields, also)
    }

    /// A schema with others that hold beside it.
    fn joined(&self, mut fields: Map<String, Value>, also: Vec<Value>) -> Value {
        if !beside(&mut fields, also) {
            return Value::Bool(false);
        }
        let also = patterns::settle(&mut fields, &self.sets);
        if beside(&mut fields, also.into_iter().collect()) { Value::Object(fields) } else { Value::Bool(false) }
    }

    /// Whether so many more parts may be added; they count from then on.
    fn affords(&self, more: usize) -> bool {
        let left = self.left.get().checked_sub(more);
        self.left.set(left.unwrap_or(self.left.get()));
        left.is_some()
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
        // Both may stand in two places.
        let more: usize = ["if", "then", "else"].iter().filter_map(|name| fields.get(*name)).map(parts).sum();
        if !self.affords(2 * more) {
            return;
        }
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
        let all: usize = branches.iter().map(parts).sum();
        if !self.affords(all * branches.len()) {
            return;
        }
        let mut ways = Vec::new();
        for (at, branch) in branches.iter().enumerate() {
            let others = branches.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other);
            let others = others.filter(|other| !self.are_apart(branch, other));
            let within = merged_types(fields, branch);
            let negated: Vec<Option<Value>> = others.map(|other| self.negated(other, &within, MOST_DEPTH)).collect();
            let is_exact = negated.iter().all(Option::is_some);
            let way = match negated.into_iter().flatten().fold(branch.clone(), both) {
                Value::Object(way) => self.joined(way, Vec::new()),
                way => way,
            };
            ways.push((is_exact, way));
        }
        fields.shift_remove("oneOf");
        // A branch that may have values of another one is left out, if any other is left.
        let has_exact = ways.iter().any(|(is_exact, way)| *is_exact && *way != Value::Bool(false));
        let ways = ways.into_iter().filter(|(is_exact, _)| *is_exact || !has_exact).map(|(_, way)| way).collect();
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
        if (of_a == ["string"] || of_b == ["string"]) && patterns::are_apart(a, b, &self.sets) {
            return true;
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
        if !self.affords(1) {
            return None;
        }
        let fields = match schema {
            Value::Bool(all) => return Some(Value::Bool(!all)),
            Value::Object(fields) if fields.is_empty() => return Some(Value::Bool(false)),
            Value::Object(fields) => fields,
            _ => return None,
        };
        let depth = depth.checked_sub(1)?;
        let only_types = fields.keys().all(|name| name == "type" || name == "description" || name == "title");
        if only_types && covers(fields, within) {
            return Some(Value::Bool(false));
        }
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
        ways.extend(excluded::beyond_bounds(fields, within));
        ways.extend(excluded::not_multiples(fields, within));
        if let Some(pattern) = fields.get("pattern").and_then(Value::as_str)
            && types(within).contains(&"string")
        {
            ways.extend(patterns::without(pattern, within, &self.sets));
        }
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

    fn property_names(&self, fields: &mut Map<String, Value>) {
        let Some(keys) = fields.get("propertyNames").cloned() else { return };
        let narrowed = self.resolved(&keys).map(|keys| self.of(Value::Object(keys.clone())));
        let means = NameMeans { root: self.root, sets: &self.sets, affords: &|parts| self.affords(parts) };
        names::property_names(fields, &keys, narrowed, &means);
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
        let more = parts(&contained).saturating_add(parts(&items)).saturating_mul(least as usize + 2);
        if items.is_array() || !self.affords(more) {
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

    /// `uniqueItems`. Of few values of which some must come, the lists are spelled out.
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
        let Some(items) = fields.get("items") else { return };
        let values = self.domain(items).map(|mut values| {
            let mut seen = BTreeSet::new();
            values.retain(|value| seen.insert(value.to_string()));
            values
        });
        if least < 2 {
            // Equal items are left out as they pass.
            if let Some(values) = values.filter(|values| values.len() < most) {
                fields.insert("maxItems".to_owned(), values.len().into());
            }
            return;
        }
        let lists = values.as_ref().and_then(|values| lists_of(values, least, most));
        let Some(lists) = lists.filter(|lists| self.affords(lists.iter().map(parts).sum())) else {
            // The first items must differ for as many to be left.
            let apart = self.resolved(items).and_then(|items| apart(items, values.as_deref(), least));
            if let Some(first) = apart.filter(|first| self.affords(parts(items) * first.len())) {
                let first: Vec<Value> = first.into_iter().map(|first| both(items.clone(), first)).collect();
                fields.insert("prefixItems".to_owned(), first.into());
            }
            return;
        };
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

/// Puts schemas beside a schema. Returns whether there is any value.
fn beside(fields: &mut Map<String, Value>, mut also: Vec<Value>) -> bool {
    also.retain(|schema| *schema != Value::Bool(true));
    if also.is_empty() || also.contains(&Value::Bool(false)) {
        return also.is_empty();
    }
    if let Value::Array(all) = fields.entry("allOf").or_insert_with(|| json!([])) {
        all.extend(also);
    }
    true
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
