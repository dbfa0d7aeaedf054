//! Scopes: the kinds of requests that a key permits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A kind of requests. The table of routes says which one each route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// Requests to models, and the list of models.
    Inference,
    /// Views of the machine: devices, queue, clients, decisions, metrics, events, logs.
    Read,
    /// Orders about models and settings, as the key's client and within its limits.
    Manage,
    /// Leases of memory for jobs.
    Lease,
    /// Everything, as the operator. Requests may name any client.
    Admin,
}

/// A word that is no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no scope; there are inference, read, manage, lease and admin")]
pub struct UnknownScope(String);

impl KeyScope {
    /// Every scope.
    pub const ALL: [Self; 5] = [Self::Inference, Self::Read, Self::Manage, Self::Lease, Self::Admin];

    /// The word for the scope.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Read => "read",
            Self::Manage => "manage",
            Self::Lease => "lease",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for KeyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for KeyScope {
    type Err = UnknownScope;

    fn from_str(word: &str) -> Result<Self, UnknownScope> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == word.trim());
        found.ok_or_else(|| UnknownScope(word.to_owned()))
    }
}
