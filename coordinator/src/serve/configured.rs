//! Translates the configuration for its users: the scheduler, the catalog, the supervisor, the probes.

use std::sync::Arc;

use model_boss_catalog::{Engines, find_llama_server};
use model_boss_config::Config;
use model_boss_core::Settings;
use model_boss_host::environment::ChildEnvironment;
use model_boss_host::probe::{
    DeclaredProbe, HostProbe, NvidiaProbe, Probe, SimulatedMachine, SimulationError, SpareMemory,
};
use model_boss_host::programs::{ProgramError, Programs};
use model_boss_host::state_folder::StateFolder;
use model_boss_protocol::{Backend, ByteCount, Category};
use model_boss_settings::Configured;

use crate::supervisor::SupervisorSettings;

/// The settings that apply where no value is stored at run time.
pub(super) fn configured(config: &Config) -> Configured {
    Configured {
        settings: settings(config),
        allow_cloud_fallback: config.allow_cloud_fallback,
        model_idle: config.model_idle_secs.map(|idle| idle.0),
        log_level: config.log.level,
    }
}

fn settings(config: &Config) -> Settings {
    let stay_warm = Category::ALL.into_iter().map(|category| (category, config.stay_warm(category))).collect();
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Settings {
        max_queued_per_model: config.limits.queue_per_model,
        max_queued: config.limits.queue_total,
        path_models_kept: config.limits.path_models,
        path_model_idle: config.limits.path_model_idle,
        aging_step: config.aging_step,
        min_hold: config.min_hold,
        max_wait: config.max_wait,
        reevaluate_every: config.reevaluate_every,
        ledger_patience: config.leases.patience,
        max_retries: small(config.max_retries),
        max_load_attempts: small(config.max_load_attempts),
        back_off_first: config.back_off_first,
        back_off_limit: config.back_off_limit,
        lost_pause: config.lost_pause,
        share_cores: config.share_cores,
        peak_patience: config.peak_patience,
        device_patience: config.device_patience,
        max_loaded: config.max_loaded_models.clone(),
        load_failure_policy: config.load_failure_policy,
        clients: config.clients.clone(),
        embedding_providers: config.providers.embedding(),
        service_step: config.service_step as u64,
        max_keep_alive: config.max_keep_alive,
        stay_warm,
        ..Settings::default()
    }
}

/// The engines that can run models besides the candle worker (RC-16).
pub(super) fn engines(config: &Config, all_fake: bool) -> Engines {
    Engines {
        all_fake,
        llama_server: config.llama_server.clone().or_else(find_llama_server),
        tables: config.backends.clone(),
        build: config.llamacpp.clone(),
        args: config.llamacpp_args.clone(),
        context: config.ctx_size,
        devices: config.devices.clone(),
    }
}

/// The probes of the machine's devices, and why there are no NVIDIA GPUs among them.
pub(super) fn probes(
    config: &Config,
    machine: Option<&Arc<SimulatedMachine>>,
    spare: &SpareMemory,
) -> (Vec<Box<dyn Probe>>, Option<String>) {
    let (mut probes, no_gpu) = match machine {
        Some(machine) => (vec![machine.probe()], None),
        None => real_probes(config, spare),
    };
    probes.push(Box::new(DeclaredProbe::new(config.devices.clone())));
    (probes, no_gpu)
}

fn real_probes(config: &Config, spare: &SpareMemory) -> (Vec<Box<dyn Probe>>, Option<String>) {
    let host = HostProbe::new(cache(config), config.host_memory).beside(spare.clone());
    let mut probes: Vec<Box<dyn Probe>> = vec![Box::new(host)];
    let (nvidia, why_none) = NvidiaProbe::start();
    probes.extend(nvidia.map(|nvidia| Box::new(nvidia) as Box<dyn Probe>));
    (probes, why_none.map(|why| why.to_string()))
}

/// The machine that is simulated, if one is.
pub(super) fn simulated(config: &Config) -> Result<Option<Arc<SimulatedMachine>>, SimulationError> {
    config.simulate.as_deref().map(|file| SimulatedMachine::read(file, cache(config))).transpose()
}

/// The configuration of a simulated machine. Its ledger, learned sizes and locks are separate from those of the real
/// machine, so that both can run side by side.
pub(super) fn beside_the_real_one(config: Config) -> Config {
    let state_dir = config.own_state_dir();
    // A state folder of its own does not separate the locks: both coordinators use the real devices.
    let runtime_dir = config.runtime_dir.map_or_else(|| state_dir.join("run"), |folder| folder.join("simulation"));
    Config { runtime_dir: Some(runtime_dir), state_dir, ..config }
}

/// The retention budget of `cpu`, from `MODEL_BOSS_MODEL_CACHE_MB`.
fn cache(config: &Config) -> Option<ByteCount> {
    config.model_cache_mb.map(|mb| ByteCount(mb.saturating_mul(1 << 20)))
}

/// The supervisor's settings. The call fails if the program that runs every model is missing.
pub(super) fn supervisor_settings(config: &Config, state: &StateFolder) -> Result<SupervisorSettings, ProgramError> {
    let programs = Programs::find(config.worker_binary.as_deref())?;
    programs.of(if config.simulate.is_some() { Backend::Fake } else { Backend::Candle })?;
    Ok(SupervisorSettings {
        programs,
        state: state.clone(),
        load_timeout: config.load_timeout,
        stop_grace: config.stop_grace,
        hang_timeout: config.hang_timeout,
        environment: ChildEnvironment::of_models(&config.inherit_env),
        text: config.text.limits(),
        cpu_features: config.cpu_features,
        sandbox: config.sandbox,
    })
}
