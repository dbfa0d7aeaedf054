//! A request as a map of its fields, each with its original bytes.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::error::{DialectError, DialectFault};

pub(crate) type Fields = BTreeMap<String, Box<RawValue>>;

pub(crate) fn raw(value: &Value) -> Result<Box<RawValue>, DialectError> {
    to_raw_value(value).map_err(malformed)
}

pub(crate) fn malformed(error: impl std::fmt::Display) -> DialectError {
    DialectError::new(DialectFault::Invalid, format!("the body is not a JSON object: {error}"))
}
