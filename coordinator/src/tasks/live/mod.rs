//! Follows the file, and adopts its valid versions.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use model_boss_catalog::LiveCatalog;
use model_boss_core::{ClientRules, Principal};
use model_boss_host::watched_file::{self, FileVersion, WatchedFile};
use model_boss_protocol::{ApiError, ClientId, ModelId};
use model_boss_settings::LiveSettings;
use model_boss_tasks::{
    KeyRule, MachinePermit, ModelPermit, NameQuestion, Problem, Providers, Resolved, Surroundings, TaskNames,
    TasksFile, operate_machine, operate_model, resolve,
};

use crate::refusals::denied;

/// The largest file in bytes; a larger one is refused.
const MAX_SIZE: u64 = 1 << 20;

/// The tasks in use, and the faults of the file's current version.
pub(crate) struct LiveTasks {
    file: WatchedFile,
    /// Whether the file must exist, since an operator named it.
    required: bool,
    providers: Providers,
    settings: Arc<LiveSettings>,
    current: RwLock<Arc<Current>>,
    /// The limits of clients' keys. The lock is held while a version is replaced, so that none is lost.
    keys: Mutex<BTreeMap<ClientId, KeyRule>>,
}

/// One version of the tasks. The holder keeps this version even if the file is edited meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Current {
    /// The names of the last valid file, with the limits of clients' keys.
    pub(crate) names: Arc<TaskNames>,
    /// The faults of the file's current version; empty when that is in use.
    pub(crate) problems: Vec<Problem>,
    /// The number of re-reads.
    pub(crate) reloads: Reload,
}

/// Counts of re-reads, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reload {
    /// Edits that took effect.
    pub(crate) adopted: u64,
    /// Edits that were invalid.
    pub(crate) refused: u64,
    /// The time at which the version in use was read, in seconds since 1970.
    pub(crate) at: f64,
}

/// The file cannot be used at the start. No earlier good version exists, and without the file's rules clients would
/// have no limits.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}; no client is served without the rules of this file: mend it (`model-boss tasks check` says what is wrong), or \
     move it away",
    .0.join("; ")
)]
pub(crate) struct UnusableTasks(Vec<String>);

impl LiveTasks {
    /// Reads the file. A missing file means no tasks and no rules, unless an operator named it.
    pub(crate) fn read(
        path: &Path,
        required: bool,
        providers: Providers,
        settings: Arc<LiveSettings>,
    ) -> Result<Self, UnusableTasks> {
        let live = Self {
            file: WatchedFile::new(path, MAX_SIZE),
            required,
            providers,
            settings,
            current: RwLock::default(),
            keys: Mutex::default(),
        };
        let version = live.file.adopt();
        if required || !matches!(version, FileVersion::Missing) {
            live.judge(version);
        }
        let problems = live.problems();
        if problems.is_empty() { Ok(live) } else { Err(UnusableTasks(problems)) }
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The current version.
    pub(crate) fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The providers that a rung may name.
    pub(crate) fn providers(&self) -> &Providers {
        &self.providers
    }

    /// The current rules of clients: the file's, and below them the configuration's.
    pub(crate) fn client_rules(&self) -> ClientRules {
        self.current().names.file().client_rules(&self.settings.configured().settings.clients)
    }

    /// Resolves the names of a request with the current version.
    pub(crate) fn resolve(&self, question: &NameQuestion<'_>, models: &LiveCatalog) -> Result<Resolved, ApiError> {
        self.within(models, |around| resolve(question, around)).map_err(denied)
    }

    /// Whether a list of names for this client has this one.
    pub(crate) fn may_use(&self, client: &ClientId, name: &str, models: &LiveCatalog) -> bool {
        if self.current().names.profile(client).lists_of_models().next().is_none() {
            return true;
        }
        let question = NameQuestion { model: Some(name), task: None, client, no_fallback: false };
        self.resolve(&question, models).is_ok()
    }

    /// Permission for an order about a model of this machine, by its own name.
    pub(crate) fn operate_model(
        &self,
        principal: Principal,
        model: ModelId,
        models: &LiveCatalog,
    ) -> Result<ModelPermit, ApiError> {
        self.within(models, |around| operate_model(principal, model, around)).map_err(denied)
    }

    /// Permission for an order about every model on a device, or on the machine.
    pub(crate) fn operate_machine(
        &self,
        principal: Principal,
        models: &LiveCatalog,
    ) -> Result<MachinePermit, ApiError> {
        self.within(models, |around| operate_machine(principal, around)).map_err(denied)
    }

    fn within<T>(&self, models: &LiveCatalog, decide: impl FnOnce(&Surroundings<'_>) -> T) -> T {
        let (current, catalog) = (self.current(), models.current());
        let model_named = |name: &str| -> Option<ModelId> { Some(catalog.find(name)?.description.id.clone()) };
        let adapter_named = |name: &str| models.adapter_named(name);
        let around = Surroundings {
            names: &current.names,
            providers: &self.providers,
            cloud_fallback: self.settings.cloud_fallback(),
            model_named: &model_named,
            adapter_named: &adapter_named,
        };
        decide(&around)
    }

    /// Follows the file as long as the process runs.
    pub(crate) async fn follow(self: Arc<Self>) {
        watched_file::follow(move || self.look()).await;
    }

    /// Reads the file once. A new version is checked when the next read is equal.
    fn look(&self) {
        if let Some(version) = self.file.look() {
            self.judge(version);
        }
    }

    /// Holds clients to the limits of their keys, from now on.
    pub(crate) fn set_keys(&self, keys: BTreeMap<ClientId, KeyRule>) {
        let mut held = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        *held = keys;
        let mut next = Current::clone(&self.current());
        next.names = Arc::new(TaskNames::with_keys(next.names.file().clone(), &held));
        self.replace(next);
    }

    fn replace(&self, next: Current) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }

    fn missing(&self) -> &'static str {
        if self.current().reloads.adopted > 0 { "is not there; what it said last stays in use" } else { "is not there" }
    }

    /// Adopts a valid version; otherwise records its faults, and keeps the version in use.
    fn judge(&self, version: FileVersion) {
        let is_missing = matches!(version, FileVersion::Missing);
        let text = match version {
            FileVersion::Content(bytes) => String::from_utf8(bytes).map_err(|_| "is not a text in UTF-8".to_owned()),
            FileVersion::Missing => Err(self.missing().to_owned()),
            FileVersion::Unreadable(error) => Err(format!("cannot be read: {error}")),
        };
        let read = match text {
            Ok(text) => TasksFile::read(&text, &self.providers),
            Err(message) => Err(vec![Problem { line: None, field: String::new(), message }]),
        };
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Current::clone(&self.current());
        match read {
            Ok(file) => {
                if next.reloads.adopted > 0 {
                    tracing::info!(tasks = file.tasks.len(), clients = file.clients.len(), "tasks read again");
                }
                next.reloads.adopted += 1;
                next.reloads.at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
                self.settings.set_clients(&file);
                (next.names, next.problems) = (Arc::new(TaskNames::with_keys(file, &keys)), Vec::new());
            }
            Err(problems) => {
                for problem in &problems {
                    tracing::warn!("tasks not used: {}", self.place(problem));
                }
                if !is_missing || self.required || next.reloads.adopted > 0 {
                    next.reloads.refused += 1;
                }
                next.problems = problems;
            }
        }
        self.replace(next);
    }

    /// A problem with its file, as messages show it: `tasks.yaml:12: tasks.chat.budget_s: …`.
    pub(crate) fn place(&self, problem: &Problem) -> String {
        let line = problem.line.map_or_else(String::new, |line| format!(":{line}"));
        format!("{}{line}: {problem}", self.file.path().display())
    }

    /// All faults of the file's current version.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.current().problems.iter().map(|problem| self.place(problem)).collect()
    }
}

#[cfg(test)]
mod tests;
