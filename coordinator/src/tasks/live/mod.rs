//! Looks at the file, and adopts what makes sense.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model_boss_catalog::LiveCatalog;
use model_boss_core::{ClientRules, Principal};
use model_boss_host::plain_file::read_plain_file;
use model_boss_protocol::{ApiError, ModelId};
use model_boss_settings::LiveSettings;
use model_boss_tasks::{
    MachinePermit, ModelPermit, Names, Problem, Providers, Question, Resolved, Surroundings, TasksFile,
    operate_machine, operate_model, resolve,
};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::refusals::denied;

/// Two looks that agree make a change, as for manifests (docs/adr/0005): a file half written is seen only once. One small
/// file is read each time, so no time stamp and no kind of file system can hide an edit.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What is larger is not read to its end: no file of tasks is.
const MAX_SIZE: u64 = 1 << 20;

/// The tasks in use, and what is wrong with the file as it stands.
pub(crate) struct LiveTasks {
    path: PathBuf,
    /// Whether a file has to be there: somebody named it.
    required: bool,
    providers: Providers,
    settings: Arc<LiveSettings>,
    current: RwLock<Arc<Current>>,
    looks: Mutex<Looks>,
}

/// One state of it. Whoever holds it keeps it, whatever is edited meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Current {
    /// What names mean by the last file that made sense.
    pub(crate) names: Arc<Names>,
    /// What is wrong with the file as it stands now; nothing when it is the one in use.
    pub(crate) problems: Vec<Problem>,
    /// How often it was read again.
    pub(crate) reloads: Reload,
}

/// How often the file was read again, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reload {
    /// Edits that took effect.
    pub(crate) adopted: u64,
    /// Edits that made no sense.
    pub(crate) refused: u64,
    /// When the file in use was read, in seconds since 1970.
    pub(crate) at: f64,
}

#[derive(Default)]
struct Looks {
    /// What was seen last and not judged yet.
    candidate: Option<Mark>,
    /// What was judged last.
    judged: Option<Mark>,
}

/// What tells two states of the file apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Content(u64),
    Missing,
    Unreadable(Option<i32>),
}

/// The file cannot be used at the start. There is no last good one: without its rules every client might do everything.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}; no client is served without the rules of this file: mend it (`model-boss tasks check` says what is wrong), or \
     move it away",
    .0.join("; ")
)]
pub(crate) struct UnusableTasks(Vec<String>);

impl LiveTasks {
    /// Reads the file. Without one nothing is ruled, unless somebody named it.
    pub(crate) fn read(
        path: &Path,
        required: bool,
        providers: Providers,
        settings: Arc<LiveSettings>,
    ) -> Result<Self, UnusableTasks> {
        let live = Self {
            path: path.to_owned(),
            required,
            providers,
            settings,
            current: RwLock::default(),
            looks: Mutex::default(),
        };
        let (mark, text) = live.see();
        let missing = mark == Mark::Missing && !required;
        if !missing {
            live.judge(mark, text);
        }
        live.looks.lock().unwrap_or_else(PoisonError::into_inner).judged = Some(mark);
        let problems = live.problems();
        if problems.is_empty() { Ok(live) } else { Err(UnusableTasks(problems)) }
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The tasks now.
    pub(crate) fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The providers that a rung may name.
    pub(crate) fn providers(&self) -> &Providers {
        &self.providers
    }

    /// What clients may do now, the configuration's word below the file's.
    pub(crate) fn client_rules(&self) -> ClientRules {
        self.current().names.file().client_rules(&self.settings.configured().settings.clients)
    }

    /// What a request means now.
    pub(crate) fn resolve(&self, question: &Question<'_>, models: &LiveCatalog) -> Result<Resolved, ApiError> {
        self.within(models, |around| resolve(question, around)).map_err(denied)
    }

    /// Permission to order something about a model of this machine, by its own name.
    pub(crate) fn operate_model(
        &self,
        principal: Principal,
        model: ModelId,
        models: &LiveCatalog,
    ) -> Result<ModelPermit, ApiError> {
        self.within(models, |around| operate_model(principal, model, around)).map_err(denied)
    }

    /// Permission to order what concerns every model on a device, or on the machine.
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
        let around = Surroundings {
            names: &current.names,
            providers: &self.providers,
            cloud_fallback: self.settings.cloud_fallback(),
            model_named: &model_named,
        };
        decide(&around)
    }

    /// Follows the file for as long as the process lives.
    pub(crate) async fn follow(self: Arc<Self>) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let live = Arc::clone(&self);
            // A look that panicked saw nothing.
            let _ = spawn_blocking(move || live.look()).await;
        }
    }

    /// Looks once. What is new is judged when the next look sees the same.
    fn look(&self) {
        let (mark, text) = self.see();
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.judged == Some(mark) {
            looks.candidate = None;
        } else if looks.candidate.replace(mark) == Some(mark) {
            (looks.judged, looks.candidate) = (Some(mark), None);
            self.judge(mark, text);
        }
    }

    fn see(&self) -> (Mark, Result<String, String>) {
        match read_plain_file(&self.path, MAX_SIZE) {
            Ok(bytes) => {
                let mut hasher = DefaultHasher::new();
                hasher.write(&bytes);
                let text = String::from_utf8(bytes).map_err(|_| "is not a text in UTF-8".to_owned());
                (Mark::Content(hasher.finish()), text)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Mark::Missing, Err(self.missing().to_owned())),
            Err(error) => (Mark::Unreadable(error.raw_os_error()), Err(format!("cannot be read: {error}"))),
        }
    }

    fn missing(&self) -> &'static str {
        if self.current().reloads.adopted > 0 { "is not there; what it said last stays in use" } else { "is not there" }
    }

    /// Adopts what makes sense; else says what does not, and leaves what is in use.
    fn judge(&self, mark: Mark, text: Result<String, String>) {
        let read = match text {
            Ok(text) => TasksFile::read(&text, &self.providers),
            Err(message) => Err(vec![Problem { line: None, field: String::new(), message }]),
        };
        let mut next = Current::clone(&self.current());
        match read {
            Ok(file) => {
                if next.reloads.adopted > 0 {
                    tracing::info!(tasks = file.tasks.len(), clients = file.clients.len(), "tasks read again");
                }
                next.reloads.adopted += 1;
                next.reloads.at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
                self.settings.set_clients(&file);
                (next.names, next.problems) = (Arc::new(Names::new(file)), Vec::new());
            }
            Err(problems) => {
                for problem in &problems {
                    tracing::warn!("tasks not used: {}", self.place(problem));
                }
                if mark != Mark::Missing || self.required || next.reloads.adopted > 0 {
                    next.reloads.refused += 1;
                }
                next.problems = problems;
            }
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }

    /// A problem with its file, as people read it: `tasks.yaml:12: tasks.chat.budget_s: …`.
    pub(crate) fn place(&self, problem: &Problem) -> String {
        let line = problem.line.map_or_else(String::new, |line| format!(":{line}"));
        format!("{}{line}: {problem}", self.path.display())
    }

    /// Everything that is wrong with the file now.
    pub(crate) fn problems(&self) -> Vec<String> {
        self.current().problems.iter().map(|problem| self.place(problem)).collect()
    }
}

#[cfg(test)]
mod tests;
