//! `pull`: downloads a model of a hub into the cache of Hugging Face's tools, and writes its manifest. A coordinator
//! that runs does it, since it knows the model at once; without one this process does.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use model_boss_catalog::{Catalog, ManifestFolders, write_manifest};
use model_boss_client::{Client, ClientError, StreamLine, error_in};
use model_boss_config::Config;
use model_boss_host::terminal;
use model_boss_hub::{Hub, HubName, HubSettings, PullProgress};
use model_boss_protocol::ByteCount;
use serde_json::{Value, json};
use tokio::signal::ctrl_c;

use super::error::CliError;
use super::flags::SettingFlags;
use super::progress_line::{ProgressLine, ProgressUnit, ShownProgress};
use super::runtime::{print, small_runtime};

/// The exit code after Ctrl-C.
const STOPPED: u8 = 130;
/// The interval between two looks at a pull in this process.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The model to pull.
#[derive(Clone, Debug, Args)]
pub(super) struct PullArgs {
    /// A model's name in the manifests, ORG/NAME, ORG/NAME:Q4_K_M, or hf://ORG/NAME[@REVISION][/FILE.gguf].
    model: String,
    /// The model's name in the new manifest, in place of ORG/NAME:QUANT. The pull then runs in this process.
    #[arg(long, conflicts_with = "no_manifest")]
    name: Option<String>,
    /// Write no manifest.
    #[arg(long)]
    no_manifest: bool,
    /// Download in this process, into this user's cache, also if a coordinator runs.
    #[arg(long)]
    here: bool,
    /// The most connections, in place of `pull_connections`.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=64))]
    connections: Option<u8>,
}

/// Pulls a model. Ctrl-C leaves what came for the next pull.
pub(super) fn pull(client: &Client, args: &PullArgs) -> Result<ExitCode, CliError> {
    let runtime = small_runtime()?;
    let config = SettingFlags::default().sources().load()?.config;
    let is_here = args.here || args.name.is_some() || args.connections.is_some();
    if !is_here {
        match runtime.block_on(by_coordinator(client, args)) {
            Err(CliError::Client(ClientError::NoCoordinator(..))) if client.is_on_this_machine() => {}
            done => return done,
        }
    }
    runtime.block_on(in_this_process(args, &config))
}

/// Has the coordinator pull, and shows its progress.
async fn by_coordinator(client: &Client, args: &PullArgs) -> Result<ExitCode, CliError> {
    let body = json!({ "model": args.model, "stream": true, "manifest": !args.no_manifest });
    let mut line = ProgressLine::new();
    let pulled = async {
        let mut events = client.stream("/api/v1/pull", &body).await?;
        let mut last = Value::Null;
        while let Some(event) = events.next().await? {
            let StreamLine::Data(text) = event else { continue };
            last = serde_json::from_str(&text).map_err(CliError::Json)?;
            if let Some(error) = error_in(&last) {
                return Err(CliError::from(error));
            }
            line.show(&of_view(&last)).map_err(CliError::Output)?;
        }
        if last["status"] == "pulled" { Ok(last) } else { Err(CliError::CutOff) }
    };
    let done = tokio::select! {
        done = pulled => done.map(Some),
        _ = ctrl_c() => Ok(None),
    };
    line.end().map_err(CliError::Output)?;
    let Some(view) = done? else {
        terminal::say("model-boss: the pull was stopped; what came is kept, and the next pull goes on there");
        return Ok(ExitCode::from(STOPPED));
    };
    let bytes = |field: &str| ByteCount(view[field].as_u64().unwrap_or(0));
    let gains = (bytes("total"), bytes("downloaded"), bytes("linked"));
    let name = view["model_name"].as_str().map_or_else(|| args.model.clone(), str::to_owned);
    print(&done_text(&name, gains, view["path"].as_str().unwrap_or_default(), None))?;
    Ok(ExitCode::SUCCESS)
}

/// Pulls in this process.
async fn in_this_process(args: &PullArgs, config: &Config) -> Result<ExitCode, CliError> {
    let (name, known) = meant(&args.model, &ManifestFolders::of(config))?;
    let connections = args.connections.map_or(config.pull_connections, usize::from);
    let hub = Hub::new(HubSettings { connections, ..HubSettings::of_environment() });
    let running = hub.start(name.clone())?;
    let (mut progress, cancel) = (running.progress(), running.cancel());
    let mut line = ProgressLine::new();
    let done = running.done();
    tokio::pin!(done);
    let mut is_stopped = false;
    let pulled = loop {
        tokio::select! {
            pulled = &mut done => break pulled,
            _ = ctrl_c(), if !is_stopped => {
                is_stopped = true;
                cancel.cancel();
            }
            () = tokio::time::sleep(LOOK_EVERY) => {
                let now = progress.borrow_and_update().clone();
                line.show(&of_progress(&now)).map_err(CliError::Output)?;
            }
        }
    };
    line.end().map_err(CliError::Output)?;
    let pulled = match pulled {
        Err(error) if is_stopped => {
            terminal::say(&format!("model-boss: {error}"));
            return Ok(ExitCode::from(STOPPED));
        }
        pulled => pulled?,
    };
    let written = match &known {
        None if !args.no_manifest => {
            Some(write_manifest(&config.manifests_folder(), &name, args.name.as_deref(), &pulled.source)?)
        }
        _ => None,
    };
    let shown = written.as_ref().map(|written| &written.name).or(known.as_ref()).unwrap_or(&args.model);
    let gains = (pulled.bytes, pulled.downloaded, pulled.linked);
    let manifest = written.as_ref().filter(|written| written.is_new).map(|written| written.file.as_path());
    print(&done_text(shown, gains, &pulled.path.display().to_string(), manifest))?;
    Ok(ExitCode::SUCCESS)
}

/// The model of a name: that of a manifest, with the manifest's name, else one of a hub.
fn meant(text: &str, folders: &ManifestFolders) -> Result<(HubName, Option<String>), CliError> {
    let catalog = Catalog::read(folders.clone());
    if let Some(model) = catalog.find(text) {
        let name = model.hub_name().ok_or_else(|| CliError::NotOfHub(text.to_owned(), model.source.clone()))?;
        return Ok((name, Some(model.manifest.name.clone())));
    }
    let name = text.parse().map_err(|error| CliError::NoSuchPull(folders.own.clone(), error))?;
    Ok((name, None))
}

fn done_text(name: &str, gains: (ByteCount, ByteCount, ByteCount), path: &str, manifest: Option<&Path>) -> String {
    let (bytes, downloaded, linked) = gains;
    let mut text = format!("{name}: {bytes}, {downloaded} of them downloaded now");
    if linked > ByteCount::ZERO {
        text += &format!(", {linked} found in another program's store");
    }
    text += &format!("\n{path}\n");
    if let Some(manifest) = manifest {
        text += &format!("{} written\n", manifest.display());
    }
    text
}

fn of_progress(progress: &PullProgress) -> ShownProgress {
    ShownProgress {
        stage: progress.stage.as_str().to_owned(),
        file: progress.file.clone(),
        total: progress.total,
        completed: progress.completed,
        // Only this stage has a rate that tells the time left.
        rate: if progress.stage.as_str() == "downloading" { progress.rate } else { 0.0 },
        trouble: progress.trouble.clone(),
        at: Instant::now(),
        unit: ProgressUnit::Bytes,
    }
}

/// The progress in a coordinator's event.
fn of_view(view: &Value) -> ShownProgress {
    let text = |field: &str| view[field].as_str().unwrap_or_default().to_owned();
    let number = |field: &str| view[field].as_u64().unwrap_or(0);
    ShownProgress {
        stage: text("status"),
        file: text("file"),
        total: number("total"),
        completed: number("completed"),
        rate: if view["status"] == "downloading" { number("bytes_per_second") as f64 } else { 0.0 },
        trouble: view["trouble"].as_str().map(str::to_owned),
        at: Instant::now(),
        unit: ProgressUnit::Bytes,
    }
}
