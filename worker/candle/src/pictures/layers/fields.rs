//! ComponentFields of a component's `config.json`.

use serde_json::Value;

use crate::error::ModelError;
use crate::speech::config::malformed;

/// The greatest size of a configuration.
const MOST: usize = 1 << 24;

/// The fields of one component.
#[derive(Clone, Copy)]
pub(in crate::pictures) struct ComponentFields<'a> {
    component: &'a str,
    fields: &'a Value,
}

/// A fault of a component's configuration.
pub(in crate::pictures) fn misfit(component: &str, what: impl std::fmt::Display) -> ModelError {
    malformed(format!("{component}: {what}"))
}

impl<'a> ComponentFields<'a> {
    pub(in crate::pictures) fn new(component: &'a str, fields: &'a Value) -> Self {
        Self { component, fields }
    }

    /// A fault of these fields.
    pub(in crate::pictures) fn bad<T>(&self, what: impl std::fmt::Display) -> Result<T, ModelError> {
        Err(misfit(self.component, what))
    }

    /// A field that is there and not null.
    pub(in crate::pictures) fn given(&self, name: &str) -> Option<&'a Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    fn not<T>(&self, name: &str, value: &Value) -> Result<T, ModelError> {
        self.bad(format!("{name} is {value}, which is not known"))
    }

    /// A size from 1 on.
    pub(in crate::pictures) fn size(&self, name: &str, otherwise: usize) -> Result<usize, ModelError> {
        let Some(value) = self.given(name) else { return Ok(otherwise) };
        match value.as_u64().and_then(|number| usize::try_from(number).ok()) {
            Some(size) if (1..=MOST).contains(&size) => Ok(size),
            _ => self.not(name, value),
        }
    }

    /// A size for each of so many parts: a list, or one number for all.
    pub(in crate::pictures) fn sizes(
        &self,
        name: &str,
        count: usize,
        otherwise: usize,
    ) -> Result<Vec<usize>, ModelError> {
        let Some(value) = self.given(name) else { return Ok(vec![otherwise; count]) };
        let Some(list) = value.as_array() else { return Ok(vec![self.size(name, otherwise)?; count]) };
        let numbers = list.iter().map(|value| value.as_u64().and_then(|number| usize::try_from(number).ok()));
        match numbers.collect::<Option<Vec<usize>>>() {
            Some(sizes) if sizes.len() == count && sizes.iter().all(|size| (1..=MOST).contains(size)) => Ok(sizes),
            _ => self.not(name, value),
        }
    }

    pub(in crate::pictures) fn number(&self, name: &str, otherwise: f64) -> Result<f64, ModelError> {
        let Some(value) = self.given(name) else { return Ok(otherwise) };
        match value.as_f64() {
            Some(number) => Ok(number),
            None => self.not(name, value),
        }
    }

    pub(in crate::pictures) fn flag(&self, name: &str, otherwise: bool) -> Result<bool, ModelError> {
        let Some(value) = self.given(name) else { return Ok(otherwise) };
        match value.as_bool() {
            Some(flag) => Ok(flag),
            None => self.not(name, value),
        }
    }

    pub(in crate::pictures) fn names(&self, name: &str, otherwise: &[&str]) -> Result<Vec<String>, ModelError> {
        let Some(value) = self.given(name) else {
            return Ok(otherwise.iter().map(|name| (*name).to_owned()).collect());
        };
        let names =
            value.as_array().and_then(|list| list.iter().map(|name| name.as_str().map(str::to_owned)).collect());
        match names {
            Some(names) => Ok(names),
            None => self.not(name, value),
        }
    }

    pub(in crate::pictures) fn name(&self, name: &str, otherwise: &'a str) -> Result<&'a str, ModelError> {
        let Some(value) = self.given(name) else { return Ok(otherwise) };
        match value.as_str() {
            Some(name) => Ok(name),
            None => self.not(name, value),
        }
    }

    /// Refuses a field that has another value than those named here. An absent field has the first.
    pub(in crate::pictures) fn only(&self, name: &str, known: &[Value]) -> Result<(), ModelError> {
        match self.fields.get(name) {
            Some(value) if !known.contains(value) => self.not(name, value),
            _ => Ok(()),
        }
    }
}
