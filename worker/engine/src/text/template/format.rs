//! Formatting of values in fields, and the method `format` of texts.

use super::attributes;
use super::fault::{RenderFault, RenderResult, refuse};
use super::printing::{LONGEST_TEXT, bounded, float};
use super::value::PythonValue;

pub(super) fn digits(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<usize> {
    let mut number = None;
    while let Some(c) = characters.next_if(char::is_ascii_digit) {
        let digit = c.to_digit(10).unwrap_or(0) as usize;
        number = Some(number.unwrap_or(0_usize).saturating_mul(10).saturating_add(digit));
    }
    number
}

/// The byte at which the character of this number begins, or the text's end.
pub(super) fn place_of(text: &str, characters: usize) -> usize {
    text.char_indices().nth(characters).map_or(text.len(), |(at, _)| at)
}

pub(super) fn ascii(text: &str) -> String {
    let spelled = |c: char| match u32::from(c) {
        ..0x80 => c.to_string(),
        code @ ..0x100 => format!("\\x{code:02x}"),
        code @ ..0x10000 => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    };
    text.chars().map(spelled).collect()
}

/// How a value is written into a field.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) fill: char,
    pub(super) align: Option<char>,
    pub(super) sign: char,
    pub(super) alternate: bool,
    pub(super) zero: bool,
    pub(super) width: usize,
    group: Option<char>,
    pub(super) precision: Option<usize>,
    kind: Option<char>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            fill: ' ',
            align: None,
            sign: '-',
            alternate: false,
            zero: false,
            width: 0,
            group: None,
            precision: None,
            kind: None,
        }
    }
}

impl Spec {
    /// The specification behind the colon of a field of `format`.
    fn parse(text: &str) -> RenderResult<Self> {
        let mut spec = Self::default();
        let all: Vec<char> = text.chars().collect();
        let mut rest = text.chars().peekable();
        if let [fill, align @ ('<' | '>' | '^' | '='), ..] = all[..] {
            (spec.fill, spec.align) = (fill, Some(align));
            rest.next();
            rest.next();
        } else if let Some(align) = rest.next_if(|c| "<>^=".contains(*c)) {
            spec.align = Some(align);
        }
        if let Some(sign) = rest.next_if(|c| "+- ".contains(*c)) {
            spec.sign = sign;
        }
        spec.alternate = rest.next_if_eq(&'#').is_some();
        if rest.next_if_eq(&'0').is_some() {
            spec.zero = true;
        }
        spec.width = digits(&mut rest).unwrap_or(0);
        spec.group = rest.next_if(|c| ",_".contains(*c));
        if rest.next_if_eq(&'.').is_some() {
            spec.precision =
                Some(digits(&mut rest).ok_or_else(|| RenderFault::failed("Format specifier missing precision"))?);
        }
        spec.kind = rest.next();
        if rest.next().is_some() {
            refuse!("Invalid format specifier '{text}'");
        }
        Ok(spec)
    }

    pub(super) fn padded(&self, text: &str, default: char) -> String {
        let length = text.chars().count();
        let missing = self.width.min(LONGEST_TEXT).saturating_sub(length);
        let pad = |count: usize| self.fill.to_string().repeat(count);
        match self.align.unwrap_or(default) {
            '<' => text.to_owned() + &pad(missing),
            '^' => pad(missing / 2) + text + &pad(missing - missing / 2),
            _ => pad(missing) + text,
        }
    }

    /// A number's sign and digits in its field.
    fn number(&self, is_negative: bool, prefix: &str, digits: &str) -> RenderResult<String> {
        bounded(self.width)?;
        let sign = match (is_negative, self.sign) {
            (true, _) => "-",
            (false, '+') => "+",
            (false, ' ') => " ",
            _ => "",
        };
        let head = sign.to_owned() + prefix;
        let digits = self.grouped(digits);
        let fills_inside = self.align == Some('=') || self.zero && self.align.is_none();
        if !fills_inside {
            return Ok(self.padded(&(head + &digits), '>'));
        }
        let missing = self.width.saturating_sub(head.chars().count() + digits.chars().count());
        let fill = if self.zero && self.align.is_none() { '0' } else { self.fill };
        Ok(head + &fill.to_string().repeat(missing) + &digits)
    }

    fn grouped(&self, digits: &str) -> String {
        let Some(group) = self.group else { return digits.to_owned() };
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let (whole, rest) = digits.split_at(end);
        let mut out = String::new();
        for (at, digit) in whole.chars().enumerate() {
            if at > 0 && (whole.len() - at).is_multiple_of(3) {
                out.push(group);
            }
            out.push(digit);
        }
        out + rest
    }

    pub(super) fn integer(&self, number: i128, kind: char) -> RenderResult<String> {
        let size = number.unsigned_abs();
        let (prefix, digits) = match kind {
            'x' => ("0x", format!("{size:x}")),
            'X' => ("0X", format!("{size:X}")),
            'o' => ("0o", format!("{size:o}")),
            'b' => ("0b", format!("{size:b}")),
            _ => ("", size.to_string()),
        };
        let least = self.precision.unwrap_or(0);
        bounded(least)?;
        let digits = "0".repeat(least.saturating_sub(digits.len())) + &digits;
        self.number(number < 0, if self.alternate { prefix } else { "" }, &digits)
    }

    pub(super) fn float(&self, number: f64, kind: char) -> RenderResult<String> {
        let precision = self.precision.unwrap_or(6);
        // Longer ones are zeros, and nobody asks for them.
        if precision > 1000 {
            return Err(RenderFault::Limit("formats a number with more than 1,000 digits"));
        }
        let size = number.abs();
        let text = if number.is_nan() {
            "nan".to_owned()
        } else if number.is_infinite() {
            "inf".to_owned()
        } else {
            match kind.to_ascii_lowercase() {
                'e' => exponential(size, precision),
                'g' => general(size, precision.max(1), self.alternate),
                '%' => format!("{:.precision$}%", size * 100.0),
                'f' => format!("{size:.precision$}"),
                _ => float(size),
            }
        };
        let text = if kind.is_ascii_uppercase() { text.to_uppercase() } else { text };
        self.number(number.is_sign_negative() && !number.is_nan(), "", &text)
    }
}

fn exponential(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// C's `%g`: the shorter of two forms, without zeros at its end.
fn general(size: f64, precision: usize, keeps_zeros: bool) -> String {
    let text = exponential(size, precision - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let stripped = |digits: &str| match digits.contains('.') && !keeps_zeros {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    let limit = i32::try_from(precision).unwrap_or(i32::MAX);
    if exponent < -4 || exponent >= limit {
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{exponent}", stripped(digits));
    }
    let places = usize::try_from(limit - 1 - exponent).unwrap_or(0);
    stripped(&format!("{size:.places$}"))
}

/// The method `format`: fields between braces, by place or by name.
pub(super) fn braces(
    format: &str,
    places: &[PythonValue],
    names: &[(std::sync::Arc<str>, PythonValue)],
) -> RenderResult<String> {
    let mut fields = BraceFields { places, names, next: 0, numbering: None };
    fields.run(format, 2)
}

struct BraceFields<'a> {
    places: &'a [PythonValue],
    names: &'a [(std::sync::Arc<str>, PythonValue)],
    next: usize,
    numbering: Option<FieldNumbering>,
}

/// How a format numbers its fields: one format cannot do both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldNumbering {
    Automatic,
    Manual,
}

impl BraceFields<'_> {
    fn run(&mut self, format: &str, depth: usize) -> RenderResult<String> {
        let Some(depth) = depth.checked_sub(1) else { refuse!("Max string recursion exceeded") };
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let found = &rest[at..];
            if found.starts_with("{{") || found.starts_with("}}") {
                out.push_str(&found[..1]);
                rest = &found[2..];
                continue;
            }
            if found.starts_with('}') {
                refuse!("Single '}}' encountered in format string");
            }
            let mut open = 0_usize;
            let end = found.char_indices().find(|(_, c)| {
                open = match c {
                    '{' => open + 1,
                    '}' => open.saturating_sub(1),
                    _ => open,
                };
                open == 0
            });
            let Some((end, _)) = end else { refuse!("expected '}}' before end of string") };
            out.push_str(&self.field(&found[1..end], depth)?);
            bounded(out.len())?;
            rest = &found[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, field: &str, depth: usize) -> RenderResult<String> {
        let end = field.find(['!', ':']).unwrap_or(field.len());
        let (name, rest) = field.split_at(end);
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(rest) => {
                let mut characters = rest.chars();
                let conversion = characters.next();
                let spec = characters.as_str();
                match (spec.strip_prefix(':'), spec.is_empty()) {
                    (Some(spec), _) => (conversion, spec),
                    (None, true) => (conversion, ""),
                    (None, false) => refuse!("expected ':' after conversion specifier"),
                }
            }
            None => (None, rest.strip_prefix(':').unwrap_or("")),
        };
        let value = self.value(name)?;
        let spec = if spec.contains('{') { self.run(spec, depth)? } else { spec.to_owned() };
        match conversion {
            None => formatted(&value, &spec),
            Some('s') => formatted(&PythonValue::text(value.print()?), &spec),
            Some('r') => formatted(&PythonValue::text(value.repr()?), &spec),
            Some('a') => formatted(&PythonValue::text(ascii(&value.repr()?)), &spec),
            Some(other) => refuse!("Unknown conversion specifier '{other}'"),
        }
    }

    /// The value that a field names, such as `0.role` or `message[content]`.
    fn value(&mut self, name: &str) -> RenderResult<PythonValue> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let place = match first {
            "" => {
                self.next += 1;
                Some(self.next - 1)
            }
            digits => digits.parse().ok(),
        };
        if place.is_some() {
            let numbering = if first.is_empty() { FieldNumbering::Automatic } else { FieldNumbering::Manual };
            if *self.numbering.get_or_insert(numbering) != numbering {
                refuse!("cannot switch between manual field specification and automatic field numbering");
            }
        }
        let missing = || RenderFault::failed(format_args!("no value for the field '{first}'"));
        let mut value = match place {
            Some(place) => self.places.get(place).cloned(),
            None => self.names.iter().find(|(known, _)| known.as_ref() == first).map(|(_, value)| value.clone()),
        }
        .ok_or_else(missing)?;
        while !rest.is_empty() {
            value = if let Some(behind) = rest.strip_prefix('[') {
                let (key, behind) =
                    behind.split_once(']').ok_or_else(|| RenderFault::failed("Missing ']' in format string"))?;
                rest = behind;
                let key = key.parse().map_or_else(|_| PythonValue::text(key), PythonValue::Int);
                attributes::item(&value, &key)?
            } else {
                let behind = &rest[1..];
                let end = behind.find(['.', '[']).unwrap_or(behind.len());
                rest = &behind[end..];
                attributes::attribute(&value, &behind[..end])?
            };
        }
        Ok(value)
    }
}

/// Python's `format(value, spec)`.
fn formatted(value: &PythonValue, spec: &str) -> RenderResult<String> {
    if spec.is_empty() {
        return value.print();
    }
    let mut spec = Spec::parse(spec)?;
    bounded(spec.width)?;
    if let Some(text) = value.as_str() {
        if !matches!(spec.kind, None | Some('s')) || spec.align == Some('=') || spec.sign != '-' || spec.group.is_some()
        {
            refuse!("Unknown format code for object of type 'str'");
        }
        if spec.zero {
            (spec.fill, spec.zero) = (if spec.align.is_none() || spec.fill == ' ' { '0' } else { spec.fill }, false);
        }
        let cut = spec.precision.map_or(text.len(), |most| place_of(text, most));
        return Ok(spec.padded(&text[..cut], '<'));
    }
    match (value, spec.kind) {
        (PythonValue::Bool(_) | PythonValue::Int(_), Some('c')) if spec.precision.is_none() && spec.sign == '-' => {
            let code = value.as_int().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32);
            let Some(c) = code else { refuse!("%c arg not in range(0x110000)") };
            Ok(spec.padded(&c.to_string(), '<'))
        }
        (PythonValue::Bool(_) | PythonValue::Int(_), None | Some('d' | 'n' | 'x' | 'X' | 'o' | 'b'))
            if spec.precision.is_none() =>
        {
            spec.integer(value.as_int().unwrap_or(0), spec.kind.unwrap_or('d'))
        }
        (
            PythonValue::Bool(_) | PythonValue::Int(_) | PythonValue::Float(_),
            Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')),
        ) => spec.float(value.as_float().unwrap_or(0.0), kind),
        (PythonValue::Float(number), Some('n')) => spec.float(*number, 'g'),
        (PythonValue::Float(number), None) => match spec.precision {
            None => spec.float(*number, 'r'),
            Some(_) => {
                let text = spec.float(*number, 'g')?;
                Ok(text)
            }
        },
        (other, _) => refuse!("unsupported format string passed to {}.__format__", other.kind()),
    }
}
