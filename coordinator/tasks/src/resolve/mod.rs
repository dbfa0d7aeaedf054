//! The resolution of names: one function from a request's name to the rungs that may serve it. It is the only place
//! that applies the rule about clouds (TR-3).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use model_boss_core::{AdapterName, DEFAULT_PATIENCE, Ladder, Principal, Rung, Target};
use model_boss_protocol::{Category, ClientId, KeepAlive, ModelId, Priority, Thinking, without_latest};
use serde_json::Value;

use crate::check::nearest;
use crate::denial::Denial;
use crate::file::{ClientProfile, Fallback, Task, seconds};
use crate::names::TaskNames;
use crate::permit::{CancelPermit, MachinePermit, ModelPermit, Permit};
use crate::providers::Providers;

/// The name used for requests without one.
const DEFAULT_NAME: &str = "default";
/// The prefix that marks a task's name in the place of a model's.
const TASK: &str = "task:";
/// The key for all other names in a client's map of names.
const ANY_NAME: &str = "*";

/// The names in a request.
#[derive(Clone, Debug)]
pub struct NameQuestion<'a> {
    /// The field `model`, if present.
    pub model: Option<&'a str>,
    /// The field `x_task`, if present.
    pub task: Option<&'a str>,
    /// The client that sent the request.
    pub client: &'a ClientId,
    /// `x_fallback: "none"`: only the first rung may serve it.
    pub no_fallback: bool,
}

/// The configuration that the answer depends on.
pub struct Surroundings<'a> {
    /// The tasks and the clients.
    pub names: &'a TaskNames,
    /// The cloud and other providers.
    pub providers: &'a Providers,
    /// The setting `allowCloudFallback` of TR-4.
    pub cloud_fallback: CloudFallback,
    /// The canonical name of the local model with this name or alias.
    pub model_named: &'a dyn Fn(&str) -> Option<ModelId>,
    /// The meaning of a name that is no model's own, where it may be an adapter's.
    pub adapter_named: &'a dyn Fn(&str) -> AdapterName,
}

/// Whether a request may fall back to a cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudFallback {
    /// Fallback to a cloud is permitted.
    Allowed,
    /// Fallback to a cloud was switched off.
    Off,
    /// The setting is unknown, for this reason, and fallback counts as switched off.
    Unknown(&'static str),
}

impl CloudFallback {
    /// The reason why the fallback is forbidden, in words; `None` where it is not.
    pub const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Allowed => None,
            Self::Off => Some("allowCloudFallback is off"),
            Self::Unknown(why) => Some(why),
        }
    }
}

/// The rungs that may serve a request, and the defaults that apply to it.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The resolved name: `task:NAME`, a model's own name, `PROVIDER:MODEL`, or an unknown name.
    pub name: String,
    /// The permission for the client, with the rungs.
    pub permit: Permit,
    /// The priority of requests that do not state one.
    pub priority: Option<Priority>,
    /// The budget of requests that do not state one.
    pub budget: Option<Duration>,
    /// The keep-alive of requests that do not state one.
    pub keep_alive: Option<KeepAlive>,
    /// Whether models that can reason before they answer do so, unless the request decides it.
    pub thinking: Option<Thinking>,
    /// The client's profile.
    pub profile: Arc<ClientProfile>,
    /// Rungs as written that may not be used, with the reason.
    pub removed: Vec<Removed>,
    /// The rungs that were omitted only because a guard is unknown, with the reason, for an error that their absence
    /// causes.
    pub unknown_guard: Option<String>,
    /// The adapters of rungs that have one, by the rungs' positions.
    pub adapters: BTreeMap<usize, String>,
    /// The named task, completed with the defaults.
    task: Option<Arc<Task>>,
}

impl Resolved {
    /// The rungs that may serve the request.
    pub fn ladder(&self) -> &Ladder {
        self.permit.ladder()
    }

    /// Whether one model serves it, without an adapter.
    pub fn is_plain(&self) -> bool {
        self.ladder().rest.is_empty() && self.adapters.is_empty()
    }

    /// The category of the task's requests, if it sets one.
    pub fn category(&self) -> Option<Category> {
        self.task.as_ref()?.category
    }

    /// The values for fields that a request does not set.
    pub fn params(&self) -> Option<&BTreeMap<String, Value>> {
        Some(&self.task.as_ref()?.params)
    }
}

/// A rung as written that may not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The removed rung.
    pub rung: Rung,
    /// The reason, in words.
    pub why: &'static str,
}

/// Resolves the names of a request.
///
/// Errors: 404 for a task or an adapter that does not exist, 403 for a model or task that the client may not use. An
/// unknown model is no error here: the scheduler has all names, and finds similar ones.
pub fn resolve(question: &NameQuestion<'_>, around: &Surroundings<'_>) -> Result<Resolved, Denial> {
    let profile = Arc::clone(around.names.profile(question.client));
    let preferred = question.task.is_some().then_some(question.model).flatten();
    let asked: Cow<'_, str> = match question.task {
        Some(task) => format!("{TASK}{}", task.strip_prefix(TASK).unwrap_or(task)).into(),
        None => question.model.unwrap_or(DEFAULT_NAME).into(),
    };
    let given = |name: &str| profile.models.get(name).map(String::as_str);
    let is_known = |name: &str| given(name).is_some() || !matches!(target(name, around).0, Target::Local(_));
    // Clients of Ollama's API add the tag to every name without one.
    let asked = match without_latest(&asked) {
        Some(short) if !is_known(&asked) && (around.model_named)(&asked).is_none() => short.to_owned().into(),
        _ => asked,
    };
    let named = given(&asked).or_else(|| given(ANY_NAME)).unwrap_or(&asked);
    let resolved = match named.strip_prefix(TASK) {
        Some(name) => task(name, &profile, around)?,
        None if (around.model_named)(named).is_none()
            && named == DEFAULT_NAME
            && around.names.task(DEFAULT_NAME).is_some() =>
        {
            task(DEFAULT_NAME, &profile, around)?
        }
        None => plain(named, around)?,
    };
    let (mut rungs, mut removed): (Vec<Rung>, Vec<Removed>) = (resolved.rungs, Vec::new());
    let adapters = resolved.adapters;
    allow((&mut rungs, &adapters), &mut removed, &resolved.name, &profile, around)?;
    stay_here(&mut rungs, &mut removed, resolved.task.as_deref(), &profile, around)?;
    let (mut rungs, fallen) = guarded(rungs, around.providers, around.cloud_fallback);
    let unknown_guard = match around.cloud_fallback {
        CloudFallback::Unknown(why) if !fallen.is_empty() => Some(left_out(&fallen, why)),
        _ => None,
    };
    removed.extend(fallen);
    if let Some(preferred) = preferred {
        prefer((&mut rungs, &adapters), preferred, around);
    }
    let task = resolved.task.as_deref();
    if question.no_fallback || task.is_some_and(|task| task.fallback == Some(Fallback::None)) {
        rungs.truncate(1);
    }
    let mut rungs = rungs.into_iter();
    let Some(first) = rungs.next() else { return Err(Denial::NothingLeft(resolved.name)) };
    let ladder = Ladder {
        first,
        rest: rungs.collect(),
        pin_primary: task.and_then(|task| task.pin_primary).unwrap_or(false),
        patience: task.map_or(DEFAULT_PATIENCE, Task::patience),
    };
    Ok(Resolved {
        permit: Permit::new(question.client.clone(), ladder),
        priority: task.and_then(|task| task.priority),
        budget: task.and_then(|task| task.budget_s).map(seconds),
        keep_alive: task.and_then(|task| task.keep_alive_s),
        thinking: task.and_then(|task| task.thinking),
        name: resolved.name,
        adapters,
        task: resolved.task,
        profile,
        removed,
        unknown_guard,
    })
}

fn left_out(fallen: &[Removed], why: &str) -> String {
    let names: Vec<String> = fallen.iter().map(|removed| format!("'{}'", removed.rung.target)).collect();
    format!("not asked: {} ({why})", names.join(", "))
}

/// The permission to load, unload, move, pin or invalidate a local model, by its own name. The operator has it for all
/// models, a client for those that it may use.
///
/// Errors: 403 for a model that the client may not use.
pub fn operate_model(principal: Principal, model: ModelId, around: &Surroundings<'_>) -> Result<ModelPermit, Denial> {
    if let Principal::Client(client) = &principal {
        let profile = around.names.profile(client);
        let mut rungs = vec![Rung { target: Target::Local(model.clone()), position: 0 }];
        allow((&mut rungs, &BTreeMap::new()), &mut Vec::new(), model.as_str(), profile, around)?;
    }
    Ok(ModelPermit::new(principal, model))
}

/// The permission for orders that concern every model on a device, or on the machine.
///
/// Errors: 403 for a client that may not use every model.
pub fn operate_machine(principal: Principal, around: &Surroundings<'_>) -> Result<MachinePermit, Denial> {
    if let Principal::Client(client) = &principal
        && around.names.profile(client).lists_of_models().next().is_some()
    {
        return Err(Denial::MachineNotAllowed);
    }
    Ok(MachinePermit::new(principal))
}

/// The permission to cancel requests. Every caller has it: the scheduler holds a client to requests of its own.
pub fn cancel_requests(principal: Principal) -> CancelPermit {
    CancelPermit::new(principal)
}

/// Applies the rule about clouds (TR-3): unless fallback is permitted, targets outside the machine are removed from
/// every place but the first. A first place, or a cloud model named directly, was chosen deliberately. So this never
/// empties a ladder.
pub fn guarded(rungs: Vec<Rung>, providers: &Providers, fallback: CloudFallback) -> (Vec<Rung>, Vec<Removed>) {
    let Some(why) = fallback.refusal() else { return (rungs, Vec::new()) };
    let (kept, fallen): (Vec<Rung>, Vec<Rung>) =
        rungs.into_iter().partition(|rung| rung.position == 0 || !providers.is_cloud(&rung.target));
    (kept, fallen.into_iter().map(|rung| Removed { rung, why }).collect())
}

/// The meaning of a name, before any rule forbids it.
struct Meaning {
    name: String,
    rungs: Vec<Rung>,
    /// The adapters of rungs, by their positions.
    adapters: BTreeMap<usize, String>,
    task: Option<Arc<Task>>,
}

fn task(name: &str, profile: &ClientProfile, around: &Surroundings<'_>) -> Result<Meaning, Denial> {
    let Some(task) = around.names.task(name) else {
        // Names of tasks that the client may not use are not revealed.
        let known = around.names.file().tasks.keys().filter(|known| allowed(profile, &format!("{TASK}{known}")));
        let hint = match nearest(name, known) {
            Some(near) => format!("did you mean 'task:{near}'?"),
            None => "GET /api/v1/tasks lists them".to_owned(),
        };
        return Err(Denial::UnknownTask { name: name.to_owned(), hint });
    };
    let (mut rungs, mut adapters) = (Vec::with_capacity(task.ladder.len()), BTreeMap::new());
    for (position, name) in task.ladder.iter().enumerate() {
        let (target, adapter) = target(name, around);
        rungs.push(Rung { target, position });
        adapters.extend(adapter.map(|adapter| (position, adapter)));
    }
    Ok(Meaning { name: format!("{TASK}{name}"), rungs, adapters, task: Some(Arc::clone(task)) })
}

fn plain(name: &str, around: &Surroundings<'_>) -> Result<Meaning, Denial> {
    let (target, adapter) = target(name, around);
    if let (Target::Local(id), None) = (&target, &adapter)
        && (around.model_named)(id.as_str()).is_none()
        && let AdapterName::Unknown { model, adapter, known } = (around.adapter_named)(name)
    {
        return Err(Denial::UnknownAdapter { model, adapter, known: known.join(", ") });
    }
    let rung = Rung { target, position: 0 };
    let adapters: BTreeMap<usize, String> = adapter.into_iter().map(|adapter| (0, adapter)).collect();
    Ok(Meaning { name: written(&rung, &adapters), rungs: vec![rung], adapters, task: None })
}

/// The target of a name, and its adapter. Local names have precedence over providers' prefixes, because the operator
/// wrote the manifests.
fn target(name: &str, around: &Surroundings<'_>) -> (Target, Option<String>) {
    if let Some(model) = (around.model_named)(name) {
        return (Target::Local(model), None);
    }
    match (around.adapter_named)(name) {
        AdapterName::Known { model, adapter } => (Target::Local(model), Some(adapter)),
        AdapterName::Unknown { .. } | AdapterName::Other => (around.providers.target(name), None),
    }
}

/// A rung's name, with its adapter.
fn written(rung: &Rung, adapters: &BTreeMap<usize, String>) -> String {
    match adapters.get(&rung.position) {
        Some(adapter) => format!("{}:{adapter}", rung.target),
        None => rung.target.to_string(),
    }
}

/// The rungs that the client's list permits: all if the task is listed, else those that are listed themselves.
fn allow(
    (rungs, adapters): (&mut Vec<Rung>, &BTreeMap<usize, String>),
    removed: &mut Vec<Removed>,
    name: &str,
    profile: &ClientProfile,
    around: &Surroundings<'_>,
) -> Result<(), Denial> {
    for patterns in profile.lists_of_models().filter(|patterns| !names(patterns, name)) {
        // A listed alias permits its model. An adapter is a model of its own: only its own name permits it.
        let listed = |rung: &Rung| {
            let adapter = adapters.get(&rung.position);
            let by_alias = patterns.iter().any(|pattern| {
                let (meant, of) = target(pattern, around);
                matches!(meant, Target::Local(_)) && meant == rung.target && of.as_ref() == adapter
            });
            by_alias || names(patterns, &written(rung, adapters))
        };
        drop_where(rungs, removed, |rung| !listed(rung), "this client may not use it");
    }
    if rungs.is_empty() {
        return Err(Denial::ModelNotAllowed(name.to_owned()));
    }
    Ok(())
}

/// Whether every list of the client has this name.
fn allowed(profile: &ClientProfile, name: &str) -> bool {
    profile.lists_of_models().all(|patterns| names(patterns, name))
}

fn names(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    })
}

/// Removes clouds if the task or the client is local, from every place, independently of the guard.
fn stay_here(
    rungs: &mut Vec<Rung>,
    removed: &mut Vec<Removed>,
    task: Option<&Task>,
    profile: &ClientProfile,
    around: &Surroundings<'_>,
) -> Result<(), Denial> {
    let (why, denial) = if task.is_some_and(|task| task.local_only) {
        ("the task is local_only", Denial::TaskIsLocal)
    } else if profile.cloud == Some(false) {
        ("this client may not use clouds", Denial::ClientIsLocal)
    } else {
        return Ok(());
    };
    drop_where(rungs, removed, |rung| around.providers.is_cloud(&rung.target), why);
    if rungs.is_empty() {
        return Err(denial);
    }
    Ok(())
}

fn drop_where(rungs: &mut Vec<Rung>, removed: &mut Vec<Removed>, wrong: impl Fn(&Rung) -> bool, why: &'static str) {
    let (fallen, kept) = std::mem::take(rungs).into_iter().partition(|rung| wrong(rung));
    *rungs = kept;
    let fallen: Vec<Rung> = fallen;
    removed.extend(fallen.into_iter().map(|rung| Removed { rung, why }));
}

/// Moves the rung of a model that is named beside a task to the front (RC-2). A model that is not on the ladder
/// changes nothing.
fn prefer((rungs, adapters): (&mut [Rung], &BTreeMap<usize, String>), name: &str, around: &Surroundings<'_>) {
    let (wanted, adapter) = target(name, around);
    let is_wanted = |rung: &Rung| rung.target == wanted && adapters.get(&rung.position) == adapter.as_ref();
    if let Some(at) = rungs.iter().position(is_wanted) {
        rungs[..=at].rotate_right(1);
    }
}

#[cfg(test)]
mod tests;
