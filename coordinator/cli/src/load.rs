//! `model-boss load`: the order to load a model, with its progress until the model serves.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use model_boss_client::Client;
use model_boss_host::terminal;
use serde_json::{Value, json};
use tokio::signal::ctrl_c;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::error::CliError;
use super::files;
use super::orders::{LayerArgs, waiting};
use super::progress_line::{ProgressLine, ProgressUnit, ShownProgress};
use super::runtime::print;
use super::views::number_or_word;

/// The exit code after Ctrl-C.
const STOPPED: u8 = 130;
/// The interval between two looks at a load.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After Ctrl-C: how long the coordinator may take to see that nobody waits any more.
const SEEN_AFTER: Duration = Duration::from_millis(300);

/// `load MODEL`.
#[derive(Debug, Args)]
pub(super) struct LoadArgs {
    /// The model's name or alias.
    model: String,
    /// The device, in place of the manifest's: cpu, cuda:1, auto, …
    #[arg(long)]
    device: Option<String>,
    /// The context to serve, in tokens.
    #[arg(long, value_name = "TOKENS")]
    ctx_size: Option<u64>,
    #[command(flatten)]
    layers: LayerArgs,
    /// How long the model stays loaded without use: 5m, 1h; 0 unloads it when idle, -1 never.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    keep_alive: Option<String>,
    /// The priority: 0 to 9, or interactive, normal, batch.
    #[arg(long, default_value = "2")]
    priority: String,
    /// Do not wait until it serves.
    #[arg(long)]
    no_wait: bool,
}

/// Loads the model, with its progress. Ctrl-C ends the wait, and the command says whether the load goes on.
pub(super) async fn load(client: &Client, args: &LoadArgs) -> Result<ExitCode, CliError> {
    let mut line = ProgressLine::new();
    let done = tokio::select! {
        done = ordered(client, args) => Some(done),
        () = follow(client, &args.model, &mut line), if !args.no_wait => None,
        _ = ctrl_c() => None,
    };
    line.end().map_err(CliError::Output)?;
    let Some(done) = done else {
        terminal::say(&format!("model-boss: {}", after_stop(client, &args.model).await));
        return Ok(ExitCode::from(STOPPED));
    };
    print(&done?)?;
    Ok(ExitCode::SUCCESS)
}

/// Gives the order, and waits for its end unless that is not wanted.
pub(super) async fn ordered(client: &Client, args: &LoadArgs) -> Result<String, CliError> {
    if let Some(path) = files::meant(client, &args.model).await? {
        return Err(CliError::NotAName(path));
    }
    let done = client.post(&waiting("/api/v1/load", args.no_wait), &body(args)).await?;
    let name = done["model_name"].as_str().unwrap_or(&args.model);
    Ok(format!("{name} is {}\n", done["status"].as_str().unwrap_or("loaded")))
}

fn body(args: &LoadArgs) -> Value {
    let mut body = json!({ "model_name": args.model, "priority": number_or_word(&args.priority) });
    if let Some(device) = &args.device {
        body["device"] = device.as_str().into();
    }
    if let Some(tokens) = args.ctx_size {
        body["ctx_size"] = tokens.into();
    }
    args.layers.add_to(&mut body);
    if let Some(time) = &args.keep_alive {
        // Bare digits are seconds, as in the API.
        body["keep_alive"] = time.parse::<f64>().map_or_else(|_| Value::from(time.as_str()), Value::from);
    }
    body
}

/// The name of the model that has this name or alias.
async fn own_name(client: &Client, name: &str) -> String {
    let Ok(list) = client.get("/v1/models").await else { return name.to_owned() };
    let mut models = list["data"].as_array().into_iter().flatten();
    let has_alias = |model: &&Value| model["aliases"].as_array().into_iter().flatten().any(|alias| alias == name);
    let found = models.find(|model| model["kind"] == "model" && (model["id"] == name || has_alias(model)));
    found.and_then(|model| model["id"].as_str()).unwrap_or(name).to_owned()
}

/// Shows the progress until the caller has enough. Views that fail are tried again: the order itself tells errors.
async fn follow(client: &Client, name: &str, line: &mut ProgressLine) {
    let model = own_name(client, name).await;
    let mut pace = LoadPace::default();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let (slots, queue) = (client.get("/api/v1/slots").await, client.get("/api/v1/queue").await);
        if let (Ok(slots), Ok(queue)) = (slots, queue)
            && let Some(progress) = pace.progress(&model, &slots, &queue, Instant::now())
        {
            // Without standard error there is no reader.
            let _ = line.show(&progress);
        }
    }
}

/// The rate of a load, from the first look at its weights on.
#[derive(Default)]
struct LoadPace {
    began: Option<(Instant, u64)>,
}

impl LoadPace {
    /// The progress in the views of slots and queue.
    fn progress(&mut self, model: &str, slots: &Value, queue: &Value, at: Instant) -> Option<ShownProgress> {
        let of_model = |list: &Value| list.as_array()?.iter().find(|entry| entry["model"] == model).cloned();
        let step = |stage: String| ShownProgress {
            stage,
            file: String::new(),
            total: 0,
            completed: 0,
            rate: 0.0,
            trouble: None,
            at,
            unit: ProgressUnit::Bytes,
        };
        let loading = of_model(&slots["slots"]).filter(|slot| slot["state"] == "loading");
        let Some(slot) = loading else {
            self.began = None;
            let waits = of_model(&queue["queue"])?;
            return Some(step(format!("waiting: {}", waits["message"].as_str().unwrap_or("for its turn"))));
        };
        let bytes = |part: &Value| part[1].as_u64().unwrap_or(0);
        let total: u64 = slot["parts"].as_array().into_iter().flatten().map(bytes).sum();
        let stage = match slot["phase"].as_str() {
            Some("awaiting_lease") => return Some(step("waiting: its memory is being leased".to_owned())),
            Some("spawning") => return Some(step("starting its worker".to_owned())),
            _ => format!("loading {model}{}", layers(&slot)),
        };
        let share = slot["progress"].as_f64().unwrap_or(0.0).clamp(0.0, 1.0);
        let completed = (total as f64 * share) as u64;
        let (began, first) = *self.began.get_or_insert((at, completed));
        let seconds = at.saturating_duration_since(began).as_secs_f64();
        let rate = if seconds > 0.0 { completed.saturating_sub(first) as f64 / seconds } else { 0.0 };
        Some(ShownProgress { total, completed, rate, ..step(stage) })
    }
}

/// The layers of a streamed model; those of others all stay.
fn layers(slot: &Value) -> String {
    let number = |field: &str| slot["layers"][field].as_u64().unwrap_or(0);
    match (slot["streamed"] == true, number("streamed_layers")) {
        (false, _) => String::new(),
        (true, 0) => ", streamed".to_owned(),
        (true, streamed) => format!(", {streamed} of {} layers streamed", streamed + number("resident_layers")),
    }
}

/// The state of the load after nobody waits for it any more, in words.
async fn after_stop(client: &Client, name: &str) -> String {
    sleep(SEEN_AFTER).await;
    let model = own_name(client, name).await;
    let slots = match client.get("/api/v1/slots").await {
        Ok(slots) => slots,
        Err(error) => return format!("stopped; whether the load goes on is not known: {error}"),
    };
    let slot = slots["slots"].as_array().into_iter().flatten().find(|slot| slot["model"] == model);
    match slot.and_then(|slot| slot["state"].as_str()) {
        Some("loading") => format!("stopped waiting; the load goes on, and `model-boss unload {model}` ends it"),
        Some("ready") => format!("stopped waiting; {model} is loaded"),
        _ => format!("stopped; {model} had not begun to load, and its order is gone"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(state: &str, phase: &str, progress: f64) -> Value {
        json!({ "slots": [
            { "model": "other", "state": "ready" },
            { "model": "m", "state": state, "phase": phase, "progress": progress, "parts": [["cpu", 3_u64 << 20], ["cuda:0", 1 << 20]] },
        ] })
    }

    #[test]
    fn op_1_a_load_shows_its_bytes_its_rate_and_the_reason_of_a_wait() {
        let (none, begin, mut pace) = (json!({ "queue": [], "slots": [] }), Instant::now(), LoadPace::default());
        let mut look = |slots: &Value, queue: &Value, seconds: u64| {
            let at = begin.checked_add(Duration::from_secs(seconds)).unwrap();
            pace.progress("m", slots, queue, at)
        };
        assert!(look(&none, &none, 0).is_none());
        let waits = json!({ "queue": [{ "model": "m", "message": "m waits for memory on cpu" }] });
        assert_eq!(look(&none, &waits, 0).unwrap().stage, "waiting: m waits for memory on cpu");
        assert_eq!(look(&slot("loading", "spawning", 0.0), &none, 1).unwrap().stage, "starting its worker");
        assert_eq!(look(&slot("loading", "weights", 0.0), &none, 2).unwrap().total, 4 << 20);
        let half = look(&slot("loading", "weights", 0.5), &none, 4).unwrap();
        assert_eq!((half.completed, half.rate, half.stage.as_str()), (2 << 20, f64::from(1 << 20), "loading m"));
        assert!(look(&slot("ready", "serving", 1.0), &none, 5).is_none());
    }

    #[test]
    fn op_1_layers_that_are_streamed_are_told() {
        let stats = json!({ "streamed": true, "layers": { "streamed_layers": 3, "resident_layers": 5 } });
        assert_eq!(layers(&stats), ", 3 of 8 layers streamed");
        assert_eq!(layers(&json!({ "streamed": true, "layers": null })), ", streamed");
        assert_eq!(layers(&json!({ "streamed": false })), "");
    }
}
