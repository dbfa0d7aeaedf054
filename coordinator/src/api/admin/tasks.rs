//! `GET /api/v1/tasks` and `/api/v1/tasks/{name}`: the tasks, and the current state of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::response::Response;
use model_boss_core::{Rung, Target};
use model_boss_http::body::json;
use model_boss_http::path::percent_decode;
use model_boss_protocol::{ApiError, Category, ClientId, KeepAlive, ModelId, Priority, Thinking};
use model_boss_tasks::{NameQuestion, Resolved, TaskNames};
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::context::Context;
use crate::api::route::Call;
use model_boss_catalog::Catalog;

/// A task as a request without further fields would use it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TaskObject {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// Every rung of the file, in order.
    ladder: Vec<RungObject>,
    /// The category of the task's requests, if the file states one.
    category: Option<Category>,
    priority: Option<Priority>,
    budget_s: Option<f64>,
    keep_alive_s: Option<KeepAlive>,
    pin_primary: bool,
    patience_s: f64,
    fallback: &'static str,
    local_only: bool,
    thinking: Option<Thinking>,
    params: BTreeMap<String, serde_json::Value>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct RungObject {
    rung: usize,
    /// The model's own name, even if the file uses an alias.
    model: Target,
    /// Whether this machine or a provider has the model.
    known: bool,
    /// Whether a cloud provider serves the rung.
    cloud: bool,
    /// The reason why the rung may not be used, if there is one.
    removed: Option<&'static str>,
}

impl TaskObject {
    /// The models of the rungs that may be used, in the order of the ladder.
    pub(crate) fn usable(&self) -> Vec<Target> {
        self.ladder.iter().filter(|rung| rung.removed.is_none()).map(|rung| rung.model.clone()).collect()
    }

    /// The names of these models.
    pub(crate) fn usable_names(&self) -> Vec<String> {
        self.usable().iter().map(Target::to_string).collect()
    }

    /// The category of the task's models: the file's, else that of the first model of this machine.
    pub(crate) fn category(&self, catalog: &Catalog) -> Category {
        let mut usable = self.ladder.iter().filter(|rung| rung.removed.is_none());
        let of_a_model = || {
            usable.find_map(|rung| match &rung.model {
                Target::Local(id) => Some(catalog.get(id)?.description.category),
                Target::Cloud { .. } => None,
            })
        };
        self.category.or_else(of_a_model).unwrap_or(Category::Llm)
    }
}

/// All tasks, and the faults of their file.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TasksAnswer {
    /// The path of the file.
    file: String,
    tasks: Vec<TaskObject>,
    problems: Vec<String>,
}

/// `GET /api/v1/tasks`.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let context = call.context;
    let tasks = objects(&context);
    let file = context.tasks.path().display().to_string();
    json(&TasksAnswer { file, tasks, problems: context.tasks.problems() })
}

/// `GET /api/v1/tasks/NAME`: one task.
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let path = call.request.uri().path();
    let name = path.split_once("/tasks/").map_or("", |(_, name)| name);
    let name = percent_decode(name).unwrap_or_else(|| name.to_owned());
    let current = call.context.tasks.current();
    json(&object(&call.context, &current.names, name.strip_prefix("task:").unwrap_or(&name))?)
}

/// Every task, except those that no client may use at this moment.
pub(crate) fn objects(context: &Context) -> Vec<TaskObject> {
    let current = context.tasks.current();
    current.names.file().tasks.keys().filter_map(|name| object(context, &current.names, name).ok()).collect()
}

/// The current state of one task.
pub(crate) fn object(context: &Context, names: &TaskNames, name: &str) -> Result<TaskObject, ApiError> {
    let nobody = ClientId::from("");
    let question = NameQuestion { model: None, task: Some(name), client: &nobody, no_fallback: false };
    let resolved = context.tasks.resolve(&question, &context.catalog)?;
    let task = names.task(name).map(Arc::clone).unwrap_or_default();
    let catalog = context.catalog.current();
    let rung = |rung: &Rung, removed| RungObject {
        rung: rung.position,
        known: match &rung.target {
            Target::Local(id) => catalog.get(id).is_some(),
            Target::Cloud { .. } => true,
        },
        cloud: context.tasks.providers().is_cloud(&rung.target),
        model: rung.target.clone(),
        removed,
    };
    let Resolved { removed, .. } = &resolved;
    let mut rungs: Vec<RungObject> = resolved.ladder().rungs().map(|kept| rung(kept, None)).collect();
    rungs.extend(removed.iter().map(|removed| rung(&removed.rung, Some(removed.why))));
    // Rungs that `fallback: none` excludes are still part of the ladder.
    for (position, written) in task.ladder.iter().enumerate() {
        if rungs.iter().all(|rung| rung.rung != position) {
            let model =
                catalog.find(written).map_or_else(|| ModelId::from(written.as_str()), |m| m.description.id.clone());
            rungs.push(rung(&Rung { target: Target::Local(model), position }, Some("fallback is none")));
        }
    }
    rungs.sort_by_key(|rung| rung.rung);
    Ok(TaskObject {
        name: name.to_owned(),
        description: task.description.clone(),
        ladder: rungs,
        category: resolved.category(),
        priority: resolved.priority,
        budget_s: task.budget_s,
        keep_alive_s: resolved.keep_alive,
        pin_primary: resolved.ladder().pin_primary,
        patience_s: resolved.ladder().patience.as_secs_f64(),
        fallback: if task.fallback == Some(model_boss_tasks::Fallback::None) { "none" } else { "any" },
        local_only: task.local_only,
        thinking: resolved.thinking,
        params: task.params.clone(),
    })
}
