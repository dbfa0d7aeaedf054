//! Jinja2's tests, the words after `is`: which exist, and what each decides.

use super::arguments::Arguments;
use super::fault::{RenderResult, refuse};
use super::fuel::Fuel;
use super::operators::{self, Comparison, Operator};
use super::value::PythonValue;
use super::{names, text};

/// Whether a value passes a test.
pub(super) fn apply(fuel: &mut Fuel, name: &str, value: &PythonValue, arguments: &Arguments) -> RenderResult<bool> {
    let comparison = match name {
        "==" | "eq" | "equalto" => Some(Comparison::Equal),
        "!=" | "ne" => Some(Comparison::NotEqual),
        "<" | "lt" | "lessthan" => Some(Comparison::Less),
        "<=" | "le" => Some(Comparison::LessOrEqual),
        ">" | "gt" | "greaterthan" => Some(Comparison::Greater),
        ">=" | "ge" => Some(Comparison::GreaterOrEqual),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if let Some(comparison) = comparison {
        let other = arguments.one()?;
        fuel.spend(value.weight().saturating_add(other.weight()))?;
        return operators::compare(comparison, value, &other);
    }
    let divided = |by: &PythonValue| {
        let rest = operators::apply(Operator::Remainder, value, by)?;
        Ok(rest)
    };
    match name {
        "divisibleby" => {
            let [number] = arguments.bind(["num"], 1)?;
            return Ok(divided(&number.unwrap_or(PythonValue::None))?.equals(&PythonValue::Int(0)));
        }
        "sameas" => {
            let [other] = arguments.bind(["other"], 1)?;
            return Ok(other.is_some_and(|other| value.is_same(&other)));
        }
        _ => {}
    }
    if !names::TESTS.contains(&name) {
        refuse!("No test named '{name}'.");
    }
    arguments.none()?;
    Ok(match name {
        "boolean" => matches!(value, PythonValue::Bool(_)),
        "callable" => matches!(
            value,
            PythonValue::Undefined(_)
                | PythonValue::Function(_)
                | PythonValue::Method(_)
                | PythonValue::Macro(_)
                | PythonValue::Joiner(_)
                | PythonValue::Loop(_)
                | PythonValue::Block(_)
        ),
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "escaped" => matches!(value, PythonValue::Markup(_)),
        "even" => divided(&PythonValue::Int(2))?.equals(&PythonValue::Int(0)),
        "odd" => divided(&PythonValue::Int(2))?.equals(&PythonValue::Int(1)),
        "true" => matches!(value, PythonValue::Bool(true)),
        "false" => matches!(value, PythonValue::Bool(false)),
        "none" => value.is_none(),
        "float" => matches!(value, PythonValue::Float(_)),
        "integer" => matches!(value, PythonValue::Int(_)),
        "number" => value.as_float().is_some(),
        "string" => value.as_str().is_some(),
        "mapping" => matches!(value, PythonValue::Dict(_)),
        "iterable" => value.is_iterable(),
        "sequence" => !matches!(value, PythonValue::View(..) | PythonValue::Loop(_)) && value.length().is_some(),
        "lower" => text::is_lower(&value.print()?),
        "upper" => text::is_upper(&value.print()?),
        "filter" => {
            value.key()?;
            value.as_str().is_some_and(|name| names::FILTERS.contains(&name))
        }
        _ => {
            value.key()?;
            value.as_str().is_some_and(|name| names::TESTS.contains(&name))
        }
    })
}
