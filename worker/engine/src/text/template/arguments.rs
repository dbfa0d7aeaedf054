//! The arguments of a call.

use std::sync::Arc;

use super::fault::{RenderResult, refuse};
use super::value::PythonValue;

/// Arguments by place and by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) places: Vec<PythonValue>,
    pub(super) names: Vec<(Arc<str>, PythonValue)>,
}

impl Arguments {
    /// The values of these parameters, the first ones of which are required. A parameter named `_` is known by its
    /// place alone.
    pub(super) fn bind<const N: usize>(
        &self,
        names: [&str; N],
        required: usize,
    ) -> RenderResult<[Option<PythonValue>; N]> {
        if self.places.len() > N {
            refuse!("takes at most {N} arguments ({} given)", self.places.len());
        }
        let mut bound: [Option<PythonValue>; N] = std::array::from_fn(|at| self.places.get(at).cloned());
        for (name, value) in &self.names {
            match names.iter().position(|known| *known == name.as_ref() && *known != "_") {
                Some(at) if bound[at].is_none() => bound[at] = Some(value.clone()),
                Some(_) => refuse!("got multiple values for argument '{name}'"),
                None => refuse!("got an unexpected keyword argument '{name}'"),
            }
        }
        match bound.iter().take(required).position(Option::is_none) {
            Some(missing) => refuse!("missing required argument '{}'", names[missing]),
            None => Ok(bound),
        }
    }

    /// Refuses any argument.
    pub(super) fn none(&self) -> RenderResult<()> {
        self.bind([], 0).map(|_: [Option<PythonValue>; 0]| ())
    }

    /// One argument, without a name.
    pub(super) fn one(&self) -> RenderResult<PythonValue> {
        let [only] = self.bind(["_"], 1)?;
        Ok(only.unwrap_or(PythonValue::None))
    }
}

/// An optional integer.
pub(super) fn integer(value: Option<&PythonValue>) -> RenderResult<Option<i128>> {
    match value {
        None => Ok(None),
        Some(value) => match value.defined()?.as_int() {
            Some(number) => Ok(Some(number)),
            None => refuse!("'{}' object cannot be interpreted as an integer", value.kind()),
        },
    }
}

/// Text, as the methods of texts demand it.
pub(super) fn text(value: &PythonValue) -> RenderResult<&str> {
    match value.defined()?.as_str() {
        Some(text) => Ok(text),
        None => refuse!("must be str, not {}", value.kind()),
    }
}
