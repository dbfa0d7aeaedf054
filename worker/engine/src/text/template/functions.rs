//! The functions that every template may call: Jinja2's, and those of `transformers`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::arguments::{Arguments, integer, text};
use super::fault::{RenderFault, RenderResult, refuse};
use super::value::{Cycler, Dict, Joiner, PythonValue, Range};

const NAMES: [&str; 8] =
    ["cycler", "dict", "joiner", "lipsum", "namespace", "raise_exception", "range", "strftime_now"];

/// The longest range, as the reference's sandbox bounds it.
const LONGEST_RANGE: i128 = 100_000;

/// The function of this name.
pub(super) fn named(name: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|known| *known == name)
}

/// Calls a function.
pub(super) fn call(name: &str, arguments: &Arguments) -> RenderResult<PythonValue> {
    match name {
        "range" => range(arguments),
        "dict" => Ok(PythonValue::Dict(Arc::new(mapping(arguments)?))),
        "namespace" => {
            let dict = mapping(arguments)?;
            dict.entries().iter().filter_map(|(key, _)| key.as_str()).try_for_each(stored_attribute)?;
            Ok(PythonValue::namespace(dict))
        }
        "lipsum" => refuse!("random text is not supported"),
        "joiner" => {
            let [separator] = arguments.bind(["sep"], 0)?;
            let separator = separator.unwrap_or_else(|| PythonValue::text(", "));
            Ok(PythonValue::Joiner(Arc::new(Joiner { separator, used: AtomicBool::new(false) })))
        }
        "cycler" => {
            if arguments.places.is_empty() || !arguments.names.is_empty() {
                refuse!("at least one item has to be provided");
            }
            Ok(PythonValue::Cycler(Arc::new(Cycler { items: arguments.places.clone(), place: Mutex::new(0) })))
        }
        "raise_exception" => {
            let [message] = arguments.bind(["message"], 1)?;
            Err(RenderFault::Raised(message.unwrap_or(PythonValue::None).print()?))
        }
        _ => {
            let [format] = arguments.bind(["format"], 1)?;
            strftime_now(text(&format.unwrap_or(PythonValue::None))?)
        }
    }
}

/// Refuses attributes of namespaces that begin with an underscore, as `transformers` does.
pub(super) fn stored_attribute(name: &str) -> RenderResult<()> {
    if name.starts_with('_') {
        refuse!("Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{name}'");
    }
    Ok(())
}

/// `dict.fromkeys`: a mapping of these keys to one value.
pub(super) fn mapping_of_keys(arguments: &Arguments) -> RenderResult<PythonValue> {
    let [keys, value] = arguments.bind(["_", "_"], 1)?;
    let value = value.unwrap_or(PythonValue::None);
    let keys = keys.unwrap_or(PythonValue::None).items()?;
    PythonValue::dict(keys.into_iter().map(|key| (key, value.clone())))
}

/// The text that a joiner gives: nothing at first, then its separator.
pub(super) fn join(joiner: &Joiner, arguments: &Arguments) -> RenderResult<PythonValue> {
    arguments.none()?;
    let is_first = !joiner.used.swap(true, Ordering::Relaxed);
    Ok(if is_first { PythonValue::text("") } else { joiner.separator.clone() })
}

fn range(arguments: &Arguments) -> RenderResult<PythonValue> {
    let [first, second, step] = arguments.bind(["_", "_", "_"], 1)?;
    let (first, second) = (integer(first.as_ref())?.unwrap_or(0), integer(second.as_ref())?);
    let step = integer(step.as_ref())?.unwrap_or(1);
    let (start, stop) = second.map_or((0, first), |second| (first, second));
    if step == 0 {
        refuse!("range() arg 3 must not be zero");
    }
    let distance = if step > 0 { stop.checked_sub(start) } else { start.checked_sub(stop) };
    let beyond =
        || RenderFault::failed(format_args!("Range too big. The sandbox blocks ranges larger than {LONGEST_RANGE}"));
    let distance = distance.ok_or_else(beyond)?;
    let length = if distance <= 0 { 0 } else { (distance - 1) / step.checked_abs().ok_or_else(beyond)? + 1 };
    let end = step.checked_mul(length).and_then(|all| start.checked_add(all));
    if length > LONGEST_RANGE || end.is_none() {
        return Err(beyond());
    }
    Ok(PythonValue::Range(Range { start, stop, length, step }))
}

/// Python's `dict(...)`: a mapping or pairs, and names.
fn mapping(arguments: &Arguments) -> RenderResult<Dict> {
    let mut dict = Dict::default();
    match arguments.places.as_slice() {
        [] => {}
        [PythonValue::Dict(given)] => dict = given.as_ref().clone(),
        [pairs] => {
            for pair in pairs.defined()?.each() {
                let [key, value] = <[PythonValue; 2]>::try_from(pair?.items()?)
                    .map_err(|_| RenderFault::failed("dictionary update sequence elements must be pairs"))?;
                dict.insert(key, value)?;
            }
        }
        more => refuse!("dict expected at most 1 argument, got {}", more.len()),
    }
    for (name, value) in &arguments.names {
        dict.insert(PythonValue::Text(Arc::clone(name)), value.clone())?;
    }
    Ok(dict)
}

/// The format of a time as the C library reads it: fields in the usual language, and no field where none is known. The
/// time has no zone, as Python's `now` has none.
fn known_fields(format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let field = &rest[at + 1..];
        let flags = field.find(|c: char| !"-_0^#".contains(c)).unwrap_or(field.len());
        let width = field[flags..].find(|c: char| !c.is_ascii_digit()).map_or(field.len(), |at| flags + at);
        let letter = width + usize::from(field[width..].starts_with(['E', 'O']));
        let Some(known) =
            field[letter..].chars().next().filter(|c| "aAbBcCdDeFfgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%".contains(*c))
        else {
            out.push_str("%%");
            rest = field;
            continue;
        };
        match known {
            'x' => out.push_str("%m/%d/%y"),
            'X' => out.push_str("%H:%M:%S"),
            'c' => out.push_str("%a %b %e %H:%M:%S %Y"),
            'f' => out.push_str("%6f"),
            'z' | 'Z' => {}
            known => {
                out.push('%');
                let flags = &field[..flags];
                out.push_str(&if "aAbBh".contains(known) { flags.replace('#', "^") } else { flags.to_owned() });
                out.push_str(&field[flags.len()..width]);
                out.push(known);
            }
        }
        rest = &field[letter + 1..];
    }
    out + rest
}

/// The local time, by Python's format letters.
fn strftime_now(format: &str) -> RenderResult<PythonValue> {
    match jiff::fmt::strtime::format(known_fields(format), &jiff::Zoned::now()) {
        Ok(text) => Ok(PythonValue::text(text)),
        Err(error) => refuse!("strftime_now cannot use this format: {error}"),
    }
}
