//! Fields and values of newer versions of the document, which are kept unchanged.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Fields that this version does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct UnknownFields(BTreeMap<String, Value>);

/// A value of a kind that this version does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnknownValue(Value);

impl Hash for UnknownFields {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (name, value) in &self.0 {
            name.hash(state);
            value.to_string().hash(state);
        }
    }
}

impl Hash for UnknownValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_string().hash(state);
    }
}
