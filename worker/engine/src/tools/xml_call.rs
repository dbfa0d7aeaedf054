//! Calls whose parameters are between tags. They become JSON by the types of the tool's schema.

use serde::de::IgnoredAny;
use serde_json::Value;

use super::spaced::spaced;
use super::values::{Kinds, kinds};

/// The tags of a call.
#[derive(Debug)]
pub(super) struct Tags {
    /// Behind the tool's name.
    pub(super) head_end: &'static str,
    /// Between that and the first parameter.
    pub(super) behind_head: &'static str,
    pub(super) key: (&'static str, &'static str),
    /// Between the tags of a key and those of its value.
    pub(super) between: &'static str,
    pub(super) value: (&'static str, &'static str),
    /// Behind a key whose value is a text, and behind one whose value is JSON, where calls say that.
    pub(super) kinds: Option<[&'static str; 2]>,
    /// On both sides of a value, inside of its tags.
    pub(super) padding: &'static str,
    /// Behind the closing tag of a value.
    pub(super) behind_value: &'static str,
    /// Whether a reader drops a line feed on each side of a value.
    pub(super) is_trimmed: bool,
    /// The end of the call, and marks behind it that models may write in its place.
    pub(super) ends: &'static [&'static str],
    /// Whether templates write `true`, `false` and `null` as Python does.
    pub(super) has_python_words: bool,
}

/// The spelling of a value, as its call says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSpelling {
    /// The call does not say it. The schema decides.
    BySchema,
    Text,
    Json,
}

impl Tags {
    /// The end of the call.
    pub(super) fn end(&self) -> &'static str {
        self.ends.first().copied().unwrap_or_default()
    }

    /// The closing tag of a value with the text around it.
    pub(super) fn value_end(&self) -> String {
        [self.padding, self.value.1, self.behind_value].concat()
    }

    /// A call. Texts are written as they are, all else as JSON.
    pub(super) fn written(&self, name: &str, parameters: &[(String, Value)]) -> String {
        let mut call = [name, self.head_end, self.behind_head].concat();
        for (key, value) in parameters {
            let kind = self.kinds.map_or("", |[text, json]| if value.is_string() { text } else { json });
            let value = value.as_str().map_or_else(|| spaced(value), str::to_owned);
            call.extend([self.key(key), kind.to_owned(), self.open(), value, self.value_end()]);
        }
        call + self.end()
    }

    /// The key of a parameter.
    pub(super) fn key(&self, key: &str) -> String {
        [self.key.0, key, self.key.1, self.between].concat()
    }

    /// The texts between a key and its value.
    pub(super) fn open(&self) -> String {
        [self.value.0, self.padding].concat()
    }

    /// The spelling of the value behind a key, and the length of what says it; `None` if that is yet to come.
    pub(super) fn spelling_behind_key(&self, text: &str) -> Option<(ValueSpelling, usize)> {
        let Some([as_text, as_json]) = self.kinds else { return Some((ValueSpelling::BySchema, 0)) };
        let known = [(as_text, ValueSpelling::Text), (as_json, ValueSpelling::Json)];
        match known.iter().find(|(words, _)| text.starts_with(words)) {
            Some((words, spelling)) => Some((*spelling, words.len())),
            None if known.iter().any(|(words, _)| words.starts_with(text)) => None,
            None => text.find('>').map(|end| (ValueSpelling::BySchema, end + 1)),
        }
    }

    /// A value without the opening tag in front of it.
    pub(super) fn without_open<'t>(&self, text: &'t str) -> &'t str {
        let open = self.value.0;
        text.trim_start().strip_prefix(open).filter(|_| !open.is_empty()).unwrap_or(text)
    }

    /// The place of the closing tag behind a value; `None` if it is yet to come. Objects and lists of JSON may have the
    /// tag within their texts.
    pub(super) fn end_of_value(
        &self,
        schema: Option<&Value>,
        root: &Value,
        spelling: ValueSpelling,
        text: &str,
    ) -> Option<usize> {
        let first = text.find(self.value.1)?;
        let value = self.without_open(text).trim_start();
        let kind = match value.chars().next() {
            Some('{') => Kinds::OBJECT,
            Some('[') => Kinds::ARRAY,
            _ => return Some(first),
        };
        let all = match spelling {
            ValueSpelling::BySchema => schema.map_or(Kinds::ALL, |schema| kinds(schema, root)),
            ValueSpelling::Text => Kinds::TEXT,
            ValueSpelling::Json => Kinds::ALL,
        };
        if !all.has(kind) {
            return Some(first);
        }
        let mut values = serde_json::Deserializer::from_str(value).into_iter::<IgnoredAny>();
        match values.next() {
            Some(Ok(_)) => {
                let behind = text.len() - value.len() + values.byte_offset();
                text[behind..].find(self.value.1).map(|at| behind + at)
            }
            Some(Err(error)) if error.is_eof() => None,
            _ => Some(first),
        }
    }

    /// The value of a parameter as JSON: a text, unless its schema allows another value that is spelled like this.
    /// `root` has what references of the schema name.
    pub(super) fn value(&self, schema: Option<&Value>, root: &Value, spelling: ValueSpelling, text: &str) -> String {
        let text = if self.is_trimmed { trimmed(text) } else { text };
        let kinds = match spelling {
            ValueSpelling::BySchema => schema.map_or(Kinds::ALL, |schema| kinds(schema, root)),
            ValueSpelling::Text => Kinds::TEXT,
            ValueSpelling::Json => Kinds::ALL,
        };
        let word = match text.trim() {
            // Models that write Python's words.
            "True" => "true",
            "False" => "false",
            "None" => "null",
            word => word,
        };
        match serde_json::from_str::<Value>(word) {
            // Numbers keep their digits.
            Ok(value)
                if (spelling == ValueSpelling::Json || !value.is_string())
                    && (kinds.has(Kinds::of(&value)) || !kinds.has(Kinds::TEXT)) =>
            {
                word.to_owned()
            }
            _ => Value::String(text.to_owned()).to_string(),
        }
    }
}

fn trimmed(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}
