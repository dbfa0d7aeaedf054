//! Lists without equal items and objects without equal keys, where no grammar can hold an answer to that: what a value
//! has already is left out as the arguments pass. A list with `uniqueItems` is a set, so nothing that it says is lost;
//! of a key that comes twice, readers would have one value. As long as a list or an object has fewer than it must, an
//! item or a key that comes again is altered instead.

use std::collections::BTreeSet;

use serde_json::Value;

use super::altered::{altered_item, altered_key};
use super::holds::canonical;
use super::values::referred;

/// Schemas that may hold of a value and are looked at.
const MOST_PARTS: usize = 64;

/// Passes the arguments of one call on, in pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Distinct {
    /// The lists and objects that are open, from the outermost one.
    open: Vec<OpenValue>,
    /// The text since the start of the string that is being read.
    text: String,
    is_in_text: bool,
    is_escaped: bool,
}

#[derive(Clone, Debug)]
struct OpenValue {
    /// The schemas that its value is held to.
    schemas: Vec<Value>,
    /// The key that was read last, or the number of the item.
    key: String,
    index: usize,
    is_list: bool,
    /// The items so far of a list without equal ones that is in no other such list.
    items: Option<SetItems>,
    /// The keys of an object so far.
    keys: BTreeSet<String>,
    /// A comma and a key of which it is not known yet whether the object has it.
    held: String,
    /// Lists and objects that are open in a value that is left out.
    left_out: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct SetItems {
    /// The present item, with the white space around it.
    item: String,
    /// Lists and objects that are open in it.
    depth: usize,
    seen: BTreeSet<String>,
}

impl Distinct {
    /// The rest of the next piece of arguments, which are held to `schema`.
    pub(super) fn push(&mut self, piece: &str, schema: &Value) -> String {
        let mut out = String::with_capacity(piece.len());
        for c in piece.chars() {
            self.push_char(c, schema, &mut out);
        }
        out
    }

    /// The rest of arguments that were cut.
    pub(super) fn finish(&mut self) -> String {
        let items = self.open.pop().and_then(|level| level.items);
        items.map(|items| (if items.seen.is_empty() { "" } else { "," }).to_owned() + &items.item).unwrap_or_default()
    }

    fn push_char(&mut self, c: char, root: &Value, out: &mut String) {
        if let Some(OpenValue { schemas, items: Some(items), .. }) = self.open.last_mut() {
            let is_text = self.is_in_text;
            follow_text(c, &mut self.is_in_text, &mut self.is_escaped);
            let is_over = !is_text && items.depth == 0 && matches!(c, ',' | ']');
            if !is_over {
                items.item.push(c);
                match c {
                    '[' | '{' if !is_text => items.depth += 1,
                    ']' | '}' if !is_text => items.depth = items.depth.saturating_sub(1),
                    _ => {}
                }
                return;
            }
            out.push_str(&items.next(schemas, root));
            if c == ']' {
                out.push(c);
                self.open.pop();
            }
            return;
        }
        if let Some(level) = self.open.last_mut()
            && let Some(depth) = &mut level.left_out
        {
            let is_text = self.is_in_text;
            follow_text(c, &mut self.is_in_text, &mut self.is_escaped);
            let is_over = !is_text && *depth == 0 && matches!(c, ',' | '}');
            match c {
                '[' | '{' if !is_text => *depth += 1,
                ']' | '}' if !is_text => *depth = depth.saturating_sub(1),
                _ => {}
            }
            if !is_over {
                return;
            }
            level.left_out = None;
        }
        match self.open.last_mut() {
            Some(level) if !level.held.is_empty() => level.held.push(c),
            Some(level) if c == ',' && !level.is_list && !self.is_in_text => level.held.push(c),
            _ => out.push(c),
        }
        if self.is_in_text {
            follow_text(c, &mut self.is_in_text, &mut self.is_escaped);
            if self.is_in_text {
                self.text.push(c);
            }
            return;
        }
        match c {
            '"' => {
                self.is_in_text = true;
                self.text.clear();
            }
            ':' => {
                if let Some(level) = self.open.last_mut().filter(|level| !level.is_list) {
                    let quoted = format!("\"{}\"", self.text);
                    level.key = serde_json::from_str(&quoted).unwrap_or_default();
                    let held = std::mem::take(&mut level.held);
                    if level.keys.insert(level.key.clone()) {
                        out.push_str(&held);
                    } else if let Some(other) = level.another_key(root) {
                        out.push_str(&format!(", {}:", Value::from(other.as_str())));
                        level.keys.insert(other.clone());
                        level.key = other;
                    } else {
                        level.left_out = Some(0);
                    }
                }
            }
            ',' => {
                if let Some(level) = self.open.last_mut() {
                    level.index += 1;
                }
            }
            '{' | '[' => {
                let schemas = match self.open.last() {
                    Some(level) => inner(&level.schemas, level.is_list, &level.key, level.index, root),
                    None => parts(root, root),
                };
                let items = (c == '[' && has_unique(&schemas)).then(SetItems::default);
                self.open.push(OpenValue {
                    schemas,
                    key: String::new(),
                    index: 0,
                    is_list: c == '[',
                    items,
                    keys: BTreeSet::new(),
                    held: String::new(),
                    left_out: None,
                });
            }
            '}' | ']' => drop(self.open.pop()),
            _ => {}
        }
    }
}

impl OpenValue {
    /// A key in place of one that the object has already, if it needs more keys.
    fn another_key(&self, root: &Value) -> Option<String> {
        let needs_more = self.keys.len() < most_of(&self.schemas, "minProperties");
        needs_more.then(|| altered_key(&self.key, &self.schemas, &self.keys, root)).flatten()
    }
}

impl SetItems {
    /// The item that has ended, if the list has none that equals it, with a comma in front.
    fn next(&mut self, schemas: &[Value], root: &Value) -> String {
        let item = std::mem::take(&mut self.item);
        let Ok(value) = serde_json::from_str::<Value>(&item) else { return item };
        // Equal numbers may be spelled in two ways, and keys may come in any order.
        let within = distinct(value.clone(), &inner(schemas, true, "", self.seen.len(), root), root);
        let Some(kept) = unlike(within, schemas, &mut self.seen, root) else { return String::new() };
        let text = if kept == value { item } else { kept.to_string() };
        let is_first = self.seen.len() == 1;
        if is_first { text } else { format!(",{text}") }
    }
}

fn follow_text(c: char, is_in_text: &mut bool, is_escaped: &mut bool) {
    if !*is_in_text {
        *is_in_text = c == '"';
    } else if *is_escaped {
        *is_escaped = false;
    } else if c == '\\' {
        *is_escaped = true;
    } else if c == '"' {
        *is_in_text = false;
    }
}

/// A value with the lists in it that may have no equal items.
fn distinct(value: Value, schemas: &[Value], root: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let is_unique = has_unique(schemas);
            let (mut seen, mut all) = (BTreeSet::new(), Vec::new());
            for item in items {
                let item = distinct(item, &inner(schemas, true, "", all.len(), root), root);
                all.extend(if is_unique { unlike(item, schemas, &mut seen, root) } else { Some(item) });
            }
            all.into()
        }
        Value::Object(fields) => {
            let of = |(key, value): (String, Value)| {
                let schemas = inner(schemas, false, &key, 0, root);
                (key, distinct(value, &schemas, root))
            };
            fields.into_iter().map(of).collect()
        }
        other => other,
    }
}

/// An item that is unlike all of a list so far, or one in its place if the list needs more; `None` if it is left out.
fn unlike(item: Value, schemas: &[Value], seen: &mut BTreeSet<String>, root: &Value) -> Option<Value> {
    if seen.insert(canonical(&item).to_string()) {
        return Some(item);
    }
    let needs_more = seen.len() < most_of(schemas, "minItems");
    let other = needs_more.then(|| altered_item(&item, schemas, seen.len(), seen, root)).flatten()?;
    seen.insert(canonical(&other).to_string());
    Some(other)
}

/// The largest count by which schemas name a keyword.
fn most_of(schemas: &[Value], keyword: &str) -> usize {
    let counts = schemas.iter().filter_map(|schema| schema.get(keyword)?.as_f64());
    counts.fold(0.0, f64::max) as usize
}

fn has_unique(schemas: &[Value]) -> bool {
    schemas.iter().any(|schema| schema.get("uniqueItems") == Some(&Value::Bool(true)))
}

/// The schemas of a value inside of one that is held to these.
fn inner(schemas: &[Value], is_list: bool, key: &str, index: usize, root: &Value) -> Vec<Value> {
    let of = |schema: &Value| {
        let found = if is_list {
            let first = schema.get("prefixItems").and_then(|all| all.get(index));
            first.or_else(|| schema.get("items"))
        } else {
            let named = schema.get("properties").and_then(|all| all.get(key));
            named.or_else(|| schema.get("additionalProperties"))
        };
        found.map(|schema| parts(schema, root)).unwrap_or_default()
    };
    schemas.iter().flat_map(of).collect()
}

/// A schema and all that may hold beside it, each once.
fn parts(schema: &Value, root: &Value) -> Vec<Value> {
    let mut left = vec![schema];
    let mut all: Vec<&Value> = Vec::new();
    while let Some(schema) = left.pop() {
        let Some(fields) = schema.as_object() else { continue };
        if all.len() >= MOST_PARTS || all.iter().any(|known| std::ptr::eq(*known, schema)) {
            continue;
        }
        all.push(schema);
        let branches = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|name| fields.get(name)?.as_array());
        left.extend(branches.flatten());
        left.extend(["then", "else"].into_iter().filter_map(|name| fields.get(name)));
        left.extend(referred(fields, root));
    }
    all.into_iter().cloned().collect()
}

/// Whether a schema has lists without equal items, or objects with keys that no schema names.
pub(super) fn has_distinct_parts(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            let is = |name: &str, value: Value| fields.get(name) == Some(&value);
            let has_keys =
                ["patternProperties", "propertyNames", "minProperties"].iter().any(|name| fields.contains_key(*name))
                    || fields.get("additionalProperties").is_some_and(|other| *other != Value::Bool(false))
                    || (is("type", "object".into()) && !fields.contains_key("properties"));
            has_keys || is("uniqueItems", true.into()) || fields.values().any(has_distinct_parts)
        }
        Value::Array(values) => values.iter().any(has_distinct_parts),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn en_5_what_comes_again_is_altered_while_there_is_too_little() {
        let schema = json!({"properties": {
            "tags": {"type": "array", "uniqueItems": true, "minItems": 3, "items": {"type": "string", "maxLength": 4}},
            "env": {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}},
        }});
        for (given, wanted) in [
            (
                r#"{"tags": ["a", "a", "a", "a", "b"], "env": {"a": 1, "a": 2, "a": 3}}"#,
                r#"{"tags": ["a","a_2","a_3", "b"], "env": {"a": 1, "a_2": 2}}"#,
            ),
            (r#"{"env": {"a": 1, "b": 2, "b": 3}}"#, r#"{"env": {"a": 1, "b": 2}}"#),
        ] {
            for cut in 0..given.len() {
                let mut lists = Distinct::default();
                let whole = lists.push(&given[..cut], &schema) + &lists.push(&given[cut..], &schema);
                assert_eq!(whole, wanted, "{given} at {cut}");
            }
        }
    }

    #[test]
    fn en_5_equal_items_and_keys_are_left_out_wherever_the_pieces_are_cut() {
        let schema = json!({
            "properties": {
                "tags": {"type": "array", "uniqueItems": true, "items": {"type": "string"}},
                "pairs": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/pairs"}]},
                "free": {"type": "array"},
            },
            "$defs": {"pairs": {"uniqueItems": true, "items": {"uniqueItems": true}}},
        });
        for (given, wanted) in [
            (
                r#"{"tags": ["a", "b", "a", "c\"]", "c\"]"], "free": [1, 1]}"#,
                r#"{"tags": ["a", "b", "c\"]"], "free": [1, 1]}"#,
            ),
            (
                r#"{"pairs": [[1, 1.0], [1], [2, {"a": 1, "b": 2}, {"b": 2, "a": 1}]]}"#,
                r#"{"pairs": [[1],[2,{"a":1,"b":2}]]}"#,
            ),
            (r#"{"tags": [], "pairs": null}"#, r#"{"tags": [], "pairs": null}"#),
            (r#"{"free": {"tags": ["a", "a"]}}"#, r#"{"free": {"tags": ["a", "a"]}}"#),
            (
                r#"{"a": 1, "b": {"c": "x,}", "c": [{"c": "}"}], "d": 2}, "a": {"a": 3}}"#,
                r#"{"a": 1, "b": {"c": "x,}", "d": 2}}"#,
            ),
            (r#"{"a": 1, "\u0061": 2, "b": 3}"#, r#"{"a": 1, "b": 3}"#),
        ] {
            for cut in 0..given.len() {
                let mut lists = Distinct::default();
                let whole = lists.push(&given[..cut], &schema) + &lists.push(&given[cut..], &schema);
                assert_eq!(whole, wanted, "{given} at {cut}");
                assert_eq!(lists.finish(), "");
            }
        }
        let mut cut = Distinct::default();
        assert_eq!(cut.push(r#"{"tags": ["a", "b"#, &schema) + &cut.finish(), r#"{"tags": ["a", "b"#);
    }
}
