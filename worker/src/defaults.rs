//! Request fields that the manifest sets for requests that do not.

use std::collections::BTreeMap;

use serde_json::value::{RawValue, to_raw_value};

/// Fields by name, as the JSON a request would have had.
#[derive(Debug, Default)]
pub(crate) struct RequestDefaults(BTreeMap<String, Box<RawValue>>);

impl RequestDefaults {
    /// From a manifest's `params`.
    pub(crate) fn new(params: &BTreeMap<String, serde_json::Value>) -> Result<Self, serde_json::Error> {
        params.iter().map(|(name, value)| Ok((name.clone(), to_raw_value(value)?))).collect::<Result<_, _>>().map(Self)
    }

    /// The default of a field.
    pub(crate) fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.get(name).map(Box::as_ref)
    }
}
