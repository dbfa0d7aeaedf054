//! `model-boss serve`: the steps from a configuration to a running coordinator, and back.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use model_boss_core::{Moment, Scheduler, Settings};
use model_boss_protocol::{Backend, ByteCount, Category};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{self, AllowedHosts, Changes, Clock, Context, Door, Patience, Server, ServerLimits};
use crate::catalog::{Engines, LiveCatalog, ModelRoots, find_llama_server};
use crate::cloud::{Clouds, SPEND_FILE};
use crate::config::{ApiKeys, ApiKeysError, Config, Loaded};
use crate::descriptors::{self, Shares};
use crate::driver::{Driver, Waiting};
use crate::environment::ChildEnvironment;
use crate::footprints::Footprints;
use crate::hangup::{self, Hangup};
use crate::leases::{LeaseSetup, LeaseStart, LeaseStartError, Leases, StoreChoice};
use crate::log_filter::LogFilter;
use crate::memory::MemoryBudget;
use crate::metrics::Metrics;
use crate::owner::OwnerKey;
use crate::probe::{DeclaredProbe, HostProbe, NvidiaProbe, Probe, SimulatedMachine, SimulationError};
use crate::process::Spawner;
use crate::runtime_config::RuntimeConfig;
use crate::scheduling::{News, Pulse, Scheduling};
use crate::settings::{Configured, LiveSettings};
use crate::startup::Startup;
use crate::state_folder::StateFolder;
use crate::supervisor::{LOGS, Ports, ProgramError, Programs, Streams, Supervisor, SupervisorSettings, Tools};
use crate::tasks::{LiveTasks, UnusableTasks};

/// Where earlier versions kept their state unless they were told otherwise: in the folder that they were started from.
const EARLIER_STATE: &str = "state";
/// After drain_grace the workers are killed, and their requests get this long to hear of it.
const CUT_LIMIT: Duration = Duration::from_secs(1);

/// With fewer file descriptors than this, it is said how many clients are served.
const FEW_DESCRIPTORS: usize = 1_024;

/// The coordinator cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// Everybody on the network could use the machine.
    #[error("{0} is not a loopback address: set api_keys to a file with one key per line before others can connect")]
    OpenToAll(IpAddr),
    /// The keys.
    #[error("the API keys cannot be used")]
    Keys(#[from] ApiKeysError),
    /// The rules of clients.
    #[error("the tasks and the rules of clients cannot be used")]
    Tasks(#[from] UnusableTasks),
    /// No worker program.
    #[error("models cannot be run")]
    Program(#[from] ProgramError),
    /// The machine to play.
    #[error("the machine to play cannot be used")]
    Simulation(#[from] SimulationError),
    /// Something else lies in the place of a file of the state folder.
    #[error("{0} cannot be used")]
    StateFile(PathBuf, #[source] io::Error),
    /// The address.
    #[error("cannot listen on {0}; is another coordinator running? --port takes another port")]
    Bind(SocketAddr, #[source] io::Error),
    /// The ledger.
    #[error("the lease ledger cannot be used")]
    Leases(#[from] LeaseStartError),
    /// Threads, signals.
    #[error("cannot set up {0}")]
    System(&'static str, #[source] io::Error),
    /// The driver or the ledger's thread: without either nothing can go on.
    #[error("a part of the coordinator that must not end has ended; its log says why")]
    Broken,
    /// Buckets of histograms: cannot happen with those in this program.
    #[error("cannot set up metrics")]
    Metrics(#[from] prometheus::Error),
}

/// Runs the coordinator until it is asked to end.
pub(crate) async fn serve(loaded: Loaded, log: LogFilter) -> Result<ExitCode, ServeError> {
    let decided = loaded.origins();
    let mut config = loaded.config;
    let machine = config.simulate.as_deref().map(|file| SimulatedMachine::read(file, cache(&config))).transpose()?;
    if machine.is_some() {
        config = beside_the_real_one(config);
    }
    let state = StateFolder::new(&config.state_dir);
    state.look();
    state.check(&[SPEND_FILE]).map_err(|(path, why)| ServeError::StateFile(path, why))?;
    let keys = keys(&config)?;
    let (news, inbox) = News::channel();
    let prefixes = config.providers.prefixes();
    let metrics = Arc::new(Metrics::new(prefixes.names())?);
    let configured = configured(&config);
    let scheduler = Scheduler::new(configured.settings.clone(), Moment::START);
    let settings = Arc::new(LiveSettings::new(configured, log.clone(), news.clone()));
    let named = decided.contains_key("tasks");
    let tasks = Arc::new(LiveTasks::read(&config.tasks, named, prefixes, Arc::clone(&settings))?);
    let descriptors = descriptors::raise();
    let mut asked = Asked::new()?;
    let listeners = bind(&config).await?;
    let roots = ModelRoots::new(&[config.model_roots.as_slice(), std::slice::from_ref(&config.manifests)].concat());
    let engines = engines(&config, machine.is_some());
    let live = Arc::new(LiveCatalog::read(&config.manifests, roots, engines, news.clone(), Arc::clone(&metrics)));
    let catalog = live.current();
    let (mut probes, no_gpu) = match &machine {
        Some(machine) => (vec![machine.probe()], None),
        None => probes(&config),
    };
    probes.push(Box::new(DeclaredProbe::new(config.devices.clone())));
    let LeaseStart { leases, devices, store, ended } = Leases::start(LeaseSetup {
        store: StoreChoice::of(&config),
        runtime_dir: config.runtime_dir.clone(),
        terms: config.leases.terms(),
        foreign: config.leases.foreign,
        return_patience: config.leases.return_patience,
        probes,
        news: news.clone(),
    })
    .await?;
    let footprints = Footprints::start(leases.clone(), news.clone()).await;
    let (scheduling, clock) = (Scheduling::new(news.clone()), Clock::start());
    let (pulse, changes) = (Arc::new(Pulse::default()), Arc::new(Changes::new()));
    let (drained, draining) = (CancellationToken::new(), CancellationToken::new());
    let streams = Streams::default();
    let runtime =
        RuntimeConfig::open(leases.clone(), settings, &decided, &state, &StoreChoice::of(&config).describe()).await;
    let driver = Driver {
        scheduler,
        scheduling: scheduling.clone(),
        catalog: Arc::clone(&live),
        supervisor: supervisor(&config, Arc::clone(&live), leases.clone(), news, machine, (streams.clone(), &state))?,
        leases: leases.clone(),
        devices: devices.clone(),
        footprints,
        metrics: Arc::clone(&metrics),
        drained: drained.clone(),
        pulse: Arc::clone(&pulse),
        waiting: Waiting::default(),
    };
    let mut driver = tokio::spawn(driver.run(inbox));
    tokio::spawn(state.clone().watch());
    tokio::spawn(Arc::clone(&live).follow());
    tokio::spawn(Arc::clone(&tasks).follow());
    tokio::spawn(Arc::clone(&runtime).follow());
    tokio::spawn(Arc::clone(&changes).follow(scheduling.clone(), pulse, clock));

    let addresses: Vec<SocketAddr> = listeners
        .iter()
        .map(|listener| listener.local_addr().map_err(|error| ServeError::System("the listening socket", error)))
        .collect::<Result<_, _>>()?;
    let port = addresses.first().map_or(config.port, SocketAddr::port);
    let owner = OwnerKey::create(&state, port)
        .inspect_err(|error| tracing::warn!("`run PATH` is held to model_roots, no key could be drawn: {error}"))
        .ok();
    let context = Arc::new(Context {
        scheduling: scheduling.clone(),
        catalog: Arc::clone(&live),
        clouds: Arc::new(Clouds::new(&config.providers, &state)),
        tasks: Arc::clone(&tasks),
        config: runtime,
        leases,
        devices: devices.clone(),
        store: store.clone(),
        streams,
        metrics,
        hosts: AllowedHosts::new(&config.allowed_hosts, &config.allowed_origins, &config.host),
        keys,
        owner,
        limits: config.limits.clone(),
        memory: MemoryBudget::new(config.limits.request_memory),
        sse: config.sse.clone(),
        logs: state.file(LOGS),
        state,
        log,
        draining: draining.clone(),
        started: Instant::now(),
        clock,
        changes,
        id_prefix: id_prefix(),
    });
    let limits = ServerLimits {
        patience: Patience { head: config.limits.header_timeout, idle: config.limits.idle_timeout },
        header_size: usize::try_from(config.limits.header_size.0).unwrap_or(usize::MAX),
        connections: descriptors.connections,
        refusals: descriptors.refusals,
    };
    let server = Server::new(listeners, Door::new(Arc::clone(&context), api::router(context)), limits);
    if descriptors.limit < FEW_DESCRIPTORS {
        let Shares { limit, connections, .. } = descriptors;
        tracing::warn!(
            "this process may have {limit} file descriptors: {connections} clients are served at once (ulimit -n)"
        );
    }
    Startup {
        addresses: &addresses,
        catalog: &catalog,
        tasks: &tasks,
        devices: &devices.samples(),
        store: &store.status(),
        state_dir: &config.state_dir,
        earlier_state: (!decided.contains_key("state_dir")).then_some(Path::new(EARLIER_STATE)),
        no_gpu: no_gpu.as_deref(),
    }
    .print();

    let closed = CancellationToken::new();
    let server = tokio::spawn(server.run(closed.clone().cancelled_owned()));
    let end = async {
        asked.once().await;
        tracing::info!("draining: running requests may end, ask again to end at once");
        draining.cancel();
        drain(&scheduling, &drained, &mut asked, config.drain_grace).await
    };
    let code = tokio::select! {
        code = end => code,
        _ = &mut driver => return Err(ServeError::Broken),
        () = ended.cancelled() => return Err(ServeError::Broken),
    };
    closed.cancel();
    if code == ExitCode::SUCCESS {
        // A server task that panicked has nothing left to close.
        let _ = server.await;
    }
    Ok(code)
}

/// What runs may end within its grace; after that it is ended with an error. Asked again, all ends at once: workers die
/// with us, by their lifeline and by the death signal of the thread that started them.
async fn drain(scheduling: &Scheduling, drained: &CancellationToken, asked: &mut Asked, grace: Duration) -> ExitCode {
    scheduling.drain();
    tokio::select! {
        biased;
        () = asked.once() => return at_once(),
        () = drained.cancelled() => return ExitCode::SUCCESS,
        () = tokio::time::sleep(grace) => {}
    }
    tracing::warn!("requests did not end in drain_grace; ending them");
    scheduling.cut();
    tokio::select! {
        biased;
        () = asked.once() => at_once(),
        () = drained.cancelled() => ExitCode::SUCCESS,
        () = tokio::time::sleep(CUT_LIMIT) => ExitCode::SUCCESS,
    }
}

fn at_once() -> ExitCode {
    tracing::warn!("asked again: ending at once");
    ExitCode::from(130)
}

fn keys(config: &Config) -> Result<Option<ApiKeys>, ServeError> {
    let keys = config.api_keys.as_deref().map(ApiKeys::read).transpose()?;
    if let (None, Some(host)) = (&keys, config.host.open_to_others()) {
        return Err(ServeError::OpenToAll(host));
    }
    Ok(keys)
}

/// Every address with the same port.
async fn bind(config: &Config) -> Result<Vec<TcpListener>, ServeError> {
    // A port that the system chose for the first address may be taken at the next.
    const TRIES: usize = 8;
    for _ in 1..TRIES {
        match bind_once(config).await {
            Err(ServeError::Bind(_, error)) if config.port == 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
    bind_once(config).await
}

async fn bind_once(config: &Config) -> Result<Vec<TcpListener>, ServeError> {
    let (mut listeners, mut port) = (Vec::new(), config.port);
    for host in config.host.iter() {
        let address = SocketAddr::new(host, port);
        let failed = |error| ServeError::Bind(address, error);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        port = listener.local_addr().map_err(failed)?.port();
        listeners.push(listener);
    }
    Ok(listeners)
}

/// The eyes on the machine's devices, and why there are no NVIDIA GPUs among them.
fn probes(config: &Config) -> (Vec<Box<dyn Probe>>, Option<String>) {
    let mut probes: Vec<Box<dyn Probe>> = vec![Box::new(HostProbe::new(cache(config), config.host_memory))];
    let (nvidia, why_none) = NvidiaProbe::start();
    probes.extend(nvidia.map(|nvidia| Box::new(nvidia) as Box<dyn Probe>));
    (probes, why_none.map(|why| why.to_string()))
}

/// What can run models besides our own worker (RC-16).
fn engines(config: &Config, all_fake: bool) -> Engines {
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

/// What runs models. The program that runs every one of them must be there from the start.
fn programs(config: &Config) -> Result<Programs, ProgramError> {
    let programs = Programs::find(config.worker_binary.as_deref())?;
    programs.of(if config.simulate.is_some() { Backend::Fake } else { Backend::Candle })?;
    Ok(programs)
}

/// A played machine has a ledger, learned sizes and locks of its own, so that it says nothing about the real one and
/// both can run beside each other.
fn beside_the_real_one(config: Config) -> Config {
    let state_dir = config.own_state_dir();
    // Another folder for its state does not make it another machine.
    let runtime_dir = config.runtime_dir.map_or_else(|| state_dir.join("run"), |folder| folder.join("simulation"));
    Config { runtime_dir: Some(runtime_dir), state_dir, ..config }
}

/// `MODEL_BOSS_MODEL_CACHE_MB`.
fn cache(config: &Config) -> Option<ByteCount> {
    config.model_cache_mb.map(|mb| ByteCount(mb.saturating_mul(1 << 20)))
}

fn supervisor(
    config: &Config,
    catalog: Arc<LiveCatalog>,
    leases: Leases,
    news: News,
    machine: Option<Arc<SimulatedMachine>>,
    (streams, state): (Streams, &StateFolder),
) -> Result<Supervisor, ServeError> {
    let spawner =
        Spawner::start(Handle::current()).map_err(|error| ServeError::System("the spawning thread", error))?;
    let settings = SupervisorSettings {
        programs: programs(config)?,
        state: state.clone(),
        load_timeout: config.load_timeout,
        stop_grace: config.stop_grace,
        hang_timeout: config.hang_timeout,
        environment: ChildEnvironment::of_models(&config.inherit_env),
        text: config.text.limits(),
    };
    let ports = Ports::new(config.worker_ports.clone());
    Ok(Supervisor::new(Tools { settings, spawner, ports, catalog, leases, news, machine, streams }))
}

/// What holds where nothing is stored at run time.
fn configured(config: &Config) -> Configured {
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

/// Request ids of different runs differ.
fn id_prefix() -> String {
    let mut bits = [0; 4];
    // Ids are names, not secrets: without randomness the process number has to do.
    if getrandom::fill(&mut bits).is_err() {
        bits = std::process::id().to_ne_bytes();
    }
    format!("req-{:08x}", u32::from_ne_bytes(bits))
}

/// SIGINT, SIGTERM and SIGHUP, one after another.
struct Asked {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Hangup>,
}

impl Asked {
    fn new() -> Result<Self, ServeError> {
        let on = |kind| signal(kind).map_err(|error| ServeError::System("signal handlers", error));
        let hangup = hangup::listen().map_err(|error| ServeError::System("signal handlers", error))?;
        Ok(Self { interrupt: on(SignalKind::interrupt())?, terminate: on(SignalKind::terminate())?, hangup })
    }

    async fn once(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = hangup::next(&mut self.hangup) => {}
        }
    }
}
