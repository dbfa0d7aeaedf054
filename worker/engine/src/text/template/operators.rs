//! Python's operators.

use super::fault::{RenderFault, RenderResult, refuse};
use super::markup::escaped;
use super::percent;
use super::printing::bounded;
use super::value::{Items, PythonValue, Range};

/// An operator between two values that are both computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
    Concatenate,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

pub(super) fn compare(operator: Comparison, left: &PythonValue, right: &PythonValue) -> RenderResult<bool> {
    Ok(match operator {
        Comparison::Equal => left.equals(right),
        Comparison::NotEqual => !left.equals(right),
        Comparison::Less => left.order(right)?.is_some_and(|order| order.is_lt()),
        Comparison::LessOrEqual => left.order(right)?.is_some_and(|order| order.is_le()),
        Comparison::Greater => left.order(right)?.is_some_and(|order| order.is_gt()),
        Comparison::GreaterOrEqual => left.order(right)?.is_some_and(|order| order.is_ge()),
        Comparison::In => contains(right, left)?,
        Comparison::NotIn => !contains(right, left)?,
    })
}

/// Python's `item in container`.
pub(super) fn contains(container: &PythonValue, item: &PythonValue) -> RenderResult<bool> {
    if let Some(text) = container.as_str() {
        return match item.as_str() {
            Some(part) => Ok(text.contains(part)),
            None => refuse!("'in <string>' requires string as left operand, not {}", item.kind()),
        };
    }
    match container {
        PythonValue::Dict(dict) | PythonValue::View(super::value::ViewKind::Keys, dict) => {
            Ok(dict.get(&item.key()?).is_some())
        }
        container if container.is_iterable() => {
            for other in container.each() {
                if other?.equals(item) {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => refuse!("argument of type '{}' is not iterable", other.kind()),
    }
}

pub(super) fn apply(operator: Operator, left: &PythonValue, right: &PythonValue) -> RenderResult<PythonValue> {
    if operator == Operator::Concatenate {
        let text = left.print()? + &right.print()?;
        bounded(text.len())?;
        return Ok(PythonValue::text(text));
    }
    // `%` formats texts, in which an undefined value prints nothing.
    if operator == Operator::Remainder && left.as_str().is_some() {
        return percent::percent(left, right);
    }
    left.defined()?;
    right.defined()?;
    if let (Some(left_int), Some(right_int)) = (left.as_int(), right.as_int()) {
        return integers(operator, left_int, right_int);
    }
    if let (Some(left), Some(right)) = (left.as_float(), right.as_float()) {
        return floats(operator, left, right);
    }
    match operator {
        Operator::Add => add(left, right),
        Operator::Multiply => multiply(left, right),
        _ => None,
    }
    .unwrap_or_else(|| {
        let (left, right) = (left.kind(), right.kind());
        refuse!("unsupported operand type(s) for {operator:?}: '{left}' and '{right}'")
    })
}

fn add(left: &PythonValue, right: &PythonValue) -> Option<RenderResult<PythonValue>> {
    let joined = |left: &Items, right: &Items| [left.values.as_slice(), &right.values].concat();
    Some(match (left, right) {
        (PythonValue::List(left), PythonValue::List(right)) => PythonValue::list(joined(left, right)),
        (PythonValue::Tuple(left), PythonValue::Tuple(right)) => PythonValue::tuple(joined(left, right)),
        _ => add_texts(left, right)?,
    })
}

fn add_texts(left: &PythonValue, right: &PythonValue) -> Option<RenderResult<PythonValue>> {
    let (one, other) = (left.as_str()?, right.as_str()?);
    if let Err(limit) = bounded(one.len() + other.len()) {
        return Some(Err(limit));
    }
    Some(Ok(match (left, right) {
        (PythonValue::Markup(_), PythonValue::Markup(_)) => PythonValue::Markup([one, other].concat().into()),
        (PythonValue::Markup(_), _) => PythonValue::Markup((one.to_owned() + &escaped(other)).into()),
        (_, PythonValue::Markup(_)) => PythonValue::Markup((escaped(one) + other).into()),
        _ => PythonValue::text([one, other].concat()),
    }))
}

fn multiply(left: &PythonValue, right: &PythonValue) -> Option<RenderResult<PythonValue>> {
    let (sequence, times) = match (left.as_int(), right.as_int()) {
        (None, Some(times)) => (left, times),
        (Some(times), None) => (right, times),
        _ => return None,
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let size = |length: usize, item: usize| bounded(length.saturating_mul(item).saturating_mul(times));
    let repeated = |items: &Items| std::iter::repeat_n(&items.values, times).flatten().cloned().collect();
    Some(match sequence {
        PythonValue::Text(text) => size(text.len(), 1).map(|()| PythonValue::text(text.repeat(times))),
        PythonValue::Markup(text) => size(text.len(), 1).map(|()| PythonValue::Markup(text.repeat(times).into())),
        PythonValue::List(items) => {
            size(items.values.len(), size_of::<PythonValue>()).and_then(|()| PythonValue::list(repeated(items)))
        }
        PythonValue::Tuple(items) => {
            size(items.values.len(), size_of::<PythonValue>()).and_then(|()| PythonValue::tuple(repeated(items)))
        }
        _ => return None,
    })
}

fn integers(operator: Operator, left: i128, right: i128) -> RenderResult<PythonValue> {
    let beyond = || RenderFault::failed("an integer of more than 127 bits");
    if right == 0 && matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder) {
        refuse!("division by zero");
    }
    let number = match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Divide => return Ok(PythonValue::Float(left as f64 / right as f64)),
        Operator::FloorDivide => {
            let quotient = left.checked_div(right).ok_or_else(beyond)?;
            let is_between = left % right != 0 && (left < 0) != (right < 0);
            Some(if is_between { quotient - 1 } else { quotient })
        }
        Operator::Remainder => {
            let rest = left.checked_rem(right).ok_or_else(beyond)?;
            Some(if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest })
        }
        Operator::Power if right < 0 => return floats(operator, left as f64, right as f64),
        Operator::Power => match (left, u32::try_from(right)) {
            (0 | 1, _) => left.checked_pow(u32::from(right != 0)),
            (-1, _) => Some(if right % 2 == 0 { 1 } else { -1 }),
            (_, Ok(right)) => left.checked_pow(right),
            (_, Err(_)) => None,
        },
        Operator::Concatenate => None,
    };
    number.map(PythonValue::Int).ok_or_else(beyond)
}

fn floats(operator: Operator, left: f64, right: f64) -> RenderResult<PythonValue> {
    let divides = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder);
    if right == 0.0 && divides || left == 0.0 && right < 0.0 && operator == Operator::Power {
        refuse!("float division by zero");
    }
    Ok(PythonValue::Float(match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide => left / right,
        Operator::FloorDivide => floor_division(left, right).0,
        Operator::Remainder => floor_division(left, right).1,
        Operator::Power => {
            let power = left.powf(right);
            if power.is_nan() && !left.is_nan() && !right.is_nan() {
                refuse!("complex numbers are not supported");
            }
            if power.is_infinite() && left.is_finite() && right.is_finite() {
                refuse!("Numerical result out of range");
            }
            power
        }
        Operator::Concatenate => refuse!("numbers are no texts"),
    }))
}

/// Python's quotient and remainder of floats: the remainder has the divisor's sign.
fn floor_division(left: f64, right: f64) -> (f64, f64) {
    let mut rest = left % right;
    let mut quotient = (left - rest) / right;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(right);
    } else if (right < 0.0) != (rest < 0.0) {
        rest += right;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0_f64.copysign(left / right), rest);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, rest)
}

pub(super) fn negative(value: &PythonValue) -> RenderResult<PythonValue> {
    match value.defined()? {
        PythonValue::Float(number) => Ok(PythonValue::Float(-number)),
        other => match other.as_int() {
            Some(number) => number
                .checked_neg()
                .map(PythonValue::Int)
                .ok_or_else(|| RenderFault::failed("an integer of more than 127 bits")),
            None => refuse!("bad operand type for unary -: '{}'", other.kind()),
        },
    }
}

pub(super) fn positive(value: &PythonValue) -> RenderResult<PythonValue> {
    match value.defined()? {
        PythonValue::Float(number) => Ok(PythonValue::Float(*number)),
        other => match other.as_int() {
            Some(number) => Ok(PythonValue::Int(number)),
            None => refuse!("bad operand type for unary +: '{}'", other.kind()),
        },
    }
}

/// Whether the type has slices.
pub(super) fn is_sliceable(value: &PythonValue) -> bool {
    value.as_str().is_some() || matches!(value, PythonValue::List(_) | PythonValue::Tuple(_) | PythonValue::Range(_))
}

/// `value[start:stop:step]`. Absent bounds are none.
pub(super) fn slice(value: &PythonValue, [start, stop, step]: [&PythonValue; 3]) -> RenderResult<PythonValue> {
    value.defined()?;
    let bound = |bound: &PythonValue| match bound {
        none if none.is_none() => Ok(None),
        other => match other.defined()?.as_int() {
            Some(number) => Ok(Some(number)),
            None => refuse!("slice indices must be integers or None"),
        },
    };
    let length = if is_sliceable(value) { value.length() } else { None };
    let Some(length) = length else { refuse!("'{}' object is not subscriptable", value.kind()) };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        refuse!("slice step cannot be zero");
    }
    let places = Places::of(length as i128, start, stop, step);
    let picked = |items: &Items| places.iter().map(|at| items.values[at].clone()).collect();
    Ok(match value {
        PythonValue::List(items) => PythonValue::list(picked(items))?,
        PythonValue::Tuple(items) => PythonValue::tuple(picked(items))?,
        PythonValue::Range(range) => PythonValue::Range(Range {
            start: range.start + places.start * range.step,
            stop: range.start + places.stop * range.step,
            length: places.length,
            step: range
                .step
                .checked_mul(places.step)
                .ok_or_else(|| RenderFault::failed("an integer of more than 127 bits"))?,
        }),
        other => {
            let text = other.as_str().unwrap_or_default();
            let sliced: String = if places.step == 1 {
                let skipped = usize::try_from(places.start).unwrap_or(0);
                text.chars().skip(skipped).take(usize::try_from(places.length).unwrap_or(0)).collect()
            } else {
                let characters: Vec<char> = text.chars().collect();
                places.iter().map(|at| characters[at]).collect()
            };
            if matches!(other, PythonValue::Markup(_)) {
                PythonValue::Markup(sliced.into())
            } else {
                PythonValue::text(sliced)
            }
        }
    })
}

/// The places that a slice picks from a sequence: all of them exist.
#[derive(Clone, Copy)]
struct Places {
    start: i128,
    /// The bound after the last place, or before the first one where the step is negative.
    stop: i128,
    length: i128,
    step: i128,
}

impl Places {
    /// Python's rule: bounds count from the end where they are negative, and are cut to the sequence.
    fn of(length: i128, start: Option<i128>, stop: Option<i128>, step: i128) -> Self {
        let (lowest, highest) = if step < 0 { (-1, length - 1) } else { (0, length) };
        let cut = |bound: i128| {
            let from_start = if bound < 0 { bound.saturating_add(length) } else { bound };
            from_start.clamp(lowest, highest)
        };
        let (first, last) = if step < 0 { (highest, lowest) } else { (lowest, highest) };
        let (start, stop) = (start.map_or(first, cut), stop.map_or(last, cut));
        // A longer step than the sequence picks one item, whatever its length.
        let step = step.clamp(-(length + 1), length + 1);
        let distance = if step < 0 { start - stop } else { stop - start };
        let picked = if distance <= 0 { 0 } else { (distance - 1) / step.abs() + 1 };
        Self { start, stop, length: picked, step }
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        (0..self.length).map(move |at| usize::try_from(self.start + at * self.step).unwrap_or(0))
    }
}
