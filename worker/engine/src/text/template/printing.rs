//! Values as text: Python's `str` and `repr`.

use std::cmp::Ordering;
use std::fmt::Write;

use super::fault::{RenderFault, RenderResult, refuse};
use super::value::{Dict, PythonValue, ViewKind};

/// The most bytes that one value may be printed as.
pub(super) const LONGEST_TEXT: usize = 64 << 20;

/// Refuses texts that no prompt has.
pub(super) fn bounded(length: usize) -> RenderResult<()> {
    if length > LONGEST_TEXT { Err(RenderFault::Limit("makes a text of more than 64 MiB")) } else { Ok(()) }
}

impl PythonValue {
    /// Python's `str`.
    pub(super) fn print(&self) -> RenderResult<String> {
        Ok(match self {
            Self::Undefined(_) | Self::NoContent => String::new(),
            Self::Text(text) | Self::Markup(text) => text.as_ref().to_owned(),
            other => other.repr()?,
        })
    }

    /// Python's `repr`.
    pub(super) fn repr(&self) -> RenderResult<String> {
        let mut out = String::new();
        self.write_repr(&mut out)?;
        Ok(out)
    }

    fn write_repr(&self, out: &mut String) -> RenderResult<()> {
        bounded(out.len())?;
        match self {
            Self::Undefined(_) => out.push_str("Undefined"),
            Self::None | Self::NoContent => out.push_str("None"),
            Self::Bool(yes) => out.push_str(if *yes { "True" } else { "False" }),
            Self::Int(number) => drop(write!(out, "{number}")),
            Self::Float(number) => out.push_str(&float(*number)),
            Self::Text(text) => quoted(text, out),
            Self::Markup(text) => {
                out.push_str("Markup(");
                quoted(text, out);
                out.push(')');
            }
            Self::List(items) => listed(("[", "]"), &items.values, out)?,
            Self::Tuple(items) if items.values.len() == 1 => listed(("(", ",)"), &items.values, out)?,
            Self::Tuple(items) => listed(("(", ")"), &items.values, out)?,
            Self::Dict(dict) => mapping(dict, out)?,
            Self::Range(range) => {
                let _ = write!(out, "range({}, {}", range.start, range.stop);
                if range.step != 1 {
                    let _ = write!(out, ", {}", range.step);
                }
                out.push(')');
            }
            Self::View(kind, _) => {
                let items = self.items()?;
                out.push_str(match kind {
                    ViewKind::Keys => "dict_keys",
                    ViewKind::Values => "dict_values",
                    ViewKind::Items => "dict_items",
                });
                listed(("([", "])"), &items, out)?;
            }
            Self::Namespace(shared) => {
                out.push_str("<Namespace {");
                for (index, (key, value)) in shared.entries().iter().enumerate() {
                    out.push_str(if index > 0 { ", " } else { "" });
                    key.write_repr(out)?;
                    out.push_str(": ");
                    // A namespace may hold itself, which Python cannot print either.
                    match value {
                        Self::Namespace(_) => return Err(RenderFault::failed("maximum recursion depth exceeded")),
                        value => value.write_repr(out)?,
                    }
                }
                out.push_str("}>");
            }
            Self::Loop(state) => drop(write!(out, "<LoopContext {}/{}>", state.place() + 1, state.items.len())),
            Self::Macro(made) => drop(write!(out, "<Macro '{}'>", made.name)),
            Self::Template(_) => out.push_str("<TemplateReference None>"),
            // The reference prints an address, which differs from run to run.
            other => refuse!("the text of '{}' is its address, which is not supported", other.kind()),
        }
        bounded(out.len())
    }
}

/// A value with the keys of its mappings in their order, as `pprint` writes them.
pub(super) fn with_sorted_keys(value: &PythonValue) -> RenderResult<PythonValue> {
    let all = |items: &[PythonValue]| items.iter().map(with_sorted_keys).collect::<RenderResult<Vec<_>>>();
    Ok(match value {
        PythonValue::List(items) => PythonValue::list(all(&items.values)?)?,
        PythonValue::Tuple(items) => PythonValue::tuple(all(&items.values)?)?,
        PythonValue::Dict(dict) => {
            let mut entries: Vec<&(PythonValue, PythonValue)> = dict.entries().iter().collect();
            let mut has_order = true;
            entries.sort_by(|(left, _), (right, _)| {
                let order = left.order(right).ok().flatten();
                has_order &= order.is_some();
                order.unwrap_or(Ordering::Equal)
            });
            if !has_order {
                refuse!("pprint of keys of different types is not supported");
            }
            let sorted = entries.into_iter().map(|(key, value)| Ok((key.clone(), with_sorted_keys(value)?)));
            PythonValue::dict(sorted.collect::<RenderResult<Vec<_>>>()?)?
        }
        other => other.clone(),
    })
}

fn listed((open, close): (&str, &str), items: &[PythonValue], out: &mut String) -> RenderResult<()> {
    out.push_str(open);
    for (index, item) in items.iter().enumerate() {
        out.push_str(if index > 0 { ", " } else { "" });
        item.write_repr(out)?;
    }
    out.push_str(close);
    Ok(())
}

fn mapping(dict: &Dict, out: &mut String) -> RenderResult<()> {
    out.push('{');
    for (index, (key, value)) in dict.entries().iter().enumerate() {
        out.push_str(if index > 0 { ", " } else { "" });
        key.write_repr(out)?;
        out.push_str(": ");
        value.write_repr(out)?;
    }
    out.push('}');
    Ok(())
}

/// Python's shortest spelling of a float.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
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

/// Text between quotes: apostrophes, unless only they are in the text.
fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => drop(match u32::from(c) {
                code @ ..0x100 => write!(out, "\\x{code:02x}"),
                code @ ..0x10000 => write!(out, "\\u{code:04x}"),
                code => write!(out, "\\U{code:08x}"),
            }),
        }
    }
    out.push(quote);
}

/// Whether Python prints a character as it is. Rust's rule for debugging output is the same but for marks that join
/// the character before them.
pub(super) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let (mut text, mut expected) = (String::from("a"), String::from("a"));
    text.push(c);
    expected.push(c);
    text.escape_debug().eq(expected.chars())
}
