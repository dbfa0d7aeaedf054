//! `propertyNames`: the keys that an object may have.

use serde_json::{Map, Value, json};

use super::super::holds::{holds, is_found};
use super::super::values::values_of;
use super::patterns;
use crate::constraint::parts;
use crate::regular::{Regular, RegularSets};

/// Letters of a key that is held to its length.
const MOST_LETTERS: u64 = 200;

/// Keys of a pattern that are spelled out, where several must come: equal ones would count as one.
const MOST_SPELLED: usize = 12;

/// Means by which names are narrowed.
pub(super) struct NameMeans<'a> {
    /// The whole schema.
    pub(super) root: &'a Value,
    pub(super) sets: &'a RegularSets,
    /// Whether so many more parts may be added.
    pub(super) affords: &'a dyn Fn(usize) -> bool,
}

/// Named properties whose keys are not allowed are missing, and keys that no schema names are those of a pattern.
/// `keys` is the schema of keys, and `narrowed` the same in keywords that grammars hold to.
pub(super) fn property_names(
    fields: &mut Map<String, Value>,
    keys: &Value,
    narrowed: Option<Value>,
    means: &NameMeans<'_>,
) {
    if let Some(Value::Object(named)) = fields.get_mut("properties") {
        let is_allowed = |key: &str| holds(&Value::from(key), keys, means.root) != Some(false);
        named.iter_mut().filter(|(key, _)| !is_allowed(key)).for_each(|(_, schema)| *schema = Value::Bool(false));
    }
    let other = fields.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    if other == Value::Bool(false) && !fields.contains_key("patternProperties") {
        fields.shift_remove("propertyNames");
        return;
    }
    let Some(keys) = narrowed else { return };
    let Value::Object(keys) = keys else {
        // No key is allowed.
        fields.insert("additionalProperties".to_owned(), json!(false));
        fields.shift_remove("patternProperties");
        return;
    };
    // Texts that stand for a pattern are listed beside.
    let beside = keys.get("allOf").and_then(Value::as_array).and_then(|all| all.first()?.as_object());
    let keys = beside.filter(|beside| beside.contains_key("enum")).unwrap_or(&keys);
    let pattern = patterns::of_texts(keys, means.sets);
    let least = fields.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    let spelled = pattern.as_ref().filter(|_| least > 1);
    let spelled = spelled.and_then(|pattern| means.sets.all_texts(pattern, MOST_SPELLED));
    let listed = values_of(keys);
    let listed = listed.map(|values| values.into_iter().filter_map(Value::as_str).map(str::to_owned).collect());
    match (listed.or(spelled), pattern.or_else(|| of_length(keys))) {
        (Some(listed), _) => spell(means, fields, listed, &other),
        (None, Some(pattern)) => hold(means, fields, pattern, other),
        _ => {}
    }
}

/// Names all keys that there may be.
fn spell(means: &NameMeans<'_>, fields: &mut Map<String, Value>, keys: Vec<String>, other: &Value) {
    let of_patterns = fields.get("patternProperties").and_then(Value::as_object).cloned().unwrap_or_default();
    let largest = of_patterns.values().chain([other]).map(parts).sum::<usize>();
    if !(means.affords)(keys.len().saturating_mul(largest)) {
        return;
    }
    let mut named = Map::new();
    for key in keys {
        let found = of_patterns.iter().map(|(pattern, schema)| Some((is_found(pattern, &key)?, schema)));
        let Some(found) = found.collect::<Option<Vec<_>>>() else { return };
        let schemas: Vec<&Value> = found.into_iter().filter(|(is, _)| *is).map(|(_, schema)| schema).collect();
        let schema = match schemas.as_slice() {
            [] => other.clone(),
            [only] => (*only).clone(),
            several => json!({ "allOf": several }),
        };
        named.insert(key, schema);
    }
    if let Value::Object(properties) = fields.entry("properties").or_insert_with(|| json!({})) {
        for (key, schema) in named {
            properties.entry(key).or_insert(schema);
        }
    }
    fields.insert("additionalProperties".to_owned(), json!(false));
    fields.shift_remove("patternProperties");
    fields.shift_remove("propertyNames");
}

/// Holds the keys that no schema names to a pattern.
fn hold(means: &NameMeans<'_>, fields: &mut Map<String, Value>, pattern: String, other: Value) {
    let Some(Value::Object(of_patterns)) = fields.get("patternProperties") else {
        fields.insert("patternProperties".to_owned(), json!({ pattern: other }));
        fields.insert("additionalProperties".to_owned(), json!(false));
        fields.shift_remove("propertyNames");
        return;
    };
    // No two of them have a key in common.
    let mut both = Map::new();
    for (own, schema) in of_patterns {
        match means.sets.meeting(&[(own, true), (&pattern, true)]) {
            Regular::Pattern(plain) => drop(both.insert(plain, schema.clone())),
            Regular::Nothing => {}
            Regular::Unknown => return,
        }
    }
    if other != Value::Bool(false) {
        let without = of_patterns.keys().map(|own| (own.as_str(), false));
        match means.sets.meeting(&without.chain([(pattern.as_str(), true)]).collect::<Vec<_>>()) {
            Regular::Pattern(plain) => drop(both.insert(plain, other)),
            Regular::Nothing => {}
            Regular::Unknown => return,
        }
    }
    fields.insert("patternProperties".to_owned(), both.into());
    fields.insert("additionalProperties".to_owned(), json!(false));
    fields.shift_remove("propertyNames");
}

/// A pattern of keys that are held to a length.
fn of_length(keys: &Map<String, Value>) -> Option<String> {
    let bound = |name: &str| keys.get(name).and_then(Value::as_u64);
    let (least, most) = (bound("minLength"), bound("maxLength"));
    least.or(most)?;
    let (least, most) = (least.unwrap_or(0), most.unwrap_or(MOST_LETTERS).min(MOST_LETTERS));
    (least <= most).then(|| format!("^[A-Za-z_]{{{least},{most}}}$"))
}
