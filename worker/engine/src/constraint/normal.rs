//! Schemas in the spelling that the library reads. Others mean the same in JSON Schema: references with escapes or by
//! names, whole numbers with a point, and bounds beyond all numbers that answers have.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::formats::followed;

/// Keywords whose values are no schemas.
pub(super) const DATA: [&str; 5] = ["enum", "const", "default", "examples", "example"];

/// Keywords that count.
const COUNTS: [&str; 8] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"];

/// The largest bound of numbers that the library reads, rounded down. Answers have few numbers beyond it, and lose
/// them.
const LARGEST: f64 = 1e18;

/// The part of a range that is left out beside a whole number that is excluded, where the range is smaller than 1.
const LEAST_PART: f64 = 1e-6;

/// Parts of a schema that are looked at for names, and of all definitions that are added.
const MOST_PARTS: usize = 20_000;

/// Definitions that are added.
const MOST_NAMES: usize = 512;

/// The same schema in the library's spelling.
///
/// Errors: a reference that leads out of the schema, in words.
pub(crate) fn normalised(schema: Map<String, Value>) -> Result<Map<String, Value>, String> {
    let root = Value::Object(schema);
    let base = root.get("$id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut references = References { root: &root, base, names: BTreeMap::new(), left: Vec::new(), parts: 0 };
    let mut whole = references.of(root.clone())?;
    let mut added = Map::new();
    while let Some((key, target)) = references.left.pop() {
        added.insert(key, references.of(target)?);
    }
    if let (Value::Object(whole), false) = (&mut whole, added.is_empty())
        && let Value::Object(definitions) = whole.entry("$defs").or_insert_with(|| json!({}))
    {
        definitions.extend(added);
    }
    match whole {
        Value::Object(whole) => Ok(whole),
        _ => Ok(Map::new()),
    }
}

struct References<'a> {
    root: &'a Value,
    /// The schema's own identifier.
    base: String,
    /// Definitions that were added, by the reference that asked for them.
    names: BTreeMap<String, String>,
    /// Definitions that were added and not looked at yet, with their keys.
    left: Vec<(String, Value)>,
    /// Parts of all added definitions.
    parts: usize,
}

impl References<'_> {
    fn of(&mut self, schema: Value) -> Result<Value, String> {
        match schema {
            Value::Array(values) => values.into_iter().map(|value| self.of(value)).collect(),
            Value::Object(mut fields) => {
                whole_counts(&mut fields);
                near_bounds(&mut fields);
                followed(&mut fields);
                self.fixed_reference(&mut fields);
                for (name, value) in &mut fields {
                    let inside = value.take();
                    *value = match inside {
                        Value::String(reference) if name == "$ref" => self.reference(reference)?.into(),
                        inside if DATA.contains(&name.as_str()) => inside,
                        inside => self.of(inside)?,
                    };
                }
                Ok(fields.into())
            }
            other => Ok(other),
        }
    }

    /// A dynamic reference that can lead to one schema only, as a plain one.
    fn fixed_reference(&self, fields: &mut Map<String, Value>) {
        let Some(Value::String(reference)) = fields.get("$dynamicRef") else { return };
        let is_it = |fields: &Map<String, Value>| {
            let is = |name: &str| fields.get(name).and_then(Value::as_str).is_some_and(|own| reference[1..] == *own);
            is("$dynamicAnchor") || is("$anchor")
        };
        let is_plain = reference == "#" || reference.starts_with("#/");
        if !fields.contains_key("$ref")
            && (is_plain || (reference.starts_with('#') && all_named(self.root, &is_it, 2).len() == 1))
            && let Some(reference) = fields.shift_remove("$dynamicRef")
        {
            fields.insert("$ref".to_owned(), reference);
        }
    }

    /// A reference that the library finds. It knows neither escapes nor names.
    fn reference(&mut self, reference: String) -> Result<String, String> {
        let own = reference.strip_prefix(&self.base).filter(|rest| !self.base.is_empty() && rest.starts_with(['#']));
        let local = match own {
            Some(local) => local.to_owned(),
            None if !self.base.is_empty() && reference == self.base => "#".to_owned(),
            None => reference.clone(),
        };
        if local == "#" || (local.starts_with("#/") && !local.contains(['~', '%'])) {
            return Ok(local);
        }
        if let Some(name) = self.names.get(&local) {
            return Ok(name.clone());
        }
        let Some(target) = self.target(&local) else {
            return Err(format!(
                "'$ref': {reference:?} leads to nothing in the schema; other documents are not fetched"
            ));
        };
        let key = format!("model-boss-{}", self.names.len());
        let name = format!("#/$defs/{key}");
        self.parts += parts(&target);
        if self.names.len() >= MOST_NAMES || self.parts > MOST_PARTS {
            return Err("'$ref': too much is referred to by escapes or names".to_owned());
        }
        self.names.insert(local, name.clone());
        self.left.push((key, target));
        Ok(name)
    }

    fn target(&self, local: &str) -> Option<Value> {
        match local.strip_prefix('#') {
            Some(pointer) if pointer.starts_with('/') => self.root.pointer(&unescaped(pointer)?).cloned(),
            Some(anchor) => named(self.root, &|fields| {
                ["$anchor", "$dynamicAnchor"].iter().any(|name| fields.get(*name).is_some_and(|name| name == anchor))
            }),
            None => {
                let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
                let is_it = |name: &str| name == local || (!local.contains(':') && last(name) == last(local));
                named(self.root, &|fields| fields.get("$id").and_then(Value::as_str).is_some_and(is_it))
            }
        }
    }
}

/// Values in a value, with itself.
pub(crate) fn parts(value: &Value) -> usize {
    let inside: usize = match value {
        Value::Object(fields) => fields.values().map(parts).sum(),
        Value::Array(values) => values.iter().map(parts).sum(),
        _ => 0,
    };
    inside + 1
}

/// A text whose escapes of percent signs (RFC 3986) are undone.
fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// The first schema within a schema that a name belongs to.
fn named(schema: &Value, is_it: &dyn Fn(&Map<String, Value>) -> bool) -> Option<Value> {
    all_named(schema, is_it, 1).pop().cloned()
}

/// Some schemas within a schema that a name belongs to.
fn all_named<'a>(schema: &'a Value, is_it: &dyn Fn(&Map<String, Value>) -> bool, most: usize) -> Vec<&'a Value> {
    let mut left = vec![schema];
    let (mut seen, mut found) = (0, Vec::new());
    while let Some(value) = left.pop() {
        seen += 1;
        if let Value::Object(fields) = value
            && is_it(fields)
        {
            found.push(value);
        }
        if seen > MOST_PARTS || found.len() >= most {
            break;
        }
        match value {
            Value::Object(fields) => {
                left.extend(fields.iter().filter(|(name, _)| !DATA.contains(&name.as_str())).map(|(_, value)| value));
            }
            Value::Array(values) => left.extend(values),
            _ => {}
        }
    }
    found
}

/// Counts such as 1.0 as 1.
fn whole_counts(fields: &mut Map<String, Value>) {
    for name in COUNTS {
        let count = fields.get(name).filter(|count| !count.is_u64()).and_then(Value::as_f64);
        if let Some(count) = count.filter(|count| count.fract() == 0.0 && (0.0..LARGEST).contains(count)) {
            fields.insert(name.to_owned(), (count as u64).into());
        }
    }
}

/// Bounds of numbers that the library can follow. A whole number that is excluded as a bound, beside a bound that is
/// nearer than 1, would be let through.
fn near_bounds(fields: &mut Map<String, Value>) {
    if fields.get("type").is_some_and(|kind| kind == "integer") {
        return;
    }
    for name in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
        let bound = fields.get(name).and_then(Value::as_f64);
        let is_lower = name.ends_with("inimum");
        match bound {
            Some(bound) if is_lower && bound < -LARGEST => fields.insert(name.to_owned(), json!(-LARGEST)),
            Some(bound) if !is_lower && bound > LARGEST => fields.insert(name.to_owned(), json!(LARGEST)),
            _ => None,
        };
    }
    let bound = |name: &str| fields.get(name).and_then(Value::as_f64);
    let tighter = |a: Option<f64>, b: Option<f64>, pick: fn(f64, f64) -> f64| match (a, b) {
        (Some(a), Some(b)) => Some(pick(a, b)),
        (a, b) => a.or(b),
    };
    let upper = tighter(bound("maximum"), bound("exclusiveMaximum"), f64::min);
    let lower = tighter(bound("minimum"), bound("exclusiveMinimum"), f64::max);
    let (Some(lower), Some(upper)) = (lower, upper) else { return };
    let sliver = (upper - lower) * LEAST_PART;
    if !(0.0 < sliver && sliver < LEAST_PART) {
        return;
    }
    let is_excluded =
        |name: &str, bound: f64| fields.get(name).and_then(Value::as_f64) == Some(bound) && bound.fract() == 0.0;
    if is_excluded("exclusiveMinimum", lower) {
        fields.shift_remove("exclusiveMinimum");
        fields.insert("minimum".to_owned(), json!(lower + sliver));
    } else if is_excluded("exclusiveMaximum", upper) {
        fields.shift_remove("exclusiveMaximum");
        fields.insert("maximum".to_owned(), json!(upper - sliver));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: Value) -> Result<Value, String> {
        normalised(schema.as_object().unwrap().clone()).map(Value::Object)
    }

    #[test]
    fn en_6_references_with_escapes_and_names_are_found() {
        let schema = json!({
            "$id": "https://a.example/root",
            "properties": {
                "a": {"$ref": "#/definitions/x~1y"}, "b": {"$ref": "#/definitions/List%3Cstring%3E"},
                "c": {"$ref": "#zz"}, "d": {"$ref": "https://a.example/root#/definitions/plain"}, "e": {"$ref": "item"},
                "f": {"$ref": "https://a.example/root"}, "g": {"$ref": "#/definitions/x~1y"},
            },
            "definitions": {
                "x/y": {"type": "boolean"}, "List<string>": {"items": {"$ref": "#/definitions/List%3Cstring%3E"}},
                "anchored": {"$anchor": "zz", "const": "$ref"}, "plain": {}, "item": {"$id": "item", "type": "null"},
            },
        });
        let made = of(schema).unwrap();
        let target = |key: &str| {
            let reference = made["properties"][key]["$ref"].as_str().unwrap();
            made.pointer(&reference[1..]).unwrap_or_else(|| panic!("{reference}")).clone()
        };
        assert_eq!((target("a"), target("g")), (json!({"type": "boolean"}), json!({"type": "boolean"})));
        assert_eq!(target("b")["items"]["$ref"], made["properties"]["b"]["$ref"], "it refers to itself");
        assert_eq!(
            (target("c"), target("e")["type"].clone()),
            (json!({"$anchor": "zz", "const": "$ref"}), json!("null"))
        );
        assert_eq!(
            (&made["properties"]["d"]["$ref"], &made["properties"]["f"]["$ref"]),
            (&json!("#/definitions/plain"), &json!("#"))
        );
        for reference in ["https://b.example/x", "#nowhere", "#/definitions/no%20ne", "#/%zz"] {
            let refused = of(json!({"$ref": reference})).unwrap_err();
            assert!(refused.contains(reference) && refused.contains("'$ref'"), "{refused}");
        }
    }

    #[test]
    fn en_6_dynamic_references_to_one_schema_are_plain_ones() {
        let schema = json!({
            "properties": {"a": {"$dynamicRef": "#x"}, "b": {"$dynamicRef": "#y"}, "c": {"$dynamicRef": "#"}},
            "$defs": {"x": {"$dynamicAnchor": "x", "type": "null"}, "y": {"$dynamicAnchor": "y"}, "z": {"$anchor": "y"}},
        });
        let made = of(schema).unwrap();
        let target = made["properties"]["a"]["$ref"].as_str().unwrap();
        assert_eq!(made.pointer(&target[1..]).unwrap()["type"], json!("null"));
        assert_eq!(made["properties"]["b"], json!({"$dynamicRef": "#y"}), "either may be meant");
        assert_eq!(made["properties"]["c"], json!({"$ref": "#"}));
    }

    #[test]
    fn en_6_counts_and_bounds_are_those_that_the_library_reads() {
        let schema = json!({"minLength": 1.0, "maxItems": 2, "minItems": 1.5, "enum": [{"minLength": 1.0}]});
        assert_eq!(
            of(schema).unwrap(),
            json!({"minLength": 1, "maxItems": 2, "minItems": 1.5, "enum": [{"minLength": 1.0}]})
        );
        let widest = of(json!({"minimum": -1.7e308, "maximum": 3.4e38})).unwrap_or_default();
        assert_eq!(widest["maximum"], json!(LARGEST));
        assert_eq!(of(json!({"type": "integer", "maximum": 1e20})).unwrap()["maximum"], json!(1e20));
        let small = of(json!({"exclusiveMinimum": 0, "maximum": 0.5})).unwrap();
        assert!(small.get("exclusiveMinimum").is_none() && small["minimum"].as_f64().unwrap() > 0.0, "{small}");
        let negative = of(json!({"exclusiveMaximum": 0, "exclusiveMinimum": -0.5})).unwrap();
        assert!(
            negative.get("exclusiveMaximum").is_none() && negative["maximum"].as_f64().unwrap() < 0.0,
            "{negative}"
        );
        let far = json!({"exclusiveMinimum": 0, "maximum": 10});
        assert_eq!(of(far.clone()).unwrap(), far);
    }
}
