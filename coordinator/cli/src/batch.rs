//! `batch`: files of requests, answered as the least important work.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use model_boss_client::{Client, in_path};
use serde_json::{Value, json};

use super::args::ReadArgs;
use super::error::CliError;
use super::jobs::{save, steadily, upload_form, with_query};
use super::progress_line::{ProgressLine, ProgressUnit, ShownProgress};
use super::runtime::{print, small_runtime};
use super::tables::{items, pretty, table, text};

const BATCHES: &str = "/v1/batches";
/// The interval between two looks at a batch.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// `model-boss batch`.
#[derive(Debug, Subcommand)]
pub(super) enum BatchCommand {
    /// Submit a file of requests, one in each line. The batch's name is printed.
    Submit(BatchSubmitArgs),
    /// List batches, the newest first.
    List {
        /// The most batches.
        #[arg(short = 'n', long, default_value_t = 20)]
        limit: u32,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Show a batch: its state, its numbers of lines, its faults.
    Show {
        /// The name of the batch.
        id: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Wait for the end of a batch, and write its files.
    Wait {
        /// The name of the batch.
        id: String,
        #[command(flatten)]
        files: BatchFiles,
    },
    /// Cancel a batch. What was answered is kept.
    Cancel {
        /// The name of the batch.
        id: String,
    },
}

/// `batch submit`.
#[derive(Debug, Args)]
pub(super) struct BatchSubmitArgs {
    /// The file, in OpenAI's form: a line has custom_id, method, url and body.
    file: PathBuf,
    /// The route of every line.
    #[arg(long, default_value = "/v1/chat/completions")]
    endpoint: String,
    /// The time within which every line should be answered.
    #[arg(long, default_value = "24h", value_name = "TIME")]
    window: String,
    /// Wait for the end, and write the files.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    files: BatchFiles,
}

/// The files of a batch that has ended.
#[derive(Debug, Args)]
pub(super) struct BatchFiles {
    /// The file for the answers, in place of standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The file for lines without an answer.
    #[arg(long, value_name = "FILE")]
    errors: Option<PathBuf>,
}

/// Runs a command about batches.
pub(super) fn run(client: &Client, command: BatchCommand) -> Result<ExitCode, CliError> {
    let runtime = small_runtime()?;
    match command {
        BatchCommand::Submit(args) => return runtime.block_on(submit(client, &args)),
        BatchCommand::List { limit, read } => {
            let path = with_query(BATCHES, &[("limit", Some(limit.to_string()))]);
            let answer = runtime.block_on(client.get(&path))?;
            print(&if read.json { pretty(&answer) } else { listed(&answer) })?;
        }
        BatchCommand::Show { id, read } => {
            let batch = runtime.block_on(client.get(&path_of(&id)))?;
            print(&if read.json { pretty(&batch) } else { shown(&batch) })?;
        }
        BatchCommand::Wait { id, files } => return runtime.block_on(wait(client, &id, &files)),
        BatchCommand::Cancel { id } => {
            let batch = runtime.block_on(client.post(&format!("{}/cancel", path_of(&id)), &json!({})))?;
            print(&format!("{id} is {}\n", text(&batch["status"])))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn submit(client: &Client, args: &BatchSubmitArgs) -> Result<ExitCode, CliError> {
    let (content_type, form) = upload_form("batch", &args.file)?;
    let file = client.post_bytes("/v1/files", &content_type, form).await?;
    let wish = json!({
        "input_file_id": file["id"],
        "endpoint": args.endpoint,
        "completion_window": args.window,
    });
    let batch = client.post(BATCHES, &wish).await?;
    let id = text(&batch["id"]);
    if args.wait {
        return wait(client, &id, &args.files).await;
    }
    print(&format!("{id}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for the end of a batch, with its progress, and writes its files.
async fn wait(client: &Client, id: &str, files: &BatchFiles) -> Result<ExitCode, CliError> {
    let (mut line, began) = (ProgressLine::new(), Instant::now());
    let (path, mut was_there) = (path_of(id), false);
    let batch = loop {
        let batch = steadily(was_there, || client.get(&path)).await?;
        was_there = true;
        let (counts, status) = (&batch["request_counts"], text(&batch["status"]));
        let number = |name: &str| counts[name].as_u64().unwrap_or(0);
        let completed = number("completed").saturating_add(number("failed"));
        let progress = ShownProgress {
            stage: status.clone(),
            file: String::new(),
            total: number("total"),
            completed,
            rate: completed as f64 / began.elapsed().as_secs_f64().max(1e-3),
            trouble: None,
            at: Instant::now(),
            unit: ProgressUnit::Steps("lines"),
        };
        line.show(&progress).map_err(CliError::Output)?;
        if ["completed", "failed", "expired", "cancelled"].contains(&status.as_str()) {
            break batch;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    line.end().map_err(CliError::Output)?;
    if let Some(file) = batch["output_file_id"].as_str() {
        save(client, &content_of(file), files.output.as_deref()).await?;
    }
    if let (Some(file), Some(name)) = (batch["error_file_id"].as_str(), &files.errors) {
        save(client, &content_of(file), Some(name)).await?;
    }
    match batch["status"].as_str() {
        Some("completed") if batch["request_counts"]["failed"] == 0 => Ok(ExitCode::SUCCESS),
        Some("completed") => {
            let failed = text(&batch["request_counts"]["failed"]);
            model_boss_host::terminal::say(&format!(
                "model-boss: {failed} lines have no answer; --errors FILE has them"
            ));
            Ok(ExitCode::FAILURE)
        }
        _ => Err(CliError::NoResult { id: id.to_owned(), state: text(&batch["status"]), why: faults(&batch) }),
    }
}

fn path_of(id: &str) -> String {
    format!("{BATCHES}/{}", in_path(id))
}

fn content_of(file: &str) -> String {
    format!("/v1/files/{}/content", in_path(file))
}

fn listed(answer: &Value) -> String {
    let rows = items(answer, "data").map(|batch| {
        let counts = &batch["request_counts"];
        let lines = format!("{}/{}", text(&counts["completed"]), text(&counts["total"]));
        [text(&batch["id"]), text(&batch["status"]), lines, text(&counts["failed"]), text(&batch["endpoint"])]
    });
    table(["BATCH", "STATUS", "ANSWERED", "FAILED", "ENDPOINT"], rows)
}

fn shown(batch: &Value) -> String {
    let counts = &batch["request_counts"];
    let mut text_of = format!(
        "{} {}\n{} of {} lines are answered, and {} have errors\n",
        text(&batch["id"]),
        text(&batch["status"]),
        text(&counts["completed"]),
        text(&counts["total"]),
        text(&counts["failed"])
    );
    let faults = faults(batch);
    if !faults.is_empty() {
        text_of += &format!("{faults}\n");
    }
    text_of
}

/// The faults of a batch's file, one in each line.
fn faults(batch: &Value) -> String {
    let faults: Vec<String> = items(&batch["errors"], "data").map(|fault| text(&fault["message"])).collect();
    faults.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_a_batch_is_shown_with_its_lines_and_faults() {
        let batch = json!({ "id": "batch_1", "status": "failed", "endpoint": "/v1/embeddings",
            "request_counts": { "total": 0, "completed": 0, "failed": 0 },
            "errors": { "data": [{ "message": "line 2: the line cannot be read" }] } });
        let text = shown(&batch);
        assert!(text.starts_with("batch_1 failed\n") && text.ends_with("line 2: the line cannot be read\n"), "{text}");
        assert!(listed(&json!({ "data": [batch] })).contains("batch_1"));
    }
}
