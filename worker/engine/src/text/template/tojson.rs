//! The `tojson` filter as `transformers` defines it: Python's `json.dumps`, without HTML escapes.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::python_types::{Generator, is_none};

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: &Value, ensure_ascii: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(given) => given.is_true(),
        None => options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    let indent = match options.get::<Option<Value>>("indent")? {
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(width) if !width.is_none() => Some(" ".repeat(usize::try_from(width)?.min(64))),
        _ => None,
    };
    let (item, key) = match options.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => (text_at(&pair, 0)?, text_at(&pair, 1)?),
        // With line breaks Python writes no space after the comma.
        _ => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut writer = JsonWriter { out: String::new(), ensure_ascii, indent, item, key, sort_keys, depth: 0 };
    writer.value(value)?;
    Ok(Value::from(writer.out))
}

fn text_at(pair: &Value, index: usize) -> Result<String, Error> {
    pair.get_item_by_index(index)?
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| unserialisable("separators that are no texts"))
}

fn unserialisable(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson cannot write {what}"))
}

struct JsonWriter {
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
    depth: usize,
}

impl JsonWriter {
    /// Deeper values are refused, where Python too would run out of stack.
    const DEEPEST: usize = 200;

    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            _ if is_none(value) => self.out.push_str("null"),
            _ if value.downcast_object_ref::<Generator>().is_some() => return Err(unserialisable("a generator")),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(('[', ']'), items, |writer, item| writer.value(&item))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.container(('{', '}'), keys, |writer, key| {
                    match key.as_str() {
                        Some(text) => writer.string(text),
                        None => writer.plain_key(&key)?,
                    }
                    let separator = writer.key.clone();
                    writer.out.push_str(&separator);
                    writer.value(&value.get_item(&key)?)
                })?;
            }
            _ => return Err(unserialisable("an undefined value or an object")),
        }
        Ok(())
    }

    /// Python turns keys that are numbers, truth values or nothing into texts.
    fn plain_key(&mut self, key: &Value) -> Result<(), Error> {
        self.out.push('"');
        self.value(key)?;
        self.out.push('"');
        Ok(())
    }

    fn container(
        &mut self,
        (open, close): (char, char),
        items: Vec<Value>,
        mut write: impl FnMut(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        if items.is_empty() {
            self.out.push(close);
            return Ok(());
        }
        self.depth += 1;
        if self.depth > Self::DEEPEST {
            return Err(unserialisable("a value nested this deep"));
        }
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                let separator = self.item.clone();
                self.out.push_str(&separator);
            }
            self.line_break();
            write(self, item)?;
        }
        self.depth -= 1;
        self.line_break();
        self.out.push(close);
        Ok(())
    }

    fn line_break(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(self.depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                control if control < ' ' => self.escape(control),
                other if self.ensure_ascii && !(' '..='~').contains(&other) => self.escape(other),
                other => self.out.push(other),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            self.out.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

/// Python's shortest spelling of a number that is no integer.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        // Rust writes 1e16 and 1e-5, Python 1e+16 and 1e-05.
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}
