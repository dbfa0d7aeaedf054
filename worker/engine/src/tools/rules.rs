//! The rules of a grammar, as they are written one by one.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::markers::ToolMarkers;
use super::values::Spelling;
use crate::constraint::literal;

/// Writes rules.
pub(super) struct RuleWriter<'a> {
    pub(super) markers: &'a ToolMarkers,
    /// Whether JSON may have any white space between its parts.
    pub(super) is_spaced: bool,
    pub(super) text: String,
    /// Numbers the rules of values.
    pub(super) count: usize,
}

impl RuleWriter<'_> {
    /// A text, in which marks that the vocabulary has as special tokens are these tokens.
    pub(super) fn spelled(&self, text: &str) -> String {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((at, length, id)) = self.markers.first_in(rest) {
            parts.extend((at > 0).then(|| literal(&rest[..at])));
            parts.push(format!("<[{id}]>"));
            rest = &rest[at + length..];
        }
        parts.extend((!rest.is_empty()).then(|| literal(rest)));
        parts.join(" ")
    }

    /// A schema of JSON as models write it.
    pub(super) fn in_json(&self, schema: Map<String, Value>, strict: bool) -> Value {
        let is_spaced = self.is_spaced;
        let options = json!({
            "whitespace_flexible": is_spaced, "item_separator": if is_spaced { "," } else { ", " },
            "key_separator": if is_spaced { ":" } else { ": " }, "lenient": !strict, "coerce_one_of": !strict,
        });
        options_in(schema, &options)
    }

    /// A new number of a rule.
    pub(super) fn next(&mut self) -> usize {
        self.count += 1;
        self.count
    }

    /// A rule of a schema's values in JSON.
    pub(super) fn json_value(&mut self, mut schema: Map<String, Value>, spelling: &Spelling<'_>) -> String {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = spelling.root.get(name) {
                schema.insert(name.to_owned(), definitions.clone());
            }
        }
        let (rule, schema) = (format!("value_{}", self.next()), self.in_json(schema, spelling.strict));
        let _ = writeln!(self.text, "{rule}: %json {schema}");
        rule
    }
}

/// A schema with options of the library in it.
pub(super) fn options_in(mut schema: Map<String, Value>, options: &Value) -> Value {
    schema.insert("x-guidance".to_owned(), options.clone());
    Value::Object(schema)
}
