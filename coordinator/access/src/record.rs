//! One client's keys: its name, the scopes and limits, and the digests.

use std::collections::BTreeSet;

use model_boss_protocol::ClientId;
use serde::{Deserialize, Serialize};

use crate::scope::KeyScope;
use crate::secret::{KeyDigest, KeySecret};

/// The longest name, in bytes, as for clients that name themselves.
const LONGEST_NAME: usize = 128;
/// Names with a meaning of their own: everyone's profile, and clients without a name.
const TAKEN: [&str; 2] = ["default", "anonymous"];
/// The most keys of one client that are valid at once.
const MOST_SECRETS: usize = 8;

/// The keys of one client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRecord {
    /// The client's name, as `tasks.yaml` and statistics have it.
    pub name: ClientId,
    /// The kinds of requests that its keys permit.
    pub scopes: BTreeSet<KeyScope>,
    /// Limits beside those of the client's profile. Both apply.
    #[serde(default, skip_serializing_if = "KeyLimits::are_none")]
    pub limits: KeyLimits,
    /// The digests of its keys: one, or two while a new one takes the place of an old one.
    pub secrets: Vec<KeySecret>,
}

/// Limits of a key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyLimits {
    /// The models and `task:NAME`s that it may ask for, with `*` at the end for all that begin so; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_models: Option<Vec<String>>,
    /// The most tokens of prompts and answers in a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_tokens: Option<u64>,
    /// The most that it may spend at cloud providers in a day, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daily_spend_usd: Option<f64>,
}

/// Why a record is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRecordError {
    /// The name cannot be a client's.
    #[error("the name '{0}' must have 1 to {LONGEST_NAME} printable characters")]
    Name(String),
    /// The name has another meaning.
    #[error("the name '{0}' stands for clients without a key; choose another")]
    Taken(String),
    /// The record permits nothing.
    #[error("the key of '{0}' has no scope; it would permit nothing")]
    NoScope(String),
    /// There is no digest.
    #[error("'{0}' has no digest of a key in 'secrets'")]
    NoSecret(String),
    /// There are too many keys.
    #[error("'{0}' has more than {MOST_SECRETS} keys; end old ones with `model-boss keys rotate {0} --grace 0s`")]
    Secrets(String),
    /// The limit of dollars is not one.
    #[error("'daily_spend_usd' of '{0}' must be a number of dollars, 0 or more")]
    Spend(String),
}

impl KeyLimits {
    fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

impl KeyRecord {
    /// A record with its first key.
    pub fn new(name: ClientId, scopes: BTreeSet<KeyScope>, limits: KeyLimits, first: KeySecret) -> Self {
        Self { name, scopes, limits, secrets: vec![first] }
    }

    /// Whether its keys permit requests of this kind.
    pub fn permits(&self, scope: KeyScope) -> bool {
        self.scopes.contains(&scope) || self.is_admin()
    }

    /// Whether its keys are those of an operator.
    pub fn is_admin(&self) -> bool {
        self.scopes.contains(&KeyScope::Admin)
    }

    /// Adds a key. Those before it end at `end`, and those that have ended by `now` are left out.
    pub fn rotate(&mut self, key: KeySecret, end: u64, now: u64) {
        for old in &mut self.secrets {
            old.expires = Some(old.expires.map_or(end, |expires| expires.min(end)));
        }
        self.secrets.retain(|old| old.is_valid(now));
        self.secrets.push(key);
    }

    /// Whether one of its keys has this digest, and is valid at this time.
    pub fn has(&self, digest: &KeyDigest, now: u64) -> bool {
        self.secrets.iter().any(|secret| secret.sha256 == *digest && secret.is_valid(now))
    }

    /// Whether one of its keys is valid at this time.
    pub fn is_valid(&self, now: u64) -> bool {
        self.secrets.iter().any(|secret| secret.is_valid(now))
    }

    /// Checks what a person may have written.
    pub fn check(&self) -> Result<(), KeyRecordError> {
        let name = self.name.as_str();
        let spend = self.limits.daily_spend_usd;
        if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
            return Err(KeyRecordError::Name(name.escape_debug().take(LONGEST_NAME).collect()));
        }
        if TAKEN.contains(&name) {
            return Err(KeyRecordError::Taken(name.to_owned()));
        }
        if self.scopes.is_empty() {
            return Err(KeyRecordError::NoScope(name.to_owned()));
        }
        if self.secrets.is_empty() {
            return Err(KeyRecordError::NoSecret(name.to_owned()));
        }
        if self.secrets.len() > MOST_SECRETS {
            return Err(KeyRecordError::Secrets(name.to_owned()));
        }
        if spend.is_some_and(|dollars| !dollars.is_finite() || dollars < 0.0) {
            return Err(KeyRecordError::Spend(name.to_owned()));
        }
        Ok(())
    }
}
