//! Jinja2's filters for single values. Those for sequences are in `sequences`.

use std::num::IntErrorKind;

use super::arguments::{Arguments, integer, text};
use super::fault::{RenderFault, RenderResult, refuse};
use super::fuel::Fuel;
use super::letters::capitalized;
use super::markup::escaped;
use super::numerals::decimal;
use super::printing::{bounded, with_sorted_keys};
use super::text as texts;
use super::value::PythonValue;
use super::{attributes, names, operators, percent, sequences, tojson, wordwrap};

/// The value that a filter makes of another one.
pub(super) fn apply(
    fuel: &mut Fuel,
    name: &str,
    value: &PythonValue,
    arguments: &Arguments,
) -> RenderResult<PythonValue> {
    let is_cheap =
        matches!(name, "length" | "count" | "first" | "last" | "default" | "d" | "safe" | "string" | "items");
    let is_deep = matches!(name, "sort" | "unique" | "min" | "max" | "groupby" | "dictsort" | "join" | "sum");
    fuel.spend(match (is_cheap, is_deep) {
        (true, _) => 0,
        (_, true) => value.weight(),
        _ => value.size(),
    })?;
    let made = match sequences::apply(fuel, name, value, arguments, apply)? {
        Some(made) => made,
        None => single(name, value, arguments)?,
    };
    finished(fuel, made, is_cheap)
}

/// A value that a filter made, within the limits of texts.
pub(super) fn finished(fuel: &mut Fuel, made: PythonValue, is_cheap: bool) -> RenderResult<PythonValue> {
    // Some filters make a text of a few times the length.
    bounded(made.as_str().map_or(0, str::len))?;
    fuel.spend(if is_cheap { 0 } else { made.size() })?;
    Ok(made)
}

fn single(name: &str, value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    // A text in, a text out: it stays marked if it was.
    let same = |text: String| match value {
        PythonValue::Markup(_) => PythonValue::Markup(text.into()),
        _ => PythonValue::text(text),
    };
    Ok(match name {
        "tojson" => tojson::tojson(value, arguments)?,
        "default" | "d" => {
            let [default, boolean] = arguments.bind(["default_value", "boolean"], 0)?;
            let is_missing =
                value.is_undefined() || boolean.is_some_and(|boolean| boolean.is_true()) && !value.is_true();
            if is_missing { default.unwrap_or_else(|| PythonValue::text("")) } else { value.clone() }
        }
        "string" => {
            arguments.none()?;
            if value.as_str().is_some() { value.clone() } else { PythonValue::text(value.print()?) }
        }
        "safe" => {
            arguments.none()?;
            PythonValue::Markup(value.print()?.into())
        }
        "e" | "escape" => {
            arguments.none()?;
            if matches!(value, PythonValue::Markup(_)) {
                value.clone()
            } else {
                PythonValue::Markup(escaped(&value.print()?).into())
            }
        }
        "forceescape" => {
            arguments.none()?;
            PythonValue::Markup(escaped(&value.print()?).into())
        }
        "upper" | "lower" | "capitalize" => {
            arguments.none()?;
            let text = value.print()?;
            same(match name {
                "upper" => text.to_uppercase(),
                "lower" => text.to_lowercase(),
                _ => capitalized(&text),
            })
        }
        "title" => {
            arguments.none()?;
            same(title(&value.print()?))
        }
        "trim" => {
            let [set] = arguments.bind(["chars"], 0)?;
            same(texts::stripped("strip", &value.print()?, set.as_ref())?.to_owned())
        }
        "replace" => replace(value, arguments)?,
        "center" => {
            let [width] = arguments.bind(["width"], 0)?;
            let width = usize::try_from(integer(width.as_ref())?.unwrap_or(80)).unwrap_or(0);
            bounded(width)?;
            same(texts::centered(&value.print()?, width, " "))
        }
        "indent" => same(indent(value, arguments)?),
        "truncate" => match truncate(value, arguments)? {
            Some(text) => same(text),
            None => value.clone(),
        },
        "wordcount" => {
            arguments.none()?;
            let text = value.print()?;
            let words = text.split(|c: char| !texts::is_alphanumeric(c) && c != '_').filter(|word| !word.is_empty());
            PythonValue::Int(words.count() as i128)
        }
        "striptags" => {
            arguments.none()?;
            PythonValue::text(without_tags(&value.print()?))
        }
        "urlencode" => urlencode(value)?,
        "wordwrap" => wordwrap::wordwrap(value, arguments)?,
        "format" => {
            let text = value.print()?;
            match (arguments.places.is_empty(), arguments.names.is_empty()) {
                (false, false) => refuse!("can't handle positional and keyword arguments at the same time"),
                (true, false) => {
                    let names =
                        arguments.names.iter().map(|(name, value)| (PythonValue::Text(name.clone()), value.clone()));
                    percent::percent(&same(text), &PythonValue::dict(names)?)?
                }
                _ => percent::percent(&same(text), &PythonValue::tuple(arguments.places.clone())?)?,
            }
        }
        "int" => to_int(value, arguments)?,
        "float" => {
            let [default] = arguments.bind(["default"], 0)?;
            let read = match value.defined()?.as_str() {
                Some(text) => float_of(text),
                None => value.as_float(),
            };
            read.map(PythonValue::Float).or(default).unwrap_or(PythonValue::Float(0.0))
        }
        "abs" => {
            arguments.none()?;
            match value.defined()? {
                PythonValue::Float(number) => PythonValue::Float(number.abs()),
                other => match other.as_int() {
                    Some(number) if number < 0 => operators::negative(other)?,
                    Some(number) => PythonValue::Int(number),
                    None => refuse!("bad operand type for abs(): '{}'", other.kind()),
                },
            }
        }
        "round" => round(value, arguments)?,
        "filesizeformat" => PythonValue::text(file_size(value, arguments)?),
        "xmlattr" => PythonValue::text(xml_attributes(value, arguments)?),
        "random" => {
            arguments.none()?;
            match (value.length(), attributes::item(value, &PythonValue::Int(0))) {
                (Some(0), _) => PythonValue::Undefined("No random item, sequence was empty.".into()),
                (Some(1), Ok(only)) if !matches!(value, PythonValue::Dict(_)) => only,
                _ => refuse!("random items are not supported"),
            }
        }
        // Longer values are wrapped there, which no prompt is.
        "pprint" => {
            arguments.none()?;
            let text = with_sorted_keys(value)?.repr()?;
            if text.chars().count() > 80 {
                refuse!("pprint of more than one line is not supported");
            }
            PythonValue::text(text)
        }
        "attr" => {
            let [name] = arguments.bind(["name"], 1)?;
            let name = name.unwrap_or(PythonValue::None);
            let Some(name) = name.as_str() else { refuse!("attribute name must be string, not '{}'", name.kind()) };
            attributes::own_attribute(value, name)?
        }
        _ if names::FILTERS.contains(&name) => refuse!("the filter '{name}' is not supported"),
        _ => refuse!("No filter named '{name}'."),
    })
}

/// Each word with a large first letter. A word begins behind a space, a hyphen or an opening bracket.
fn title(text: &str) -> String {
    let is_border = |c: char| texts::is_space(c) || "-({[<".contains(c);
    let of_word = |part: &str| {
        let mut rest = part.chars();
        let first: String = rest.next().into_iter().flat_map(char::to_uppercase).collect();
        first + &rest.as_str().to_lowercase()
    };
    text.split_inclusive(is_border)
        .map(|part| match part.strip_suffix(is_border) {
            Some(word) => of_word(word) + &part[word.len()..],
            None => of_word(part),
        })
        .collect()
}

fn replace(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [old, new, count] = arguments.bind(["old", "new", "count"], 2)?;
    let (old, new) = (old.unwrap_or(PythonValue::None).print()?, new.unwrap_or(PythonValue::None).print()?);
    let most = match count.filter(|count| !count.is_none()) {
        Some(count) => usize::try_from(integer(Some(&count))?.unwrap_or(-1)).unwrap_or(usize::MAX),
        None => usize::MAX,
    };
    Ok(PythonValue::text(texts::replaced(&value.print()?, &old, &new, most)?))
}

/// Spaces, or a text, in front of every line but the first; with `first` there too, with `blank` in front of empty
/// lines too.
fn indent(value: &PythonValue, arguments: &Arguments) -> RenderResult<String> {
    let [width, first, blank] = arguments.bind(["width", "first", "blank"], 0)?;
    let is_set = |flag: Option<PythonValue>| flag.is_some_and(|flag| flag.is_true());
    let space = match &width {
        None => "    ".to_owned(),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = usize::try_from(integer(Some(width))?.unwrap_or(0).max(0)).unwrap_or(usize::MAX);
                bounded(width)?;
                " ".repeat(width)
            }
        },
    };
    // The line feed at the end keeps the last line.
    let text = match value.defined()?.as_str() {
        Some(text) => text.to_owned() + "\n",
        None => refuse!("unsupported operand type(s) for +=: '{}' and 'str'", value.kind()),
    };
    let (is_first, is_blank) = (is_set(first), is_set(blank));
    let mut out = String::new();
    for (number, line) in texts::lines(&text, false).into_iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        if if number == 0 { is_first } else { is_blank || !line.is_empty() } {
            out.push_str(&space);
        }
        out.push_str(line);
        bounded(out.len())?;
    }
    Ok(out)
}

/// The beginning of a text, or None where the value is short enough.
fn truncate(value: &PythonValue, arguments: &Arguments) -> RenderResult<Option<String>> {
    let [length, kills_words, end, leeway] = arguments.bind(["length", "killwords", "end", "leeway"], 0)?;
    let length = integer(length.as_ref())?.unwrap_or(255);
    let end = end.map_or_else(|| Ok("...".to_owned()), |end| text(&end).map(str::to_owned))?;
    let leeway = integer(leeway.as_ref().filter(|leeway| !leeway.is_none()))?.unwrap_or(5);
    let kept = length - end.chars().count() as i128;
    if kept < 0 || leeway < 0 {
        refuse!("expected a length of at least {}, got {length}", end.chars().count());
    }
    let Some(count) = value.length() else { refuse!("object of type '{}' has no len()", value.kind()) };
    if count as i128 <= length + leeway {
        return Ok(None);
    }
    let text = match value.as_str() {
        Some(text) => text,
        None => refuse!("'{}' object has no attribute 'rsplit'", value.kind()),
    };
    let cut: String = text.chars().take(usize::try_from(kept).unwrap_or(0)).collect();
    let is_cut = kills_words.is_some_and(|kills| kills.is_true());
    let whole = if is_cut { cut.as_str() } else { cut.rsplit_once(' ').map_or(cut.as_str(), |(before, _)| before) };
    Ok(Some(whole.to_owned() + &end))
}

/// A number of bytes in the largest unit that it reaches.
fn file_size(value: &PythonValue, arguments: &Arguments) -> RenderResult<String> {
    let [binary] = arguments.bind(["binary"], 0)?;
    let (base, infix) = if binary.is_some_and(|binary| binary.is_true()) { (1024.0, "i") } else { (1000.0, "") };
    let number = match value.defined()?.as_str() {
        Some(text) => float_of(text),
        None => value.as_float(),
    };
    let Some(number) = number else { refuse!("could not convert '{}' to float", value.kind()) };
    if number == 1.0 {
        return Ok("1 Byte".to_owned());
    }
    if number < base {
        if !number.is_finite() {
            refuse!("cannot convert float infinity to integer");
        }
        return Ok(format!("{:.0} Bytes", number.trunc() + 0.0));
    }
    // The smallest unit is spelled with a small letter where it is a thousand.
    let units = [if infix.is_empty() { "k" } else { "K" }, "M", "G", "T", "P", "E", "Z", "Y"];
    let mut unit = base * base;
    let mut place = 0;
    while place + 1 < units.len() && number >= unit {
        (unit, place) = (unit * base, place + 1);
    }
    Ok(format!("{:.1} {}{infix}B", base * number / unit, units[place]))
}

/// The entries of a mapping as attributes of XML, but those without a value.
fn xml_attributes(value: &PythonValue, arguments: &Arguments) -> RenderResult<String> {
    let [autospace] = arguments.bind(["autospace"], 0)?;
    let PythonValue::Dict(dict) = value.defined()? else {
        refuse!("'{}' object has no attribute 'items'", value.kind())
    };
    let mut out = String::new();
    for (key, value) in dict.entries() {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let Some(name) = key.as_str() else { refuse!("expected string, got '{}'", key.kind()) };
        if name.contains(|c: char| c.is_ascii_whitespace() || c == '\u{b}' || "/>=".contains(c)) {
            refuse!("Invalid character in attribute name: {name}");
        }
        let marked = |value: &PythonValue| match value {
            PythonValue::Markup(text) => Ok(text.as_ref().to_owned()),
            other => other.print().map(|text| escaped(&text)),
        };
        out.push_str(&format!(" {}=\"{}\"", marked(key)?, marked(value)?));
        bounded(out.len())?;
    }
    let is_spaced = autospace.is_none_or(|autospace| autospace.is_true());
    Ok(if is_spaced { out } else { out.split_off(usize::from(!out.is_empty())) })
}

/// MarkupSafe's `striptags`: no comments and tags, and one space for each run of white space.
fn without_tags(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let (open, close) = if rest[at..].starts_with("<!--") { ("<!--", "-->") } else { ("<", ">") };
        let Some(end) = rest[at + open.len()..].find(close) else { break };
        out.push_str(&rest[..at]);
        rest = &rest[at + open.len() + end + close.len()..];
    }
    out.push_str(rest);
    let words: Vec<&str> = out.split(texts::is_space).filter(|word| !word.is_empty()).collect();
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&#39;", "'"), ("&#34;", "\""), ("&quot;", "\""), ("&amp;", "&")];
    entities.into_iter().fold(words.join(" "), |text, (entity, c)| text.replace(entity, c))
}

fn urlencode(value: &PythonValue) -> RenderResult<PythonValue> {
    let quoted = |value: &PythonValue, is_query: bool| {
        let mut out = String::new();
        for byte in value.print()?.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
                b'/' if !is_query => out.push('/'),
                b' ' if is_query => out.push('+'),
                other => out.push_str(&format!("%{other:02X}")),
            }
        }
        Ok::<_, RenderFault>(out)
    };
    let pairs = match value {
        PythonValue::Dict(dict) => dict.entries().to_vec(),
        value if value.as_str().is_some() || !value.is_iterable() => {
            return Ok(PythonValue::text(quoted(value, false)?));
        }
        value => {
            let mut pairs = Vec::new();
            for item in value.each() {
                let [key, value] =
                    <[PythonValue; 2]>::try_from(item?.items()?).map_err(|_| RenderFault::failed("not a pair"))?;
                pairs.push((key, value));
            }
            pairs
        }
    };
    let each = pairs.iter().map(|(key, value)| Ok(format!("{}={}", quoted(key, true)?, quoted(value, true)?)));
    Ok(PythonValue::text(each.collect::<RenderResult<Vec<_>>>()?.join("&")))
}

fn to_int(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [default, base] = arguments.bind(["default", "base"], 0)?;
    let base = u32::try_from(integer(base.as_ref())?.unwrap_or(10)).unwrap_or(10);
    let read = match (value.defined()?, value.as_str()) {
        (_, Some(text)) => match int_of(text, base)? {
            Some(number) => Some(number),
            None => float_of(text).filter(|number| number.is_finite()).map(whole).transpose()?,
        },
        (PythonValue::Float(number), _) if number.is_infinite() => {
            refuse!("cannot convert float infinity to integer")
        }
        (PythonValue::Float(number), _) if number.is_nan() => None,
        (PythonValue::Float(number), _) => Some(whole(*number)?),
        (other, _) => other.as_int(),
    };
    Ok(read.map(PythonValue::Int).or(default).unwrap_or(PythonValue::Int(0)))
}

/// A float's whole part.
fn whole(number: f64) -> RenderResult<i128> {
    if number.abs() < 1e38 { Ok(number as i128) } else { refuse!("an integer of more than 127 bits") }
}

/// Digits as Python reads them: with white space around, a sign, and single underscores between.
fn without_underscores(text: &str) -> Option<String> {
    let ascii = |c: char| decimal(c).and_then(|value| char::from_digit(value, 10)).unwrap_or(c);
    let text: String = text.trim_matches(texts::is_space).chars().map(ascii).collect();
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_alphanumeric);
    let fits = |(at, byte): (usize, &u8)| *byte != b'_' || is_digit(at.checked_sub(1)) && is_digit(Some(at + 1));
    bytes.iter().enumerate().all(fits).then(|| text.replace('_', ""))
}

fn int_of(text: &str, base: u32) -> RenderResult<Option<i128>> {
    let Some(text) = without_underscores(text) else { return Ok(None) };
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefixes: &[&str] = match base {
        16 => &["0x", "0X"],
        8 => &["0o", "0O"],
        2 => &["0b", "0B"],
        _ => &[],
    };
    let digits = prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix)).unwrap_or(digits);
    if !(2..=36).contains(&base) || !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Ok(None);
    }
    match i128::from_str_radix(digits, base) {
        Ok(number) => Ok(Some(if is_negative { -number } else { number })),
        // Python reads no more than 4,300 digits.
        Err(error) if *error.kind() == IntErrorKind::PosOverflow && digits.len() <= 4300 => {
            refuse!("an integer of more than 127 bits")
        }
        Err(_) => Ok(None),
    }
}

fn float_of(text: &str) -> Option<f64> {
    let text = without_underscores(text)?;
    let is_number = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    let is_word =
        matches!(text.trim_start_matches(['+', '-']).to_ascii_lowercase().as_str(), "inf" | "infinity" | "nan");
    if is_number || is_word { text.parse().ok() } else { None }
}

fn round(value: &PythonValue, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [precision, method] = arguments.bind(["precision", "method"], 0)?;
    let precision = integer(precision.as_ref())?.unwrap_or(0);
    let method = method.map_or_else(|| Ok("common".to_owned()), |method| text(&method).map(str::to_owned))?;
    let Some(number) = value.defined()?.as_float() else {
        refuse!("type {} doesn't define __round__ method", value.kind())
    };
    let places = i32::try_from(precision).unwrap_or(if precision < 0 { i32::MIN } else { i32::MAX });
    match method.as_str() {
        "common" => Ok(match (value.as_int(), usize::try_from(places)) {
            (Some(number), Ok(_)) => PythonValue::Int(number),
            (Some(number), Err(_)) => PythonValue::Int(rounded_to_tens(number, places.unsigned_abs())?),
            // Rust rounds the exact value, as Python does.
            (None, Ok(places)) if number.is_finite() && places < 400 => {
                PythonValue::Float(format!("{number:.places$}").parse().unwrap_or(number))
            }
            (None, Ok(_)) => PythonValue::Float(number),
            (None, Err(_)) => {
                let scale = 10_f64.powi(places.saturating_neg());
                PythonValue::Float(if scale.is_finite() { (number / scale).round_ties_even() * scale } else { 0.0 })
            }
        }),
        "ceil" | "floor" => {
            let scale = 10_f64.powi(places);
            let scaled = number * scale;
            if !scaled.is_finite() {
                refuse!("cannot convert float infinity to integer");
            }
            Ok(PythonValue::Float(if method == "ceil" { scaled.ceil() } else { scaled.floor() } / scale))
        }
        _ => refuse!("method must be common, ceil or floor"),
    }
}

fn rounded_to_tens(number: i128, places: u32) -> RenderResult<i128> {
    let Some(scale) = 10_i128.checked_pow(places) else { return Ok(0) };
    let rest = number.rem_euclid(scale);
    let below = number - rest;
    let is_up = rest * 2 > scale || rest * 2 == scale && (below / scale) % 2 != 0;
    Ok(if is_up { below + scale } else { below })
}
