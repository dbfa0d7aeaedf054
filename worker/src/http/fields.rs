//! A request's JSON body, field by field. Each field is read on demand with its own type, and errors name it. The
//! value `null` is the same as absent, and unknown fields are ignored. The manifest may set fields that the request
//! does not.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use model_boss_protocol::{ApiError, ErrorCode};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::defaults::RequestDefaults;

/// The fields of one request.
pub(super) struct RequestFields<'a> {
    given: BTreeMap<String, &'a RawValue>,
    defaults: Option<&'a RequestDefaults>,
}

impl<'a> RequestFields<'a> {
    /// Reads the body's outermost object, without its values.
    pub(super) fn read(body: &'a [u8], defaults: Option<&'a RequestDefaults>) -> Result<Self, ApiError> {
        let given = serde_json::from_slice(body).map_err(|error| {
            ApiError::new(ErrorCode::InvalidRequest, format!("the body is not a JSON object: {error}"))
        })?;
        Ok(Self { given, defaults })
    }

    /// Only what the manifest says.
    pub(super) fn of_defaults(defaults: &'a RequestDefaults) -> Self {
        Self { given: BTreeMap::new(), defaults: Some(defaults) }
    }

    /// A field under any of its names. The request precedes the manifest, and an earlier name a later one.
    pub(super) fn first_of<T: DeserializeOwned>(
        &self,
        names: &[&'static str],
    ) -> Result<Option<(&'static str, T)>, ApiError> {
        let given = names.iter().map(|name| (*name, self.given.get(*name).copied()));
        let default = names.iter().map(|name| (*name, self.defaults.and_then(|defaults| defaults.get(name))));
        match given.chain(default).find_map(|(name, raw)| raw.filter(|raw| raw.get() != "null").map(|raw| (name, raw)))
        {
            Some((name, raw)) => parse(name, raw).map(|value| Some((name, value))),
            None => Ok(None),
        }
    }

    /// The JSON text of a field, of the request or of the manifest.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        let default = || self.defaults.and_then(|defaults| defaults.get(name));
        self.given.get(name).copied().or_else(default).map(RawValue::get)
    }

    /// The model that the request names, if it names one.
    pub(super) fn model(&self) -> Option<String> {
        serde_json::from_str(self.given.get("model")?.get()).ok()
    }

    /// Whether the request itself has a field.
    pub(super) fn is_given(&self, name: &str) -> bool {
        self.given.get(name).is_some_and(|raw| raw.get() != "null")
    }

    /// A field, if there.
    pub(super) fn get<T: DeserializeOwned>(&self, name: &'static str) -> Result<Option<T>, ApiError> {
        Ok(self.first_of(&[name])?.map(|(_, value)| value))
    }

    /// A field that has to be there.
    pub(super) fn require<T: DeserializeOwned>(&self, name: &'static str) -> Result<T, ApiError> {
        self.get(name)?.ok_or_else(|| ApiError::invalid(name, format!("'{name}' is missing")))
    }

    /// A number in a range, under any of its names.
    pub(super) fn number(&self, names: &[&'static str], range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        match self.first_of::<f64>(names)? {
            Some((_, value)) if range.contains(&value) => Ok(Some(value as f32)),
            Some((name, value)) => Err(out_of_range(name, value, &range)),
            None => Ok(None),
        }
    }

    /// A whole number in a range, under any of its names.
    pub(super) fn whole(&self, names: &[&'static str], range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        match self.first_of::<i64>(names)? {
            Some((_, value)) if range.contains(&value) => Ok(Some(value)),
            Some((name, value)) => Err(out_of_range(name, value, &range)),
            None => Ok(None),
        }
    }
}

fn out_of_range<T: std::fmt::Display>(name: &str, value: T, range: &RangeInclusive<T>) -> ApiError {
    ApiError::invalid(name, format!("'{name}' is {value}; it must be from {} to {}", range.start(), range.end()))
}

/// Reads a field; an error names the place inside it (`messages[1].content`).
fn parse<T: DeserializeOwned>(name: &str, raw: &RawValue) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_str(raw.get());
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let place = match path.chars().next() {
            None | Some('.') => name.to_owned(),
            Some('[') => format!("{name}{path}"),
            Some(_) => format!("{name}.{path}"),
        };
        // serde_json counts lines and columns inside the field, which would only mislead.
        let message = error.inner().to_string();
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        ApiError::invalid(place.clone(), format!("'{place}': {message}"))
    })
}
