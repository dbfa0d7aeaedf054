//! The `tojson` filter as `transformers` defines it: Python's `json.dumps`, without HTML escapes.

use super::arguments::{Arguments, integer};
use super::fault::{RenderResult, refuse};
use super::printing::{self, bounded};
use super::value::PythonValue;

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [ensure_ascii, indent, separators, sort_keys] =
        arguments.bind(["ensure_ascii", "indent", "separators", "sort_keys"], 0)?;
    let is_set = |flag: Option<PythonValue>| flag.is_some_and(|flag| flag.is_true());
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(width) => Some(match width.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = usize::try_from(integer(Some(&width))?.unwrap_or(0).max(0)).unwrap_or(usize::MAX);
                bounded(width)?;
                " ".repeat(width)
            }
        }),
    };
    let (item, key) = match separators.filter(|separators| !separators.is_none()) {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => match pair.items()?.as_slice() {
            [item, key] => (printed(item)?, printed(key)?),
            _ => refuse!("tojson needs two separators"),
        },
    };
    let mut writer = JsonWriter {
        out: String::new(),
        ensure_ascii: is_set(ensure_ascii),
        indent,
        item,
        key,
        sort_keys: is_set(sort_keys),
        depth: 0,
    };
    writer.value(value)?;
    Ok(PythonValue::text(writer.out))
}

fn printed(separator: &PythonValue) -> RenderResult<String> {
    match separator.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => refuse!("separators must be texts"),
    }
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
    fn value(&mut self, value: &PythonValue) -> RenderResult<()> {
        bounded(self.out.len())?;
        match value {
            PythonValue::None | PythonValue::NoContent => self.out.push_str("null"),
            PythonValue::Bool(yes) => self.out.push_str(if *yes { "true" } else { "false" }),
            PythonValue::Int(number) => self.out.push_str(&number.to_string()),
            PythonValue::Float(number) => self.out.push_str(&float(*number)),
            PythonValue::Text(text) | PythonValue::Markup(text) => self.string(text),
            PythonValue::List(items) | PythonValue::Tuple(items) => {
                self.container(('[', ']'), &items.values, |writer, item| writer.value(item))?;
            }
            PythonValue::Dict(dict) => {
                let mut entries: Vec<&(PythonValue, PythonValue)> = dict.entries().iter().collect();
                if self.sort_keys {
                    let mut fault = None;
                    entries.sort_by(|(left, _), (right, _)| match left.order(right) {
                        Ok(order) => order.unwrap_or(std::cmp::Ordering::Equal),
                        Err(refused) => {
                            fault = Some(refused);
                            std::cmp::Ordering::Equal
                        }
                    });
                    if let Some(fault) = fault {
                        return Err(fault);
                    }
                }
                self.container(('{', '}'), &entries, |writer, (key, value)| {
                    writer.key(key)?;
                    let separator = writer.key.clone();
                    writer.out.push_str(&separator);
                    writer.value(value)
                })?;
            }
            other => refuse!("Object of type {} is not JSON serializable", other.kind()),
        }
        Ok(())
    }

    /// Python turns keys that are numbers, truth values or nothing into texts.
    fn key(&mut self, key: &PythonValue) -> RenderResult<()> {
        match key {
            PythonValue::Text(text) | PythonValue::Markup(text) => self.string(text),
            PythonValue::None
            | PythonValue::NoContent
            | PythonValue::Bool(_)
            | PythonValue::Int(_)
            | PythonValue::Float(_) => {
                self.out.push('"');
                self.value(key)?;
                self.out.push('"');
            }
            other => refuse!("keys must be str, int, float, bool or None, not {}", other.kind()),
        }
        Ok(())
    }

    fn container<T>(
        &mut self,
        (open, close): (char, char),
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> RenderResult<()>,
    ) -> RenderResult<()> {
        self.out.push(open);
        if items.is_empty() {
            self.out.push(close);
            return Ok(());
        }
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
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

/// A number as Python's `json` writes it.
fn float(number: f64) -> String {
    match printing::float(number).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        text => text.to_owned(),
    }
}
