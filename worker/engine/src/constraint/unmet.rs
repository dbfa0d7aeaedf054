//! Names the keywords of a schema that no value meets together: the library says only that some are in conflict.

use serde_json::{Map, Value};

/// Parts of a schema that are looked at.
const MOST_TRIED: usize = 32;

/// Keywords of a schema that allow everything.
const ANNOTATIONS: [&str; 14] = [
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
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// The definitions to which parts of a schema refer.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The innermost part of a schema that allows no value, as words. `is_unmet` says so of a schema.
pub(super) fn unmet_keywords(
    schema: &Map<String, Value>,
    mut is_unmet: impl FnMut(&Map<String, Value>) -> bool,
) -> String {
    let (mut at, mut inner, mut tried) = ("#".to_owned(), schema, 0);
    'inner: loop {
        for (step, part) in parts(inner) {
            tried += 1;
            if tried > MOST_TRIED {
                break 'inner;
            }
            let mut alone = part.clone();
            for name in DEFINITIONS {
                if let Some(definitions) = schema.get(name) {
                    alone.entry(name).or_insert_with(|| definitions.clone());
                }
            }
            if is_unmet(&alone) {
                at.push_str(&step);
                inner = part;
                continue 'inner;
            }
        }
        break;
    }
    let keywords: Vec<String> = inner.keys().filter(|name| is_keyword(name)).map(|name| format!("'{name}'")).collect();
    match keywords.as_slice() {
        [one] => format!("{one} at {at} allows no value"),
        many => format!("{} at {at} allow no value together", many.join(", ")),
    }
}

fn is_keyword(name: &str) -> bool {
    !ANNOTATIONS.contains(&name) && !name.starts_with("x-")
}

/// The schemas inside of a schema, each with its place.
fn parts(schema: &Map<String, Value>) -> Vec<(String, &Map<String, Value>)> {
    let mut found = Vec::new();
    for (name, value) in schema {
        match (name.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(named)) => {
                let objects = named.iter().filter_map(|(key, part)| Some((key, part.as_object()?)));
                found.extend(objects.map(|(key, part)| (format!("/{name}/{key}"), part)));
            }
            ("anyOf" | "allOf" | "oneOf" | "prefixItems" | "items", Value::Array(listed)) => {
                let objects = listed.iter().enumerate().filter_map(|(at, part)| Some((at, part.as_object()?)));
                found.extend(objects.map(|(at, part)| (format!("/{name}/{at}"), part)));
            }
            ("items" | "additionalProperties", Value::Object(part)) => found.push((format!("/{name}"), part)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn en_6_the_innermost_keywords_are_named_with_their_place() {
        let schema = json!({"title": "x", "properties": {"a": {"const": 1}, "b": {"anyOf": [{"const": 2}, {"type": "null", "const": 3}]}}});
        let is_unmet = |part: &Map<String, Value>| part.get("const") == Some(&json!(3)) || part.contains_key("anyOf");
        let words = unmet_keywords(schema.as_object().unwrap(), is_unmet);
        assert!(
            words.contains("'type'") && words.contains("'const'") && words.contains("#/properties/b/anyOf/1"),
            "{words}"
        );
        let words = unmet_keywords(schema.as_object().unwrap(), |_| false);
        assert_eq!(words, "'properties' at # allows no value");
    }
}
