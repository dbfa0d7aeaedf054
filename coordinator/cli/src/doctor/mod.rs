//! `model-boss doctor`: looks for faults of this machine and of its settings, and says what to do. Probes read facts,
//! checks judge them, and neither changes anything: no model is loaded, and no file is written.

mod checks;
mod finding;
mod probes;
mod report;

use std::process::ExitCode;

use clap::Args;
use model_boss_client::Client;
use model_boss_config::{Config, DEFAULT_FILE, Loaded};
use model_boss_host::driver::DriverFacts;
use model_boss_host::sandbox::WorkerConfinement;
use model_boss_lease_store::RedisFacts;
use model_boss_protocol::{DeviceId, SandboxMode, chain};
use model_boss_settings::known_in;
use serde_json::Value;

use self::checks::configuration::ConfigurationFacts;
use self::checks::leases::LeaseStoreFacts;
use self::checks::sandbox::SandboxFacts;
use self::finding::{Finding, Grade};
use self::probes::clock::ClockPair;
use super::error::CliError;
use super::flags::SettingFlags;
use super::tables::pretty;
use crate::runtime::{print, small_runtime};
use model_boss_host::terminal;

/// The address of commands where none is given.
const USUAL_URL: &str = "http://127.0.0.1:8210";

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: SettingFlags,
}

/// The settings that a coordinator started here would have, as far as they are valid, and their faults.
pub(super) struct ReadSettings {
    pub(super) loaded: Loaded,
    pub(super) problems: Vec<String>,
    pub(super) file: Option<std::path::PathBuf>,
}

impl ReadSettings {
    /// Reads them from all sources.
    pub(super) fn new(flags: &SettingFlags) -> Self {
        let sources = flags.clone().sources();
        let usual = std::path::PathBuf::from(DEFAULT_FILE);
        let file = sources.file.clone().or_else(|| Some(usual).filter(|file| file.is_file()));
        let (loaded, problems) = sources.load_what_is_valid();
        Self { loaded, problems, file }
    }

    /// The client for the address that was given, else for the port of these settings.
    pub(super) fn client(&self, url: &str) -> Result<Client, CliError> {
        let config = &self.loaded.config;
        let (scheme, port) = (if config.tls_cert.is_some() { "https" } else { "http" }, config.port);
        let own = format!("{scheme}://127.0.0.1:{port}");
        let is_given = url.trim_end_matches('/') != USUAL_URL || port == 0;
        Ok(Client::of_environment(if is_given { url } else { &own })?)
    }
}

/// Runs all checks and prints their findings. Exit code 1 where one of them failed.
pub(super) fn doctor(url: &str, args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let settings = ReadSettings::new(&args.flags);
    let client = settings.client(url)?;
    let findings = small_runtime()?.block_on(examine(&client, &settings));
    if args.json {
        print(&pretty(&report::as_json(&findings)))?;
    } else {
        report::write(&mut terminal::out(), &findings, terminal::out_is_terminal()).map_err(CliError::Output)?;
    }
    Ok(if report::worst(&findings) == Grade::Failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The findings as text and as JSON, for a bundle.
pub(super) async fn examined(client: &Client, settings: &ReadSettings) -> (String, Value) {
    let findings = examine(client, settings).await;
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = report::write(&mut terminal::Terminal::new(&mut text), &findings, false);
    (String::from_utf8_lossy(&text).into_owned(), report::as_json(&findings))
}

/// Runs all checks, in the order of their areas.
async fn examine(client: &Client, settings: &ReadSettings) -> Vec<Finding> {
    let began = ClockPair::now();
    let (config, container, wsl) =
        (&settings.loaded.config, probes::surroundings::container(), probes::surroundings::wsl());
    let (models, need_llama_server) = probes::models::models(config);
    let programs = probes::programs::programs(config, need_llama_server).await;
    let about = programs.worker.as_ref().and_then(|look| look.said.as_ref().ok());
    let gpu = probes::gpu::gpu(about.map(|about| about.cuda), wsl.is_some(), container.clone());
    let has_gpu = matches!(&gpu.driver, DriverFacts::Works { gpus, .. } if !gpus.is_empty());
    let sandbox = SandboxFacts {
        mode: config.sandbox,
        kernel: WorkerConfinement::of_workers(SandboxMode::Auto).on(&DeviceId::Cpu),
        worker: about.map(|about| about.sandbox.clone()),
        has_gpu,
        container: container.clone(),
    };
    let leases = lease_store(config);
    let areas = [
        checks::configuration::judge(&configuration(settings)),
        checks::door::judge(&probes::door::door(client, config).await),
        checks::programs::judge(&programs),
        checks::gpu::judge(&gpu),
        checks::processor::judge(&probes::processor::processor(config, about)),
        checks::memory::judge(&probes::memory::memory(config, has_gpu)),
        checks::limits::judge(&probes::memory::limits(config)),
        checks::clock::judge(&probes::clock::clock(&began, container.is_some())),
        checks::leases::judge(&leases),
        checks::state::judge(&probes::folders::folder(&config.own_state_dir())),
        checks::secrets::judge(&probes::secrets::secrets(config, settings.file.as_deref())),
        checks::models::judge(&models),
        checks::hub::judge(&probes::hub::hub(config)),
        checks::sandbox::judge(&sandbox),
        checks::surroundings::judge(&probes::surroundings::surroundings(config, has_gpu)),
    ];
    areas.into_iter().flatten().collect()
}

fn configuration(settings: &ReadSettings) -> ConfigurationFacts {
    let config = &settings.loaded.config;
    ConfigurationFacts {
        file: settings.file.clone(),
        problems: settings.problems.clone(),
        set: settings.loaded.origins().len(),
        stored: known_in(&config.own_state_dir()).unwrap_or_default(),
        open_to: config.host.open_to_others().map(|address| address.to_string()),
        has_keys: matches!(config.keys(), Ok(Some(_))),
        has_tls: config.tls_cert.is_some(),
        is_simulated: config.simulate.is_some(),
    }
}

fn lease_store(config: &Config) -> LeaseStoreFacts {
    let Some(url) = &config.redis_url else { return LeaseStoreFacts::Embedded };
    let facts = RedisFacts::ask(url.secret()).map_err(|error| chain(&error));
    let facts = facts.map(|facts| {
        let now = model_boss_host::clocks::unix_time();
        let apart = (now - facts.time_us as f64 / 1e6).abs();
        (facts, std::time::Duration::try_from_secs_f64(apart).unwrap_or_default())
    });
    LeaseStoreFacts::Redis { server: url.server(), facts }
}
