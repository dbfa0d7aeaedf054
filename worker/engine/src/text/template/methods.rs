//! The methods of values.

use std::sync::Arc;

use super::arguments::{Arguments, integer};
use super::fault::{RenderResult, refuse};
use super::value::{Dict, LoopState, Method, PythonValue, ViewKind, lock};
use super::{functions, printing, text};

/// Calls a method.
pub(super) fn call(method: &Method, arguments: &Arguments) -> RenderResult<PythonValue> {
    let Method { this, name } = method;
    match this {
        PythonValue::Text(_) | PythonValue::Markup(_) => text::call(this, name, arguments),
        PythonValue::Dict(dict) => call_dict(dict, name, arguments),
        PythonValue::List(items) | PythonValue::Tuple(items) => match *name {
            "copy" => {
                arguments.none()?;
                PythonValue::list(items.values.clone())
            }
            _ => counted(&items.values, name, arguments),
        },
        PythonValue::Range(_) => counted(&this.items()?, name, arguments),
        PythonValue::Cycler(cycler) => {
            arguments.none()?;
            let mut place = lock(&cycler.place);
            if *name == "reset" {
                *place = 0;
                return Ok(PythonValue::None);
            }
            let current = cycler.items.get(*place).cloned();
            *place = (*place + 1) % cycler.items.len().max(1);
            Ok(current.unwrap_or(PythonValue::None))
        }
        PythonValue::Loop(state) => call_loop(state, name, arguments),
        PythonValue::Function(_) => functions::mapping_of_keys(arguments),
        PythonValue::Float(number) => match *name {
            "is_integer" => Ok(PythonValue::Bool(number.fract() == 0.0)),
            "conjugate" => Ok(this.clone()),
            "as_integer_ratio" => ratio(*number),
            "hex" => Ok(PythonValue::text(hexadecimal(*number))),
            _ => refuse!("'{name}' of floats is not supported"),
        },
        other => {
            let number = other.as_int().unwrap_or(0);
            if matches!(*name, "to_bytes" | "from_bytes") {
                refuse!("bytes are not supported");
            }
            arguments.none()?;
            Ok(match *name {
                "bit_length" => PythonValue::Int(i128::from(u128::BITS - number.unsigned_abs().leading_zeros())),
                "bit_count" => PythonValue::Int(i128::from(number.unsigned_abs().count_ones())),
                "conjugate" => PythonValue::Int(number),
                _ => PythonValue::tuple(vec![PythonValue::Int(number), PythonValue::Int(1)])?,
            })
        }
    }
}

/// A float as a numerator and a denominator.
fn ratio(number: f64) -> RenderResult<PythonValue> {
    if !number.is_finite() {
        refuse!("cannot convert {} to integer ratio", printing::float(number));
    }
    let (mut top, mut below) = (number, 1_i128);
    while top.fract() != 0.0 {
        let Some(doubled) = below.checked_mul(2) else { refuse!("an integer of more than 127 bits") };
        (top, below) = (top * 2.0, doubled);
    }
    if top.abs() >= 1e38 {
        refuse!("an integer of more than 127 bits");
    }
    PythonValue::tuple(vec![PythonValue::Int(top as i128), PythonValue::Int(below)])
}

/// A float's bits, as Python's `hex` spells them.
fn hexadecimal(number: f64) -> String {
    if !number.is_finite() {
        return printing::float(number);
    }
    let sign = if number.is_sign_negative() { "-" } else { "" };
    let (exponent, digits) = ((number.to_bits() >> 52) & 0x7ff, number.to_bits() & ((1 << 52) - 1));
    match (exponent, digits) {
        (0, 0) => format!("{sign}0x0.0p+0"),
        (0, digits) => format!("{sign}0x0.{digits:013x}p-1022"),
        (exponent, digits) => format!("{sign}0x1.{digits:013x}p{:+}", exponent.cast_signed() - 1023),
    }
}

fn counted(items: &[PythonValue], name: &str, arguments: &Arguments) -> RenderResult<PythonValue> {
    let [wanted, start, end] = arguments.bind(["_", "_", "_"], 1)?;
    let wanted = wanted.unwrap_or(PythonValue::None);
    if name == "count" {
        if start.is_some() {
            refuse!("count() takes exactly one argument");
        }
        return Ok(PythonValue::Int(items.iter().filter(|item| item.equals(&wanted)).count() as i128));
    }
    let bound = |at: Option<i128>, default: i128| {
        let at = at.unwrap_or(default);
        if at < 0 { (at + items.len() as i128).max(0) } else { at }
    };
    let (start, end) = (bound(integer(start.as_ref())?, 0), bound(integer(end.as_ref())?, items.len() as i128));
    let found = |(at, item): &(usize, &PythonValue)| (start..end).contains(&(*at as i128)) && item.equals(&wanted);
    match items.iter().enumerate().find(found) {
        Some((at, _)) => Ok(PythonValue::Int(at as i128)),
        None => refuse!("the value is not in the list"),
    }
}

fn call_dict(dict: &Arc<Dict>, name: &str, arguments: &Arguments) -> RenderResult<PythonValue> {
    let view = |kind| {
        arguments.none()?;
        Ok(PythonValue::View(kind, Arc::clone(dict)))
    };
    match name {
        "items" => view(ViewKind::Items),
        "keys" => view(ViewKind::Keys),
        "values" => view(ViewKind::Values),
        "copy" => {
            arguments.none()?;
            Ok(PythonValue::Dict(Arc::clone(dict)))
        }
        "get" => {
            let [key, default] = arguments.bind(["_", "_"], 1)?;
            let key = key.unwrap_or(PythonValue::None).key()?;
            Ok(dict.get(&key).cloned().or(default).unwrap_or(PythonValue::None))
        }
        _ => functions::mapping_of_keys(arguments),
    }
}

/// `cycle` and `changed` of `loop`.
fn call_loop(state: &LoopState, name: &str, arguments: &Arguments) -> RenderResult<PythonValue> {
    if !arguments.names.is_empty() {
        refuse!("{name}() takes no keyword arguments");
    }
    let values = &arguments.places;
    if name == "cycle" {
        return match values.get(state.place() % values.len().max(1)) {
            Some(value) => Ok(value.clone()),
            None => refuse!("no items for cycling given"),
        };
    }
    let mut before = lock(&state.changed);
    let is_same = before.as_ref().is_some_and(|before| {
        before.len() == values.len() && before.iter().zip(values).all(|(before, value)| before.equals(value))
    });
    if !is_same {
        *before = Some(values.clone());
    }
    Ok(PythonValue::Bool(!is_same))
}
