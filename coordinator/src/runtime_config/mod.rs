//! The few settings that change while the process runs (TR-4): stored beside the leases, so that they survive a restart and
//! every coordinator of the same store has them within a second. A stored value goes before every other source.

mod values;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model_boss_lease_store::{Document, Etag, StoreError, Swap};
use model_boss_protocol::{ApiError, ErrorCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::{MissedTickBehavior, interval};

use crate::error_chain::chain;
use crate::leases::Leases;
use crate::settings::LiveSettings;

use values::{KEYS, Key};

/// The name of the document.
const DOCUMENT: &str = "runtime-config";
/// How often it is looked at: others change it too.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Writers who are faster every time are given up on after so many tries.
const TRIES: usize = 16;

/// The stored values, and what holds where nothing is stored.
pub(crate) struct RuntimeConfig {
    leases: Leases,
    settings: Arc<LiveSettings>,
    /// Who decided each configured value, by its key.
    origins: BTreeMap<&'static str, String>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stored: Stored,
    /// What was seen of the document last.
    seen: Option<Etag>,
    /// What is wrong with the document or its store, if anything.
    problem: Option<String>,
}

/// The document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Stored {
    /// Counts the changes.
    version: u64,
    /// By key, as clients write them.
    values: Map<String, Value>,
}

/// What a client sees.
pub(crate) struct Shown {
    /// For `If-Match`.
    pub(crate) version: u64,
    pub(crate) body: Value,
}

/// Whether each value is shown with where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    Values,
    Origins,
}

impl RuntimeConfig {
    /// Takes over what is stored. `decided` says who decided a setting of the configuration.
    pub(crate) async fn open(
        leases: Leases,
        settings: Arc<LiveSettings>,
        decided: &BTreeMap<String, String>,
    ) -> Arc<Self> {
        let origin = |key: &Key| decided.get(key.setting).cloned().unwrap_or_else(|| "default".to_owned());
        let origins = KEYS.iter().map(|key| (key.name, origin(key))).collect();
        let config = Arc::new(Self { leases, settings, origins, state: Mutex::default() });
        config.look().await;
        config
    }

    /// Follows the document for as long as the process lives.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look().await;
        }
    }

    async fn look(&self) {
        match self.leases.load_document(DOCUMENT).await {
            Ok(document) => self.take(&document),
            Err(error) => self.trouble(format!("the runtime configuration cannot be read: {}", chain(&error))),
        }
    }

    /// What is wrong, if anything: the values in use are the last that made sense.
    pub(crate) fn problem(&self) -> Option<String> {
        self.state().problem.clone()
    }

    /// The values in use.
    pub(crate) fn show(&self, detail: Detail) -> Shown {
        let (stored, configured) = (self.state().stored.clone(), self.settings.configured());
        let value = |key: &Key| {
            let default = (key.configured)(configured);
            let stored = stored.values.get(key.name);
            let value = stored.unwrap_or(&default).clone();
            let shown = match detail {
                Detail::Values => value,
                Detail::Origins => {
                    let origin = if stored.is_some() { "stored" } else { self.origins[key.name].as_str() };
                    json!({ "value": value, "default": default, "origin": origin })
                }
            };
            (key.name.to_owned(), shown)
        };
        Shown { version: stored.version, body: Value::Object(KEYS.iter().map(value).collect()) }
    }

    /// Stores values; `null` removes one. `expected` is the version that the client has seen, if it said so: with another
    /// one in place nothing is changed.
    ///
    /// Errors: 400 that names every key that is wrong, 412 for another version, 503 when the store cannot be reached.
    pub(crate) async fn put(&self, changes: &Map<String, Value>, expected: Option<u64>) -> Result<Shown, ApiError> {
        values::check(changes)?;
        for _ in 0..TRIES {
            let document = self.leases.load_document(DOCUMENT).await.map_err(unreachable)?;
            let mut stored = read(&document).map_err(|problem| ApiError::new(ErrorCode::Internal, problem))?;
            if let Some(expected) = expected.filter(|expected| *expected != stored.version) {
                let message = format!(
                    "the configuration is at version {}, not {expected}; read it again and decide anew",
                    stored.version
                );
                return Err(ApiError::new(ErrorCode::PreconditionFailed, message).with_param("If-Match"));
            }
            let before = stored.values.clone();
            for (key, value) in changes {
                match value {
                    Value::Null => drop(stored.values.remove(key)),
                    value => drop(stored.values.insert(key.clone(), value.clone())),
                }
            }
            if stored.values == before {
                self.take(&document);
                return Ok(self.show(Detail::Values));
            }
            stored.version += 1;
            let content = serde_json::to_string(&stored).map_err(|error| {
                ApiError::new(ErrorCode::Internal, format!("the values cannot be written: {error}"))
            })?;
            if self.leases.swap_document(DOCUMENT, document, content).await.map_err(unreachable)? == Swap::Done {
                let keys: Vec<&String> = changes.keys().collect();
                tracing::info!(version = stored.version, ?keys, "runtime configuration changed");
                self.look().await;
                return Ok(self.show(Detail::Values));
            }
        }
        let message = "others change the configuration all the time; try again";
        Err(ApiError::new(ErrorCode::Internal, message).retry_after(Duration::from_secs(1)))
    }

    /// Uses what a document says. What was written by hand and makes no sense changes nothing.
    fn take(&self, document: &Document) {
        let mut state = self.state();
        if state.seen == Some(document.etag) {
            if state
                .problem
                .as_ref()
                .is_some_and(|problem| problem.starts_with("the runtime configuration cannot be read"))
            {
                state.problem = None;
            }
            return;
        }
        state.seen = Some(document.etag);
        let read = read(document).and_then(|stored| {
            values::overrides(&stored.values).map(|overrides| (stored, overrides)).map_err(|error| error.message)
        });
        match read {
            Ok((stored, overrides)) => {
                (state.stored, state.problem) = (stored, None);
                self.settings.set_overrides(overrides);
            }
            Err(why) => {
                tracing::warn!("the stored runtime configuration is not used: {why}");
                state.problem = Some(format!("the stored runtime configuration is not used: {why}"));
            }
        }
    }

    fn trouble(&self, problem: String) {
        let mut state = self.state();
        if state.problem.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
            state.problem = Some(problem);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(document: &Document) -> Result<Stored, String> {
    match &document.content {
        None => Ok(Stored::default()),
        Some(text) => serde_json::from_str(text).map_err(|error| format!("it cannot be read: {error}")),
    }
}

fn unreachable(error: StoreError) -> ApiError {
    let message = format!("the store of the runtime configuration cannot be used: {}", chain(&error));
    ApiError::new(ErrorCode::LeaseStoreUnavailable, message).retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests;
