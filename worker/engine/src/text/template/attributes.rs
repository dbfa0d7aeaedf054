//! Attributes and items of values, as the reference's sandbox gives them out.

use std::sync::Arc;

use super::fault::RenderResult;
use super::macros::MacroHandle;
use super::value::{LoopState, Method, PythonValue, lock};

const TEXT: [&str; 46] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
    "encode",
    "translate",
];
const DICT: [&str; 6] = ["get", "items", "keys", "values", "copy", "fromkeys"];
const LIST: [&str; 3] = ["count", "index", "copy"];
const TUPLE: [&str; 2] = ["count", "index"];
const INT: [&str; 6] = ["bit_length", "bit_count", "conjugate", "as_integer_ratio", "to_bytes", "from_bytes"];
const FLOAT: [&str; 4] = ["is_integer", "conjugate", "as_integer_ratio", "hex"];
const CYCLER: [&str; 2] = ["next", "reset"];

/// Attributes of every object that a template may ask for, in vain.
const OBJECT: [&str; 26] = [
    "__class__",
    "__delattr__",
    "__dir__",
    "__doc__",
    "__eq__",
    "__format__",
    "__ge__",
    "__getattribute__",
    "__getstate__",
    "__gt__",
    "__hash__",
    "__init__",
    "__init_subclass__",
    "__iter__",
    "__le__",
    "__len__",
    "__lt__",
    "__ne__",
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__repr__",
    "__setattr__",
    "__sizeof__",
    "__str__",
    "__subclasshook__",
];

/// Methods that change a list or a mapping, which the sandbox refuses.
const LIST_CHANGES: [&str; 8] = ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const DICT_CHANGES: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// `value.name`: an attribute of the type, else an item.
pub(super) fn attribute(value: &PythonValue, name: &str) -> RenderResult<PythonValue> {
    Ok(match own(value, name)? {
        Some(found) => found,
        None => indexed(value, &PythonValue::text(name))?.unwrap_or_else(|| absent(value, name)),
    })
}

/// `value.name` without items, for the filter `attr`.
pub(super) fn own_attribute(value: &PythonValue, name: &str) -> RenderResult<PythonValue> {
    Ok(own(value, name)?.unwrap_or_else(|| absent(value, name)))
}

/// `value[key]`: an item, else an attribute.
pub(super) fn item(value: &PythonValue, key: &PythonValue) -> RenderResult<PythonValue> {
    value.defined()?;
    if let Some(found) = indexed(value, key)? {
        return Ok(found);
    }
    let own = key.as_str().map(|name| own(value, name)).transpose()?.flatten();
    Ok(own.unwrap_or_else(|| match key.as_str() {
        Some(name) => absent(value, name),
        None => PythonValue::Undefined(format!("{} object has no such element", value.kind()).into()),
    }))
}

/// Whether a value takes an index, so that `%` does not miss the use of it.
pub(super) fn is_subscriptable(value: &PythonValue) -> bool {
    matches!(
        value,
        PythonValue::Dict(_)
            | PythonValue::List(_)
            | PythonValue::Range(_)
            | PythonValue::Undefined(_)
            | PythonValue::Template(_)
    )
}

fn absent(value: &PythonValue, name: &str) -> PythonValue {
    PythonValue::Undefined(format!("'{} object' has no attribute '{name}'", value.kind()).into())
}

/// An attribute that the sandbox keeps to itself: it counts as undefined.
fn unsafe_attribute(value: &PythonValue, name: &str) -> PythonValue {
    PythonValue::Undefined(format!("access to attribute '{name}' of '{}' object is unsafe.", value.kind()).into())
}

fn own(value: &PythonValue, name: &str) -> RenderResult<Option<PythonValue>> {
    if OBJECT.contains(&name) {
        return Ok(Some(unsafe_attribute(value, name)));
    }
    value.defined()?;
    let changes: &[&str] = match value {
        PythonValue::List(_) => &LIST_CHANGES,
        PythonValue::Dict(_) => &DICT_CHANGES,
        _ => &[],
    };
    if changes.contains(&name) {
        return Ok(Some(unsafe_attribute(value, name)));
    }
    if let PythonValue::Tuple(items) = value
        && let Some(at) = items.names.iter().position(|known| *known == name)
    {
        return Ok(items.values.get(at).cloned());
    }
    let methods: &[&'static str] = match value {
        PythonValue::Text(_) | PythonValue::Markup(_) => &TEXT,
        PythonValue::Dict(_) => &DICT,
        PythonValue::List(_) => &LIST,
        PythonValue::Tuple(_) | PythonValue::Range(_) => &TUPLE,
        PythonValue::Bool(_) | PythonValue::Int(_) => &INT,
        PythonValue::Float(_) => &FLOAT,
        PythonValue::Cycler(_) => &CYCLER,
        PythonValue::Loop(_) => &["cycle", "changed"],
        PythonValue::Function("dict") => &["fromkeys"],
        _ => &[],
    };
    if let Some(name) = methods.iter().find(|known| **known == name) {
        return Ok(Some(PythonValue::Method(Arc::new(Method { this: value.clone(), name }))));
    }
    Ok(match value {
        PythonValue::Namespace(shared) => shared.get(name),
        PythonValue::Loop(state) => loop_attribute(state, name),
        PythonValue::Macro(made) => macro_attribute(made, name)?,
        PythonValue::Cycler(cycler) if name == "current" => cycler.items.get(*lock(&cycler.place)).cloned(),
        PythonValue::Cycler(cycler) if name == "items" => Some(PythonValue::tuple(cycler.items.clone())?),
        PythonValue::Bool(_) | PythonValue::Int(_) => match name {
            "real" | "numerator" => value.as_int().map(PythonValue::Int),
            "imag" => Some(PythonValue::Int(0)),
            "denominator" => Some(PythonValue::Int(1)),
            _ => None,
        },
        PythonValue::Float(number) => match name {
            "real" => Some(PythonValue::Float(*number)),
            "imag" => Some(PythonValue::Float(0.0)),
            _ => None,
        },
        PythonValue::Range(range) => match name {
            "start" => Some(PythonValue::Int(range.start)),
            "stop" => Some(PythonValue::Int(range.stop)),
            "step" => Some(PythonValue::Int(range.step)),
            _ => None,
        },
        _ => None,
    })
}

fn indexed(value: &PythonValue, key: &PythonValue) -> RenderResult<Option<PythonValue>> {
    Ok(match value {
        PythonValue::Template(blocks) => {
            let block = blocks.iter().find(|name| key.as_str() == Some(name));
            block.map(|name| PythonValue::Block(Arc::clone(name)))
        }
        PythonValue::Dict(dict) => match key.as_str() {
            Some(name) => dict.named(name).cloned(),
            // A value that cannot be a key is not there.
            None => key.key().ok().and_then(|key| dict.get(&key).cloned()),
        },
        PythonValue::List(_)
        | PythonValue::Tuple(_)
        | PythonValue::Range(_)
        | PythonValue::Text(_)
        | PythonValue::Markup(_) => {
            let Some(at) = key.as_int() else { return Ok(None) };
            let length = value.length().unwrap_or(0) as i128;
            let at = if at < 0 { at + length } else { at };
            let Some(at) = usize::try_from(at).ok().filter(|at| (*at as i128) < length) else { return Ok(None) };
            match value {
                PythonValue::List(items) | PythonValue::Tuple(items) => items.values.get(at).cloned(),
                PythonValue::Range(range) => Some(PythonValue::Int(range.start + at as i128 * range.step)),
                other => {
                    let c = other.as_str().and_then(|text| text.chars().nth(at));
                    c.map(|c| match other {
                        PythonValue::Markup(_) => PythonValue::Markup(c.to_string().into()),
                        _ => PythonValue::text(c.to_string()),
                    })
                }
            }
        }
        _ => None,
    })
}

/// An attribute of `loop`.
fn loop_attribute(state: &LoopState, name: &str) -> Option<PythonValue> {
    let (place, length) = (state.place(), state.items.len());
    let beside = |at: Option<usize>, what: &str| {
        let item = at.and_then(|at| state.items.get(at)).cloned();
        item.unwrap_or_else(|| PythonValue::Undefined(format!("there is no {what} item").into()))
    };
    Some(match name {
        "index" => PythonValue::Int(place as i128 + 1),
        "index0" => PythonValue::Int(place as i128),
        "revindex" => PythonValue::Int((length - place) as i128),
        "revindex0" => PythonValue::Int((length - place) as i128 - 1),
        "first" => PythonValue::Bool(place == 0),
        "last" => PythonValue::Bool(place + 1 == length),
        "length" => PythonValue::Int(length as i128),
        "depth" => PythonValue::Int(state.depth as i128 + 1),
        "depth0" => PythonValue::Int(state.depth as i128),
        "previtem" => beside(place.checked_sub(1), "previous"),
        "nextitem" => beside(Some(place + 1), "next"),
        _ => return None,
    })
}

fn macro_attribute(made: &MacroHandle, name: &str) -> RenderResult<Option<PythonValue>> {
    Ok(match name {
        "name" => Some(PythonValue::Text(Arc::clone(&made.name))),
        "catch_kwargs" => Some(PythonValue::Bool(made.reads.kwargs)),
        "catch_varargs" => Some(PythonValue::Bool(made.reads.varargs)),
        "caller" => Some(PythonValue::Bool(made.reads.caller)),
        "arguments" => {
            let names = made.parameters.iter().map(|name| PythonValue::Text(Arc::clone(name)));
            Some(PythonValue::tuple(names.collect())?)
        }
        _ => None,
    })
}
