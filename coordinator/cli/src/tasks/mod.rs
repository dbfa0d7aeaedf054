//! `model-boss tasks`: lists and explains tasks, and checks their file.

pub(crate) mod check;

use clap::{Subcommand, ValueEnum};
use model_boss_client::{Client, in_path};
use model_boss_tasks::{manifest_schema, tasks_schema};
use serde_json::{Value, json};

use super::args::ReadArgs;
use super::error::CliError;
use super::tables::{items, pretty, table, text};
use super::views;

/// The subcommands of `tasks`.
#[derive(Debug, Subcommand)]
pub(super) enum TasksCommand {
    /// List the tasks of the running coordinator, and the faults of their file.
    List(ReadArgs),
    /// Report every fault of a file of tasks, before a coordinator reads it.
    Check(check::CheckArgs),
    /// Explain a task: the state of every rung, and which one a request would get now.
    Explain {
        /// The task's name.
        name: String,
        /// The priority of the request: 0 to 9, or interactive, normal, batch.
        #[arg(long)]
        priority: Option<String>,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Print the JSON Schema of a kind of file, for editors.
    Schema {
        /// The kind of file.
        #[arg(default_value = "tasks")]
        of: SchemaOf,
    },
}

/// The files that have schemas.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum SchemaOf {
    /// `tasks.yaml`.
    Tasks,
    /// A model's manifest.
    Manifest,
}

impl SchemaOf {
    pub(super) fn text(self) -> String {
        match self {
            Self::Tasks => tasks_schema(),
            Self::Manifest => manifest_schema(),
        }
    }
}

/// `model-boss tasks list`.
pub(super) async fn list(client: &Client, as_json: bool) -> Result<String, CliError> {
    let answer = client.get("/api/v1/tasks").await?;
    if as_json {
        return Ok(pretty(&answer));
    }
    let rows = items(&answer, "tasks").map(|task| {
        let rungs: Vec<String> =
            items(task, "ladder").filter(|rung| rung["removed"].is_null()).map(|rung| text(&rung["model"])).collect();
        let or_none = |value: &Value| if value.is_null() { "-".to_owned() } else { text(value) };
        let seconds = task["budget_s"].as_f64().map_or_else(|| "-".to_owned(), |s| format!("{s} s"));
        [text(&task["name"]), rungs.join(" > "), or_none(&task["priority"]), seconds, or_none(&task["description"])]
    });
    let mut shown = table(["TASK", "LADDER", "PRIORITY", "BUDGET", "WHAT"], rows);
    for problem in items(&answer, "problems") {
        shown.push_str(&format!("problem: {}\n", text(problem)));
    }
    Ok(shown)
}

/// `model-boss tasks explain`.
pub(super) async fn explain(
    client: &Client,
    name: &str,
    priority: Option<&str>,
    as_json: bool,
) -> Result<String, CliError> {
    let name = name.strip_prefix("task:").unwrap_or(name);
    let task = client.get(&format!("/api/v1/tasks/{}", in_path(name))).await?;
    let mut question = json!({ "task": name });
    if let Some(priority) = priority.map(views::number_or_word).or_else(|| Some(task["priority"].clone())) {
        question["priority"] = priority;
    }
    // If no rung can serve the request, the answer is the reason.
    let plan = match client.post("/api/v1/plan", &question).await {
        Ok(plan) => plan,
        Err(model_boss_client::ClientError::Api(body)) => json!({ "error": body.error.message }),
        Err(error) => return Err(error.into()),
    };
    if as_json {
        return Ok(pretty(&json!({ "task": task, "plan": plan })));
    }
    let mut lines = vec![format!("task:{name}")];
    for (label, field) in [
        ("what", "description"),
        ("category", "category"),
        ("priority", "priority"),
        ("budget", "budget_s"),
        ("keep", "keep_alive_s"),
        ("thinking", "thinking"),
    ] {
        if !task[field].is_null() {
            lines.push(format!("  {label:<10} {}", text(&task[field])));
        }
    }
    for (label, field) in [("pinned to the first", "pin_primary"), ("never leaves this machine", "local_only")] {
        if task[field] == true {
            lines.push(format!("  {label}"));
        }
    }
    if task["params"].as_object().is_some_and(|params| !params.is_empty()) {
        lines.push(format!("  {:<10} {}", "params", task["params"]));
    }
    for rung in items(&task, "ladder") {
        let standing =
            items(&plan, "ladder").find(|known| known["rung"] == rung["rung"]).map(|known| text(&known["state"]));
        let state = match (rung["removed"].as_str(), standing) {
            (Some(why), _) => format!("not used: {why}"),
            (None, Some(state)) => state,
            (None, None) if rung["known"] == false => "no manifest describes it".to_owned(),
            (None, None) => "the only one".to_owned(),
        };
        lines.push(format!("  rung {:<5} {}: {state}", text(&rung["rung"]), text(&rung["model"])));
    }
    lines.push(match plan["error"].as_str() {
        Some(error) => format!("a request now: refused: {error}"),
        None => format!(
            "a request now: rung {}, {} ({}): {}",
            text(&plan["rung"]),
            text(&plan["model"]),
            text(&plan["rung_reason"]),
            text(&plan["message"])
        ),
    });
    Ok(lines.join("\n") + "\n")
}
