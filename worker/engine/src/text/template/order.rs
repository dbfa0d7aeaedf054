//! Equality and order of values, as Python has them.

use std::cmp::Ordering;
use std::sync::Arc;

use super::fault::{RenderResult, refuse};
use super::value::{Dict, PythonValue, ViewKind};

fn equal_dicts(left: &Dict, right: &Dict) -> bool {
    left.entries().len() == right.entries().len()
        && left.by_key().all(|(key, value)| right.get(key).is_some_and(|other| value.equals(other)))
}

impl PythonValue {
    /// Python's `==`.
    pub(super) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(left), Self::List(right)) | (Self::Tuple(left), Self::Tuple(right)) => {
                Arc::ptr_eq(left, right)
                    || left.values.len() == right.values.len()
                        && left.values.iter().zip(&right.values).all(|(left, right)| left.equals(right))
            }
            (Self::Dict(left), Self::Dict(right)) => equal_dicts(left, right),
            (Self::View(kind, left), Self::View(other, right)) if kind == other && *kind != ViewKind::Values => {
                match kind {
                    ViewKind::Keys => left.by_key().map(|(key, _)| key).eq(right.by_key().map(|(key, _)| key)),
                    _ => equal_dicts(left, right),
                }
            }
            // Keys and items are sets, which may both be empty. Every view of values is an object of its own.
            (Self::View(kind, left), Self::View(other, right)) => {
                kind != other
                    && ![kind, other].contains(&&ViewKind::Values)
                    && left.entries().is_empty()
                    && right.entries().is_empty()
            }
            (Self::Range(left), Self::Range(right)) => {
                left.length == right.length
                    && (left.length == 0 || left.start == right.start && (left.length == 1 || left.step == right.step))
            }
            _ => match (self.as_float(), other.as_float()) {
                (Some(_), Some(_)) => self.number_order(other) == Some(Ordering::Equal),
                (None, None) if self.kind_group() == other.kind_group() => {
                    matches!((self.key(), other.key()), (Ok(left), Ok(right)) if left == right)
                }
                _ => false,
            },
        }
    }

    /// Types whose values may be equal have the same name here.
    fn kind_group(&self) -> &'static str {
        match self {
            Self::Markup(_) => "str",
            other => other.kind(),
        }
    }

    fn number_order(&self, other: &Self) -> Option<Ordering> {
        match (self.as_int(), other.as_int()) {
            (Some(left), Some(right)) => Some(left.cmp(&right)),
            _ => {
                let (left, right) = (self.as_float()?, other.as_float()?);
                let order = left.partial_cmp(&right)?;
                // Integers beyond 2^53 are no floats; an equal float may still differ from them.
                let exact = |value: &Self, float: f64| {
                    value.as_int().map_or(Ordering::Equal, |int| {
                        if float.abs() < 1e38 { int.cmp(&(float as i128)) } else { Ordering::Equal }
                    })
                };
                Some(order.then_with(|| exact(self, right)).then_with(|| exact(other, left).reverse()))
            }
        }
    }

    /// Python's `<`, `<=`, `>` and `>=`: `None` where both are unordered, as with NaN.
    pub(super) fn order(&self, other: &Self) -> RenderResult<Option<Ordering>> {
        self.defined()?;
        other.defined()?;
        Ok(match (self, other) {
            (Self::List(left), Self::List(right)) | (Self::Tuple(left), Self::Tuple(right)) => {
                for (left, right) in left.values.iter().zip(&right.values) {
                    if !left.equals(right) {
                        return left.order(right);
                    }
                }
                Some(left.values.len().cmp(&right.values.len()))
            }
            _ => match (self.as_str(), other.as_str()) {
                (Some(left), Some(right)) => Some(left.cmp(right)),
                _ if self.as_float().is_some() && other.as_float().is_some() => self.number_order(other),
                _ => refuse!("'<' not supported between instances of '{}' and '{}'", self.kind(), other.kind()),
            },
        })
    }

    /// Whether both are the same object, as `is` sees it.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(left), Self::List(right)) | (Self::Tuple(left), Self::Tuple(right)) => Arc::ptr_eq(left, right),
            (Self::Dict(left), Self::Dict(right)) => Arc::ptr_eq(left, right),
            (Self::Undefined(left), Self::Undefined(right)) => Arc::ptr_eq(left, right),
            (Self::Float(left), Self::Float(right)) => left == right,
            _ => self.kind() == other.kind() && self.equals(other),
        }
    }
}
