//! The few settings that change while the process runs (TR-4). They are stored beside the leases, so that they survive
//! a restart and every coordinator of the store has them within a second. A stored value overrides every other source.
//! A guard is open only if the store was read, and its value is true or absent (docs/adr/0034-a-copy-shuts-a-guard.md).

mod document;
mod values;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use document::{Kept, LocalCopy, Stored};
use model_boss_host::state_folder::StateFolder;
use model_boss_lease_store::{Document, Etag, StoreError, Swap};
use model_boss_protocol::chain;
use model_boss_tasks::CloudFallback;
use serde_json::{Map, Value, json};
use tokio::time::{MissedTickBehavior, interval};
pub use values::key_schemas;
use values::{ConfigKey, Ignored, KEYS, Reading};

use crate::documents::DocumentStore;
use crate::error::SettingsError;
use crate::live::{LiveSettings, StoredGuard};

/// The name of the document.
const DOCUMENT: &str = "runtime-config";
/// The interval between reads of the document, which other coordinators change too.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The tries of a change that other writers overtake each time.
const TRIES: usize = 16;
/// Why a guard is shut while this version does not understand the document.
const NOT_UNDERSTOOD: &str = "allowCloudFallback is not known, so it is off: the stored document cannot be understood";

/// The stored values, and the configured ones below them.
pub struct RuntimeConfig {
    documents: Arc<dyn DocumentStore>,
    settings: Arc<LiveSettings>,
    /// The source of each configured value, by its key.
    origins: BTreeMap<&'static str, String>,
    copy: LocalCopy,
    state: Mutex<DocumentState>,
}

#[derive(Default)]
struct DocumentState {
    /// The newest known document of this store. It comes from the copy until the store was read.
    known: Option<Kept>,
    /// The document's values that are not used.
    ignored: Vec<Ignored>,
    /// The document that was judged last.
    seen: Option<Etag>,
    /// Whether the store was read since the start.
    read: bool,
    /// Why the store cannot be read now.
    away: Option<String>,
    /// Why its document cannot be understood.
    unreadable: Option<String>,
}

/// The values as clients see them.
pub struct ShownValues {
    /// The version, for `If-Match`.
    pub version: u64,
    /// The values by their keys.
    pub body: Value,
}

/// Whether each value is shown with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The effective values, without their sources.
    Values,
    /// The effective values, with the configured ones and their sources.
    Origins,
}

/// The state of the document that a client wants to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any state that this version understands.
    Readable,
    /// The state that the client has read.
    Version(u64),
    /// Any state, also a document that this version does not understand; it is replaced.
    Anything,
}

impl RuntimeConfig {
    /// Reads the store, and the copy in the state folder. Arguments: `decided` has the source of each configured value,
    /// `store` is the store's name.
    pub async fn open(
        documents: Arc<dyn DocumentStore>,
        settings: Arc<LiveSettings>,
        decided: &BTreeMap<String, String>,
        state: &StateFolder,
        store: &str,
    ) -> Arc<Self> {
        let origin = |key: &ConfigKey| decided.get(key.setting).cloned().unwrap_or_else(|| "default".to_owned());
        let origins = KEYS.iter().map(|key| (key.name, origin(key))).collect();
        let (copy, kept) = LocalCopy::open(state, store);
        let config = Arc::new(Self { documents, settings, origins, copy, state: Mutex::default() });
        if let Some(kept) = kept {
            config.use_copy(kept);
        }
        config.look().await;
        config
    }

    /// Follows the document as long as the process runs.
    pub async fn follow(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look().await;
        }
    }

    async fn look(&self) {
        match self.documents.load(DOCUMENT).await {
            Ok(document) => self.take(document).await,
            Err(error) => self.is_away(&error),
        }
    }

    /// All current faults. While they last, the last valid values are used, and guards are shut where that is not safe
    /// enough.
    pub fn problems(&self) -> Vec<String> {
        let state = self.state();
        let mut problems = Vec::new();
        if let Some(why) = &state.away {
            let held = match (state.read, &state.known) {
                (true, _) => "what was read last holds",
                (false, Some(_)) => "what the state folder knows of it holds, and allowCloudFallback is off",
                (false, None) => "what is configured holds, and allowCloudFallback is off",
            };
            problems.push(format!("the runtime configuration cannot be read, {held}: {why}"));
        }
        problems.extend(
            state.unreadable.as_ref().map(|why| {
                format!("the stored runtime configuration is not used, and allowCloudFallback is off: {why}")
            }),
        );
        let ignored = state.ignored.iter();
        problems.extend(ignored.map(|ignored| format!("the stored runtime configuration: {}", ignored.why)));
        problems
    }

    /// The values in use, and stored values that are not used.
    pub fn show(&self, detail: Detail) -> ShownValues {
        let state = self.state();
        let (fallback, configured) = (self.settings.cloud_fallback(), self.settings.configured());
        let known = state.known.as_ref().map(|kept| &kept.document);
        let is_used = |key: &ConfigKey| !state.ignored.iter().any(|ignored| ignored.key == key.name);
        let value = |key: &ConfigKey| {
            let default = (key.configured)(configured);
            let stored = known.and_then(|known| known.values.get(key.name)).filter(|_| is_used(key));
            let (value, origin) = match (key.is_guard, fallback, stored) {
                (true, CloudFallback::Unknown(why), _) => (Value::Bool(false), why),
                (_, _, Some(value)) if state.read => (value.clone(), "stored"),
                (_, _, Some(value)) => (value.clone(), "stored, as the state folder knows it"),
                (_, _, None) => (default.clone(), self.origins[key.name].as_str()),
            };
            let shown = match detail {
                Detail::Values => value,
                Detail::Origins => json!({ "value": value, "default": default, "origin": origin }),
            };
            (key.name.to_owned(), shown)
        };
        let mut body: Map<String, Value> = KEYS.iter().map(value).collect();
        if !state.ignored.is_empty() {
            let ignored = state.ignored.iter().map(|ignored| (ignored.key.clone(), json!(ignored.why))).collect();
            body.insert("ignored".to_owned(), Value::Object(ignored));
        }
        ShownValues { version: known.map_or(0, |known| known.version), body: Value::Object(body) }
    }

    /// Stores values; `null` removes one. If the version differs from the expected one, no value is changed.
    pub async fn put(&self, changes: &Map<String, Value>, expected: Expected) -> Result<ShownValues, SettingsError> {
        for _ in 0..TRIES {
            let known = self.state().known.as_ref().map(|kept| kept.document.clone()).unwrap_or_default();
            let document = match self.documents.load(DOCUMENT).await {
                Ok(document) => document,
                Err(error) => {
                    values::check(changes, &known.values)?;
                    return Err(SettingsError::Store(error));
                }
            };
            let before = match read(&document) {
                Ok(Some(stored)) if !known.is_newer_than(&stored) => stored,
                // The store lost the document: the change is applied to the last known one.
                Ok(_) => known,
                Err(_) if expected == Expected::Anything => known,
                Err(why) => return Err(SettingsError::NotUnderstood(why)),
            };
            values::check(changes, &before.values)?;
            if let Expected::Version(expected) = expected
                && expected != before.version
            {
                return Err(SettingsError::OtherVersion { version: before.version, expected });
            }
            let mut next = before.changed(changes);
            if next == before && read(&document).is_ok() {
                self.take(document).await;
                return Ok(self.show(Detail::Values));
            }
            if next.line.is_empty() && next.version <= 1 {
                next.line = new_line();
            }
            let content = text_of(&next)?;
            match self.documents.swap(DOCUMENT, document, content).await {
                Ok(Swap::Done) => {
                    let keys: Vec<&String> = changes.keys().collect();
                    tracing::info!(version = next.version, ?keys, "runtime configuration changed");
                    self.adopt(next, None);
                    return Ok(self.show(Detail::Values));
                }
                Ok(_) => {}
                Err(error) => return Err(SettingsError::Store(error)),
            }
        }
        Err(SettingsError::Overtaken)
    }

    /// Judges a document that was just read. If it is missing or older than the last known one, the store has lost it.
    /// A Redis, for example, may have come back with an older file. The newest known document is then written again.
    async fn take(&self, document: Document) {
        let lost = {
            let mut state = self.state();
            state.away = None;
            if state.seen == Some(document.etag) {
                return;
            }
            let known = state.known.as_ref().map(|kept| kept.document.clone()).filter(|known| known.version > 0);
            match (read(&document), known) {
                (Ok(None), Some(known)) => known,
                (Ok(Some(stored)), Some(known)) if known.is_newer_than(&stored) => known,
                (Ok(stored), _) => {
                    drop(state);
                    self.adopt(stored.unwrap_or_default(), Some(document.etag));
                    return;
                }
                (Err(why), known) => {
                    tracing::warn!("the stored runtime configuration is not used: {why}");
                    (state.seen, state.read, state.unreadable) = (Some(document.etag), true, Some(why));
                    let reading = Reading::of(&known.unwrap_or_default().values);
                    let mut overrides = reading.overrides;
                    overrides.cloud_fallback = StoredGuard::Unknown(NOT_UNDERSTOOD);
                    state.ignored = reading.ignored;
                    self.settings.set_overrides(overrides);
                    return;
                }
            }
        };
        let Ok(content) = text_of(&lost) else { return };
        match self.documents.swap(DOCUMENT, document, content).await {
            Ok(Swap::Done) => {
                tracing::warn!(version = lost.version, "the store lost the runtime configuration; it was put back");
                self.adopt(lost, None);
            }
            // Another coordinator was faster; the next look reads its document.
            Ok(_) => {}
            Err(error) => self.is_away(&error),
        }
    }

    /// Uses a document of the store. Without an etag it is read again at the next look.
    fn adopt(&self, stored: Stored, etag: Option<Etag>) {
        let reading = Reading::of(&stored.values);
        let mut state = self.state();
        if etag.is_none() && state.known.as_ref().is_some_and(|known| known.document.is_newer_than(&stored)) {
            return;
        }
        for ignored in reading.ignored.iter().filter(|ignored| !state.ignored.contains(ignored)) {
            tracing::warn!("the stored runtime configuration: {}", ignored.why);
        }
        let same = state.known.as_ref().is_some_and(|known| known.document == stored);
        (state.seen, state.read, state.unreadable, state.ignored) = (etag, true, None, reading.ignored);
        if !same {
            let kept = self.copy.seen(stored);
            if kept.document.version > 0 {
                self.copy.keep(&kept);
            }
            state.known = Some(kept);
        }
        self.settings.set_overrides(reading.overrides);
    }

    /// Uses the copy of the state folder while the store was not read. Another coordinator may have shut a guard since.
    fn use_copy(&self, kept: Kept) {
        let Reading { mut overrides, ignored } = Reading::of(&kept.document.values);
        overrides.cloud_fallback = StoredGuard::default();
        let mut state = self.state();
        (state.known, state.ignored) = (Some(kept), ignored);
        self.settings.set_overrides(overrides);
    }

    fn is_away(&self, error: &StoreError) {
        let mut state = self.state();
        let why = chain(error);
        if state.away.replace(why).is_none() {
            tracing::warn!("the runtime configuration cannot be read: {}", chain(error));
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, DocumentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stored values in the copy of this state folder, human-readable. Each takes one line, also those that are not
/// used.
pub fn known_in(state_dir: &Path) -> Option<Vec<String>> {
    let kept = document::read_copy(state_dir)?;
    let reading = Reading::of(&kept.document.values);
    let is_used = |key: &str| !reading.ignored.iter().any(|ignored| ignored.key == key);
    let used = kept.document.values.iter().filter(|(key, _)| is_used(key));
    let mut lines: Vec<String> = used.map(|(key, value)| format!("{key} = {value}")).collect();
    lines.extend(reading.ignored.into_iter().map(|ignored| format!("not used: {}", ignored.why)));
    Some(lines)
}

fn read(document: &Document) -> Result<Option<Stored>, String> {
    document.content.as_deref().map(Stored::read).transpose()
}

fn text_of(stored: &Stored) -> Result<String, SettingsError> {
    serde_json::to_string(stored).map_err(SettingsError::NotWritten)
}

/// A random id for a new document. Without randomness it is empty, and documents are not told apart, as those of old
/// versions.
fn new_line() -> String {
    let mut bits = [0; 8];
    getrandom::fill(&mut bits).map_or_else(|_| String::new(), |()| format!("{:016x}", u64::from_ne_bytes(bits)))
}

#[cfg(test)]
mod tests;
