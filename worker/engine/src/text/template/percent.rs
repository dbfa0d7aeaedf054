//! Python's `%` for texts.

use super::attributes;
use super::fault::{RenderFault, RenderResult, refuse};
use super::format::{Spec, ascii, digits, place_of};
use super::markup::escaped;
use super::printing::bounded;
use super::value::PythonValue;

/// `text % values`.
pub(super) fn percent(format: &PythonValue, values: &PythonValue) -> RenderResult<PythonValue> {
    let is_marked = matches!(format, PythonValue::Markup(_));
    let mut formatter = Percent { values, next: 0, is_marked, out: String::new() };
    formatter.run(format.as_str().unwrap_or_default())?;
    let out = formatter.out;
    Ok(if is_marked { PythonValue::Markup(out.into()) } else { PythonValue::text(out) })
}

struct Percent<'a> {
    values: &'a PythonValue,
    /// The number of values that were used.
    next: usize,
    is_marked: bool,
    out: String,
}

impl Percent<'_> {
    fn run(&mut self, format: &str) -> RenderResult<()> {
        let mut characters = format.chars().peekable();
        let mut named = false;
        while let Some(c) = characters.next() {
            if c != '%' {
                self.out.push(c);
                continue;
            }
            let mut spec = Spec::default();
            let mut key = None;
            if characters.next_if_eq(&'(').is_some() {
                let (mut name, mut depth) = (String::new(), 1_usize);
                for c in characters.by_ref() {
                    depth = match c {
                        '(' => depth + 1,
                        ')' => depth - 1,
                        _ => depth,
                    };
                    if depth == 0 {
                        break;
                    }
                    name.push(c);
                }
                if depth > 0 {
                    refuse!("incomplete format key");
                }
                key = Some(name);
                named = true;
            }
            let flag = |c: &char| "-+ #0".contains(*c);
            while let Some(flag) = characters.next_if(flag) {
                match flag {
                    '-' => spec.align = Some('<'),
                    '0' => spec.zero = true,
                    '#' => spec.alternate = true,
                    '+' => spec.sign = '+',
                    _ if spec.sign != '+' => spec.sign = ' ',
                    _ => {}
                }
            }
            if characters.next_if_eq(&'*').is_some() {
                let width = self.value(None)?.as_int().ok_or_else(|| RenderFault::failed("* wants int"))?;
                if width < 0 {
                    spec.align = Some('<');
                }
                spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
            } else {
                spec.width = digits(&mut characters).unwrap_or(0);
            }
            if characters.next_if_eq(&'.').is_some() {
                spec.precision = if characters.next_if_eq(&'*').is_some() {
                    let precision = self.value(None)?.as_int().ok_or_else(|| RenderFault::failed("* wants int"))?;
                    Some(usize::try_from(precision).unwrap_or(0))
                } else {
                    Some(digits(&mut characters).unwrap_or(0))
                };
            }
            while characters.next_if(|c| "hlL".contains(*c)).is_some() {}
            let Some(kind) = characters.next() else { refuse!("incomplete format") };
            if kind == '%' {
                self.out.push('%');
                continue;
            }
            let value = self.value(key.as_deref())?;
            let text = self.converted(&value, kind, &mut spec)?;
            bounded(self.out.len() + text.len())?;
            self.out.push_str(&text);
        }
        let left = match self.values {
            PythonValue::Tuple(items) => items.values.len() > self.next,
            // A mapping, a list or anything else that can be indexed may be there for its keys alone.
            PythonValue::Text(_) | PythonValue::Markup(_) => self.next == 0,
            other => self.next == 0 && !named && !attributes::is_subscriptable(other),
        };
        if left && !named {
            refuse!("not all arguments converted during string formatting");
        }
        Ok(())
    }

    fn value(&mut self, key: Option<&str>) -> RenderResult<PythonValue> {
        if let Some(key) = key {
            let PythonValue::Dict(dict) = self.values else { refuse!("format requires a mapping") };
            return dict.named(key).cloned().ok_or_else(|| RenderFault::failed(format_args!("no key '{key}'")));
        }
        let at = self.next;
        self.next += 1;
        match self.values {
            PythonValue::Tuple(items) => items.values.get(at).cloned(),
            other => (at == 0).then(|| other.clone()),
        }
        .ok_or_else(|| RenderFault::failed("not enough arguments for format string"))
    }

    fn converted(&self, value: &PythonValue, kind: char, spec: &mut Spec) -> RenderResult<String> {
        let mark = |text: String| {
            if self.is_marked && !matches!(value, PythonValue::Markup(_)) { escaped(&text) } else { text }
        };
        match kind {
            's' | 'r' | 'a' => {
                let text = match kind {
                    's' => value.print()?,
                    'r' => value.repr()?,
                    _ => ascii(&value.repr()?),
                };
                spec.zero = false;
                bounded(spec.width)?;
                let cut = spec.precision.map_or(text.len(), |most| place_of(&text, most));
                Ok(spec.padded(&mark(text[..cut].to_owned()), '>'))
            }
            'c' if spec.width > 1 << 20 => refuse!("a width of more than a million"),
            'c' => match (value.as_str(), value.as_int()) {
                (Some(text), _) if text.chars().count() == 1 => Ok(spec.padded(text, '>')),
                (None, Some(code)) => {
                    let c = u32::try_from(code).ok().and_then(char::from_u32);
                    let c = c.ok_or_else(|| RenderFault::failed("%c arg not in range(0x110000)"))?;
                    Ok(spec.padded(&c.to_string(), '>'))
                }
                _ => refuse!("%c requires int or char"),
            },
            'd' | 'i' | 'u' => match value.defined()? {
                PythonValue::Float(number) if number.is_finite() => spec.integer(*number as i128, 'd'),
                other => match other.as_int() {
                    Some(number) => spec.integer(number, 'd'),
                    None => refuse!("%{kind} format: a real number is required, not {}", other.kind()),
                },
            },
            'x' | 'X' | 'o' => match value.defined()?.as_int() {
                Some(number) => spec.integer(number, kind),
                None => refuse!("%{kind} format: an integer is required, not {}", value.kind()),
            },
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => match value.defined()?.as_float() {
                Some(number) => spec.float(number, kind),
                None => refuse!("must be real number, not {}", value.kind()),
            },
            other => refuse!("unsupported format character '{other}'"),
        }
    }
}
