//! `jobs`: orders for jobs, their states, results and ends.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, Subcommand};
use http::Method;
use model_boss_client::{Client, ClientError, in_path};
use model_boss_host::clocks::unix_time;
use model_boss_host::terminal;
use serde_json::{Value, json};

use super::args::{ReadArgs, WatchArgs};
use super::error::CliError;
use super::runtime::{print, small_runtime};
use super::tables::{items, pretty, table, text};
use super::views::number_or_word;
use super::watch;

const JOBS: &str = "/api/v1/jobs";
/// How long a coordinator may be away while the end of a job is waited for.
const RESTART: Duration = Duration::from_secs(60);
/// The pause before it is asked again.
const AGAIN: Duration = Duration::from_millis(500);
/// The line between the parts of a form. It is in no text of a person, and long enough to be in no file by chance.
const EDGE: &str = "model-boss-form-8f1c2b7e5d904a63";

/// `model-boss jobs`.
#[derive(Debug, Subcommand)]
pub(super) enum JobsCommand {
    /// List jobs, the newest first.
    List {
        /// Only those in this state: queued, running, succeeded, failed or cancelled; several with commas.
        #[arg(long)]
        state: Option<String>,
        /// Only those of this kind: chat, embeddings, images, speech, transcription, …
        #[arg(long)]
        kind: Option<String>,
        /// The most jobs.
        #[arg(short = 'n', long, default_value_t = 20)]
        limit: u32,
        #[command(flatten)]
        read: WatchArgs,
    },
    /// Show a job: its state, its place in the queue and why it waits, its result or its error.
    Show {
        /// The name of the job.
        id: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Submit a job. Its name is printed, or with --wait its result.
    Submit(SubmitArgs),
    /// Wait for the end of jobs. Exit code 1 if one has no result.
    Wait {
        /// The names of the jobs.
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Cancel a job that waits or runs.
    Cancel {
        /// The name of the job.
        id: String,
    },
    /// Print the result of a job, or write it to a file.
    Result {
        /// The name of the job.
        id: String,
        /// The file, in place of standard output.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// `jobs submit`.
#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    /// The kind: chat, completions, responses, embeddings, rerank, score, classify, images, image_edits, speech,
    /// transcription; or a route, such as /v1/chat/completions.
    kind: String,
    /// The file with the request's body as JSON; - or nothing: standard input.
    #[arg(conflicts_with = "form")]
    file: Option<PathBuf>,
    /// A part of a form, in place of a body: NAME=VALUE, or NAME=@FILE. May be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    form: Vec<String>,
    /// The priority: 0 to 9, or interactive, normal, batch.
    #[arg(long)]
    priority: Option<String>,
    /// The time from now after which the answer is useless: 30m, 2h.
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
    /// The URL of the webhook that gets the end.
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// Wait for the end, and print the result.
    #[arg(long)]
    wait: bool,
    /// The file for the result, in place of standard output.
    #[arg(short, long, value_name = "FILE", requires = "wait")]
    output: Option<PathBuf>,
}

/// Runs a command about jobs.
pub(super) fn run(client: &Client, command: JobsCommand) -> Result<ExitCode, CliError> {
    match command {
        JobsCommand::List { state, kind, limit, read } => {
            let query = [("state", state), ("kind", kind), ("limit", Some(limit.to_string()))];
            let path = with_query(JOBS, &query);
            watch::show(client, read, async |client| list(client, &path, read.read.json).await)?;
        }
        JobsCommand::Show { id, read } => {
            let job = small_runtime()?.block_on(client.get(&path_of(&id)))?;
            print(&if read.json { pretty(&job) } else { shown(&job) })?;
        }
        JobsCommand::Submit(args) => return small_runtime()?.block_on(submit(client, &args)),
        JobsCommand::Wait { ids } => {
            let runtime = small_runtime()?;
            let mut code = ExitCode::SUCCESS;
            for id in ids {
                let job = runtime.block_on(ended(client, &id))?;
                if job["state"] != "succeeded" {
                    code = ExitCode::FAILURE;
                }
                print(&format!("{id} {}\n", state_and_why(&job)))?;
            }
            return Ok(code);
        }
        JobsCommand::Cancel { id } => {
            let (_, job) = small_runtime()?.block_on(async {
                let job = client.get(&path_of(&id)).await?;
                if !job["ended"].is_null() {
                    return Ok::<_, CliError>((http::StatusCode::OK, job));
                }
                Ok(client.ask(Method::DELETE, &path_of(&id), None).await?)
            })?;
            print(&format!("{id} is {}\n", text(&job["state"])))?;
        }
        JobsCommand::Result { id, output } => small_runtime()?.block_on(result(client, &id, output.as_deref()))?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, path: &str, as_json: bool) -> Result<String, CliError> {
    let answer = client.get(path).await?;
    if as_json {
        return Ok(pretty(&answer));
    }
    let now = unix_time();
    let rows = items(&answer, "data").map(|job| {
        let age = now - job["created"].as_f64().unwrap_or(now);
        let model = job["result"]["model"].as_str().or(job["progress"]["model"].as_str()).unwrap_or("-");
        [
            text(&job["id"]),
            text(&job["kind"]),
            text(&job["state"]),
            text(&job["client"]),
            model.to_owned(),
            span(age),
            why(job).unwrap_or_default(),
        ]
    });
    Ok(table(["JOB", "KIND", "STATE", "CLIENT", "MODEL", "AGE", ""], rows))
}

/// A job in some lines.
fn shown(job: &Value) -> String {
    let mut lines = vec![format!("{} {} {}", text(&job["id"]), text(&job["kind"]), state_and_why(job))];
    if let Some(before) = job["queue"]["jobs_before"].as_u64().filter(|before| *before > 0) {
        lines.push(format!("{before} jobs are taken up before it"));
    }
    if let Some(position) = job["queue"]["position"].as_u64() {
        lines.push(format!("its request has place {position} in the queue"));
    }
    if let (Some(tokens), Some(bytes)) = (job["progress"]["tokens"].as_u64(), job["progress"]["bytes"].as_u64()) {
        lines.push(format!("{tokens} tokens and {bytes} bytes of the answer so far"));
    }
    if let Some(preview) = job["progress"]["preview"].as_str() {
        // A client's text decides nothing about the terminal.
        let preview: String = preview.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        lines.push(format!("… {}", preview.trim()));
    }
    if let Some(result) = job["result"].as_object() {
        let field = |name: &str| result.get(name).map(text).unwrap_or_default();
        lines.push(format!("result: {} bytes of {} by {}", field("bytes"), field("content_type"), field("model")));
    }
    if let Some(hook) = job["webhook"].as_object() {
        let field = |name: &str| hook.get(name).map(text).unwrap_or_default();
        lines.push(format!("webhook to {}: {}", field("url"), field("state")));
    }
    lines.join("\n") + "\n"
}

async fn submit(client: &Client, args: &SubmitArgs) -> Result<ExitCode, CliError> {
    let word = if args.kind.starts_with('/') { "endpoint" } else { "kind" };
    let job = if args.form.is_empty() {
        let mut order = json!({ word: args.kind, "body": body_of(args.file.as_deref())? });
        if let Some(priority) = &args.priority {
            order["priority"] = number_or_word(priority);
        }
        for (name, value) in [("deadline", &args.deadline), ("webhook", &args.webhook)] {
            if let Some(value) = value {
                order[name] = value.as_str().into();
            }
        }
        client.post(JOBS, &order).await?
    } else {
        let query = [
            (word, Some(args.kind.clone())),
            ("priority", args.priority.clone()),
            ("deadline", args.deadline.clone()),
            ("webhook", args.webhook.clone()),
        ];
        let form = form_of(&args.form)?;
        let kind = format!("multipart/form-data; boundary={EDGE}");
        client.post_bytes(&with_query(JOBS, &query), &kind, form).await?
    };
    let id = text(&job["id"]);
    if !args.wait {
        print(&format!("{id}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    ended(client, &id).await?;
    result(client, &id, args.output.as_deref()).await?;
    Ok(ExitCode::SUCCESS)
}

/// The body in a file, or from standard input.
fn body_of(file: Option<&Path>) -> Result<Value, CliError> {
    let read = match file.filter(|file| *file != Path::new("-")) {
        Some(file) => std::fs::read(file).map_err(|error| CliError::Unreadable(file.to_owned(), error))?,
        None => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).map_err(CliError::Input)?;
            bytes
        }
    };
    serde_json::from_slice(&read).map_err(CliError::Body)
}

/// The parts of a form as one body.
fn form_of(parts: &[String]) -> Result<Bytes, CliError> {
    let mut form = Vec::new();
    for part in parts {
        let (name, value) = part.split_once('=').ok_or_else(|| CliError::NotAPart(part.clone()))?;
        let quoted = |text: &str| text.replace(['"', '\r', '\n'], "_");
        form.extend_from_slice(
            format!("--{EDGE}\r\ncontent-disposition: form-data; name=\"{}\"", quoted(name)).as_bytes(),
        );
        match value.strip_prefix('@').map(Path::new) {
            Some(path) => {
                let content = std::fs::read(path).map_err(|error| CliError::Unreadable(path.to_owned(), error))?;
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                form.extend_from_slice(format!("; filename=\"{}\"", quoted(&file)).as_bytes());
                form.extend_from_slice(b"\r\ncontent-type: application/octet-stream\r\n\r\n");
                form.extend_from_slice(&content);
            }
            None => form.extend_from_slice(format!("\r\n\r\n{value}").as_bytes()),
        }
        form.extend_from_slice(b"\r\n");
    }
    form.extend_from_slice(format!("--{EDGE}--\r\n").as_bytes());
    Ok(Bytes::from(form))
}

/// The boundary and a form with one file, for `batch`.
pub(super) fn upload_form(purpose: &str, file: &Path) -> Result<(String, Bytes), CliError> {
    let parts = [format!("purpose={purpose}"), format!("file=@{}", file.display())];
    Ok((format!("multipart/form-data; boundary={EDGE}"), form_of(&parts)?))
}

/// A job once it has ended. A coordinator that restarts meanwhile is waited for.
async fn ended(client: &Client, id: &str) -> Result<Value, CliError> {
    let path = format!("{}?wait=30s", path_of(id));
    let mut was_there = false;
    loop {
        let job = steadily(was_there, || client.get(&path)).await?;
        was_there = true;
        if !job["ended"].is_null() {
            return Ok(job);
        }
    }
}

/// The answer to a question that is asked again while the coordinator is away or says that it cannot answer now.
/// `was_there`: whether it answered before.
pub(super) async fn steadily<F: Future<Output = Result<Value, ClientError>>>(
    was_there: bool,
    ask: impl Fn() -> F,
) -> Result<Value, ClientError> {
    let mut away = None;
    loop {
        match ask().await {
            Err(error) if error.may_pass(was_there || away.is_some()) => {
                let since = *away.get_or_insert_with(Instant::now);
                if since.elapsed() > RESTART {
                    return Err(error);
                }
                tokio::time::sleep(AGAIN).await;
            }
            answer => return answer,
        }
    }
}

/// Prints or writes the body of a job's answer.
async fn result(client: &Client, id: &str, output: Option<&Path>) -> Result<(), CliError> {
    let job = client.get(&path_of(id)).await?;
    if matches!(job["state"].as_str(), Some("failed" | "cancelled")) {
        let why = text(&job["error"]["message"]);
        return Err(CliError::NoResult { id: id.to_owned(), state: text(&job["state"]), why });
    }
    save(client, &format!("{}/result", path_of(id)), output).await
}

/// Writes an answer to a file or to standard output, piece by piece.
pub(super) async fn save(client: &Client, path: &str, output: Option<&Path>) -> Result<(), CliError> {
    let mut pieces = client.read(path).await?;
    let mut file = match output {
        Some(name) => Some((name, File::create(name).map_err(|error| CliError::Write(name.to_owned(), error))?)),
        None => None,
    };
    while let Some(piece) = pieces.next().await? {
        match &mut file {
            Some((name, file)) => {
                file.write_all(&piece).map_err(|error| CliError::Write((*name).to_owned(), error))?;
            }
            None => terminal::out().write_all(&piece).map_err(CliError::Output)?,
        }
    }
    Ok(())
}

fn path_of(id: &str) -> String {
    format!("{JOBS}/{}", in_path(id))
}

fn state_and_why(job: &Value) -> String {
    match why(job) {
        Some(why) => format!("{}: {why}", text(&job["state"])),
        None => text(&job["state"]),
    }
}

/// The reason for which a job waits, or has no result.
fn why(job: &Value) -> Option<String> {
    let told = |value: &Value| value.as_str().map(str::to_owned);
    told(&job["queue"]["message"]).or_else(|| told(&job["error"]["message"]))
}

/// A path with the parameters that have a value.
pub(super) fn with_query(path: &str, query: &[(&str, Option<String>)]) -> String {
    let given = query.iter().filter_map(|(name, value)| Some(format!("{name}={}", in_path(value.as_ref()?))));
    let given: Vec<String> = given.collect();
    if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) }
}

/// A span in one unit.
fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..=119 => format!("{whole}s"),
        120..=7_199 => format!("{}m", whole / 60),
        7_200..=172_799 => format!("{}h", whole / 3_600),
        _ => format!("{}d", whole / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_a_form_has_its_parts_and_files_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a\"b.wav");
        std::fs::write(&file, b"\x00\xffsound").unwrap();
        let form = form_of(&["model=w".to_owned(), format!("file=@{}", file.display())]).unwrap();
        let text = String::from_utf8_lossy(&form);
        assert!(text.contains("name=\"model\"\r\n\r\nw\r\n"), "{text}");
        assert!(text.contains("name=\"file\"; filename=\"a_b.wav\"\r\ncontent-type"), "{text}");
        assert!(text.ends_with(&format!("sound\r\n--{EDGE}--\r\n")), "{text}");
        assert!(matches!(form_of(&["nothing".to_owned()]), Err(CliError::NotAPart(_))));
        assert!(matches!(form_of(&["file=@/nonexistent".to_owned()]), Err(CliError::Unreadable(..))));
    }

    #[test]
    fn rc_26_a_job_is_shown_with_why_it_waits() {
        let job = json!({ "id": "job-1", "kind": "chat", "state": "queued",
            "queue": { "message": "loading m 5%", "position": 2, "jobs_before": null } });
        assert_eq!(shown(&job), "job-1 chat queued: loading m 5%\nits request has place 2 in the queue\n");
        assert_eq!(with_query("/a", &[("b", None), ("c", Some("d/e".to_owned()))]), format!("/a?c={}", in_path("d/e")));
        assert_eq!([span(5.0), span(300.0), span(9_000.0)], ["5s", "5m", "2h"]);
    }
}
