//! `model-boss serve`: the four steps from a configuration to a coordinator that answers, and the steps of its end.

mod configured;
mod drain;
mod error;
mod https;
mod listen;
mod startup;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use model_boss_access::KeyFile;
use model_boss_catalog::{LiveCatalog, ManifestFolders, ModelRoots};
use model_boss_cli::ServeFailure;
use model_boss_cloud::{Clouds, SPEND_FILE};
use model_boss_config::{Config, Loaded};
use model_boss_core::{Moment, Scheduler};
use model_boss_host::descriptors::{self, Shares};
use model_boss_host::log_filter::LogFilter;
use model_boss_host::owner::OwnerKey;
use model_boss_host::probe::{SimulatedMachine, SpareMemory};
use model_boss_host::process::Spawner;
use model_boss_host::sandbox::WorkerConfinement;
use model_boss_host::state_folder::StateFolder;
use model_boss_http::accept::{Server, ServerLimits};
use model_boss_http::door::Door;
use model_boss_http::memory::MemoryBudget;
use model_boss_http::origin::AllowedHosts;
use model_boss_http::patience::Patience;
use model_boss_hub::{Hub, HubSettings};
use model_boss_protocol::{InstructionSet, chain};
use model_boss_settings::{DocumentStore, LiveSettings, RuntimeConfig};
use model_boss_traces::Traces;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::configured::{beside_the_real_one, configured, engines, probes, simulated, supervisor_settings};
use self::drain::{EndSignals, drain};
use self::error::ServeError;
use self::https::Https;
use self::listen::{bind, keys};
use self::startup::Startup;
use crate::api::{self, ChangeFeed, Clock, Context};
use crate::audit::AuditLog;
use crate::driver::{Driver, DriverQueue};
use crate::footprints::FootprintSink;
use crate::history::LiveHistory;
use crate::jobs::{Jobs, JobsSetup};
use crate::keys::LiveKeys;
use crate::leases::{LeaseSetup, LeaseStart, Leases, LedgerDocuments, StoreChoice};
use crate::listeners::{catalogs_to, settings_to};
use crate::metrics::Metrics;
use crate::parking::{ParkingDesk, ParkingSetup};
use crate::pulls::Pulls;
use crate::responses::ResponseStore;
use crate::scheduling::{Inbox, News, Pulse, Scheduling};
use crate::supervisor::{LOGS, Ports, Streams, Supervisor, Tools};
use crate::tasks::LiveTasks;

/// The state folder of earlier versions without a setting, relative to the folder in which they were started.
const EARLIER_STATE: &str = "state";
/// The number of file descriptors below which the log has a line with the number of clients that can be served.
const FEW_DESCRIPTORS: usize = 1_024;

/// The longest time for the last traces when the process ends.
const LAST_TRACES: Duration = Duration::from_secs(2);

/// Threads that serve sockets. A request alternates between the tasks of its connection and of the scheduler. On one
/// thread that costs a function call. Between two threads a sleeping one has to be woken each time, a third of the
/// latency added at one connection. Long work (large bodies, leases, probes, spawns) runs on threads of its own.
const IO_THREADS: usize = 1;

/// Runs the coordinator until a signal ends it, on a runtime of its own.
pub(crate) fn serve(loaded: Loaded, log: LogFilter) -> Result<ExitCode, ServeFailure> {
    let runtime = Builder::new_multi_thread().worker_threads(IO_THREADS).enable_all().build();
    let runtime = runtime.map_err(|error| ServeError::System("the runtime", error))?;
    let served = runtime.block_on(Box::pin(run(loaded, log)));
    // A thread that is blocked by a hanging disk must not delay the end.
    runtime.shutdown_background();
    Ok(served?)
}

async fn run(loaded: Loaded, log: LogFilter) -> Result<ExitCode, ServeError> {
    let prepared = PreparedServe::of(loaded).await?;
    let known = Known::read(&prepared, &log).await?;
    let started = Started::start(&prepared, known).await?;
    let state = prepared.state.clone();
    let answered = answer(prepared, started, log).await;
    // Tasks that still own files of the state folder end with the process, and write nothing more.
    let _ = spawn_blocking(move || state.finish()).await;
    answered
}

/// The first step: settings, files and addresses are checked before any of them is used.
struct PreparedServe {
    config: Config,
    /// The source of each setting.
    decided: BTreeMap<String, String>,
    /// The machine to simulate in place of the real one.
    machine: Option<Arc<SimulatedMachine>>,
    state: StateFolder,
    keys: Option<KeyFile>,
    https: Option<Https>,
    traces: Traces,
    signals: EndSignals,
    /// The bound sockets, moved out by the last step.
    listeners: Vec<TcpListener>,
    descriptors: Shares,
}

impl PreparedServe {
    async fn of(loaded: Loaded) -> Result<Self, ServeError> {
        let decided = loaded.origins();
        let mut config = loaded.config;
        let machine = simulated(&config)?;
        if machine.is_some() {
            config = beside_the_real_one(config);
        }
        let state = StateFolder::new(&config.state_dir);
        state.look();
        state.check(&[SPEND_FILE]).map_err(|(path, why)| ServeError::StateFile(path, why))?;
        let keys = keys(&config)?;
        let https = Https::of(&config)?;
        let traces = Traces::start(config.otlp_endpoint.as_deref(), env!("CARGO_PKG_VERSION"))?;
        let descriptors = descriptors::raise();
        let signals = EndSignals::new()?;
        let listeners = bind(&config).await?;
        Ok(Self { config, decided, machine, state, keys, https, traces, signals, listeners, descriptors })
    }
}

/// The second step: tasks, models, devices and ledger are read, and reported to the scheduler's inbox.
struct Known {
    news: News,
    inbox: Inbox,
    scheduler: Scheduler,
    metrics: Arc<Metrics>,
    settings: Arc<LiveSettings>,
    tasks: Arc<LiveTasks>,
    catalog: Arc<LiveCatalog>,
    ledger: LeaseStart,
    /// The reason why there are no NVIDIA GPUs.
    no_gpu: Option<String>,
    /// The host's memory for things that give way to models.
    spare: SpareMemory,
}

impl Known {
    async fn read(prepared: &PreparedServe, log: &LogFilter) -> Result<Self, ServeError> {
        let config = &prepared.config;
        let (news, inbox) = News::channel();
        let prefixes = config.providers.prefixes();
        let metrics = Arc::new(Metrics::new(prefixes.names(), config.metrics_models)?);
        let configured = configured(config);
        let scheduler = Scheduler::new(configured.settings.clone(), Moment::START);
        let settings = Arc::new(LiveSettings::new(configured, log.clone(), settings_to(&news)));
        let named = prepared.decided.contains_key("tasks");
        let tasks = Arc::new(LiveTasks::read(&config.tasks, named, prefixes, Arc::clone(&settings))?);
        let folders = manifest_folders(config);
        let roots = ModelRoots::new(&[config.model_roots.as_slice(), std::slice::from_ref(&folders.own)].concat());
        let engines = engines(config, prepared.machine.is_some());
        let catalog = Arc::new(LiveCatalog::read(folders, roots, engines, catalogs_to(&news, &metrics)));
        let spare = SpareMemory::default();
        let (probes, no_gpu) = probes(config, prepared.machine.as_ref(), &spare);
        let ledger = Leases::start(LeaseSetup {
            store: StoreChoice::of(config),
            runtime_dir: config.runtime_dir.clone(),
            terms: config.leases.terms(),
            foreign: config.leases.foreign,
            return_patience: config.leases.return_patience,
            probes,
            news: news.clone(),
        })
        .await?;
        Ok(Self { news, inbox, scheduler, metrics, settings, tasks, catalog, ledger, no_gpu, spare })
    }
}

/// The third step: the scheduler runs, and sources that change by themselves are followed.
struct Started {
    /// The driver's task, which ends only by a fault.
    driver: JoinHandle<()>,
    /// The token is cancelled when no request is left after a drain.
    drained: CancellationToken,
    scheduling: Scheduling,
    metrics: Arc<Metrics>,
    tasks: Arc<LiveTasks>,
    catalog: Arc<LiveCatalog>,
    keys: Arc<LiveKeys>,
    ledger: LeaseStart,
    no_gpu: Option<String>,
    runtime: Arc<RuntimeConfig>,
    streams: Streams,
    parking: Arc<ParkingDesk>,
    changes: Arc<ChangeFeed>,
    clock: Clock,
}

impl Started {
    async fn start(prepared: &PreparedServe, known: Known) -> Result<Self, ServeError> {
        let PreparedServe { config, decided, machine, state, keys, .. } = prepared;
        let Known { news, inbox, scheduler, metrics, settings, tasks, catalog, ledger, no_gpu, spare } = known;
        let leases = &ledger.leases;
        let documents: Arc<dyn DocumentStore> = Arc::new(LedgerDocuments::new(leases.clone()));
        let footprints = FootprintSink::start(Arc::clone(&documents), news.clone()).await;
        let (scheduling, clock) = (Scheduling::new(news.clone()), Clock::start());
        let (pulse, changes) = (Arc::new(Pulse::default()), Arc::new(ChangeFeed::new()));
        let (drained, streams) = (CancellationToken::new(), Streams::default());
        let store = StoreChoice::of(config).describe();
        let runtime = RuntimeConfig::open(documents, settings, decided, state, &store).await;
        let spawner =
            Spawner::start(Handle::current()).map_err(|error| ServeError::System("the spawning thread", error))?;
        let parking = parking(config, state, spare, &changes).await;
        let supervisor = Supervisor::new(Tools {
            settings: supervisor_settings(config, state)?,
            spawner,
            ports: Ports::new(config.worker_ports.clone()),
            catalog: Arc::clone(&catalog),
            leases: leases.clone(),
            news,
            machine: machine.clone(),
            streams: streams.clone(),
            parking: Arc::clone(&parking),
        });
        let driver = Driver {
            scheduler,
            scheduling: scheduling.clone(),
            catalog: Arc::clone(&catalog),
            supervisor,
            leases: leases.clone(),
            devices: ledger.devices.clone(),
            footprints,
            metrics: Arc::clone(&metrics),
            drained: drained.clone(),
            pulse: Arc::clone(&pulse),
            waiting: DriverQueue::default(),
        };
        let driver = tokio::spawn(driver.run(inbox));
        let keys = Arc::new(LiveKeys::new(&config.keys_file(), keys.clone(), Arc::clone(&tasks)));
        tokio::spawn(Arc::clone(&keys).follow());
        tokio::spawn(state.clone().watch());
        tokio::spawn(Arc::clone(&catalog).follow());
        tokio::spawn(Arc::clone(&tasks).follow());
        tokio::spawn(Arc::clone(&runtime).follow());
        tokio::spawn(Arc::clone(&changes).follow(scheduling.clone(), pulse, clock));
        tokio::spawn(Arc::clone(&parking).follow(Arc::clone(&catalog)));
        tokio::spawn(LiveHistory::follow(Arc::clone(metrics.history()), scheduling.clone()));
        Ok(Self {
            driver,
            drained,
            scheduling,
            metrics,
            tasks,
            catalog,
            keys,
            ledger,
            no_gpu,
            runtime,
            streams,
            parking,
            changes,
            clock,
        })
    }
}

/// The last step: requests are answered until a signal requests the end.
async fn answer(mut prepared: PreparedServe, mut started: Started, log: LogFilter) -> Result<ExitCode, ServeError> {
    let listeners = std::mem::take(&mut prepared.listeners);
    let addresses: Vec<SocketAddr> = listeners
        .iter()
        .map(|listener| listener.local_addr().map_err(|error| ServeError::System("the listening socket", error)))
        .collect::<Result<_, _>>()?;
    let draining = CancellationToken::new();
    let port = addresses.first().map_or(prepared.config.port, SocketAddr::port);
    let jobs = jobs(&prepared, &started, draining.clone())?;
    let context = Arc::new(context(&prepared, &started, port, (draining.clone(), Arc::clone(&jobs)), log));
    let https = prepared.https.take();
    let router = api::router(context);
    let server = server(&prepared, listeners, router.clone()).with_tls(https.as_ref().map(Https::tls));
    Startup {
        addresses: &addresses,
        has_tls: https.is_some(),
        needs_key: started.keys.current().needed,
        catalog: &started.catalog.current(),
        tasks: &started.tasks,
        devices: &started.ledger.devices.samples(),
        confinement: &confinement(&prepared.config),
        store: &started.ledger.store.status(),
        state_dir: &prepared.config.state_dir,
        earlier_state: (!prepared.decided.contains_key("state_dir")).then_some(Path::new(EARLIER_STATE)),
        no_gpu: started.no_gpu.as_deref(),
    }
    .print();

    if let Some(https) = https {
        tokio::spawn(https.follow());
    }
    tokio::spawn(jobs.serve(router));
    let closed = CancellationToken::new();
    let server = tokio::spawn(server.run(closed.clone().cancelled_owned()));
    let end = async {
        prepared.signals.next().await;
        tracing::info!("draining: running requests may end, ask again to end at once");
        draining.cancel();
        started.parking.close();
        drain(&started.scheduling, &started.drained, &mut prepared.signals, prepared.config.drain_grace).await
    };
    let code = tokio::select! {
        code = end => code,
        _ = &mut started.driver => return Err(ServeError::Broken),
        () = started.ledger.ended.cancelled() => return Err(ServeError::Broken),
    };
    closed.cancel();
    if code == ExitCode::SUCCESS {
        // A server task that panicked has nothing left to close.
        let _ = server.await;
    }
    prepared.traces.finish(LAST_TRACES).await;
    Ok(code)
}

/// The folders of manifests. One that nobody named is made, so that there is a place for the first manifest.
fn manifest_folders(config: &Config) -> ManifestFolders {
    let folders = ManifestFolders::of(config);
    if config.manifests.is_none() {
        // The catalog reports a folder that is not there as a problem.
        let _ = std::fs::create_dir_all(&folders.own);
    }
    folders
}

/// The desk of parked prefixes. Files of earlier processes are found on a thread that may wait for a disk.
async fn parking(
    config: &Config,
    state: &StateFolder,
    spare: SpareMemory,
    changes: &Arc<ChangeFeed>,
) -> Arc<ParkingDesk> {
    let (settings, state, changes) = (config.parking.clone(), state.clone(), Arc::clone(changes));
    let on_change = Box::new(move |what: &Value| changes.publish("parking", what));
    let setup = ParkingSetup { settings, state, spare, on_change };
    match spawn_blocking(move || ParkingDesk::open(setup)).await {
        Ok(desk) => desk,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The confinement of the workers that this configuration starts.
fn confinement(config: &Config) -> WorkerConfinement {
    match config.simulate {
        Some(_) => WorkerConfinement::of_fake_workers(),
        None => WorkerConfinement::of_workers(config.sandbox),
    }
}

/// The values that routes use.
fn context(
    prepared: &PreparedServe,
    started: &Started,
    port: u16,
    (draining, jobs): (CancellationToken, Arc<Jobs>),
    log: LogFilter,
) -> Context {
    let PreparedServe { config, state, .. } = prepared;
    let owner = OwnerKey::create(state, port)
        .inspect_err(|error| tracing::warn!("`run PATH` is held to model_roots, no key could be drawn: {error}"))
        .ok();
    Context {
        scheduling: started.scheduling.clone(),
        catalog: Arc::clone(&started.catalog),
        pulls: pulls(config, &started.catalog, &draining),
        clouds: Arc::new(Clouds::new(&config.providers, state)),
        tasks: Arc::clone(&started.tasks),
        config: Arc::clone(&started.runtime),
        leases: started.ledger.leases.clone(),
        devices: started.ledger.devices.clone(),
        instructions: config.cpu_features.unwrap_or_else(InstructionSet::best),
        confinement: confinement(config),
        store: started.ledger.store.clone(),
        streams: started.streams.clone(),
        parking: Arc::clone(&started.parking),
        metrics: Arc::clone(&started.metrics),
        traces: prepared.traces.clone(),
        audit: AuditLog::start(state),
        keys: Arc::clone(&started.keys),
        owner,
        limits: config.limits.clone(),
        memory: MemoryBudget::new(config.limits.request_memory),
        responses: ResponseStore::new(config.limits.responses, config.limits.response_idle),
        jobs,
        sse: config.sse.clone(),
        logs: state.file(LOGS),
        state: state.clone(),
        log,
        draining,
        started: Instant::now(),
        clock: started.clock,
        changes: Arc::clone(&started.changes),
    }
}

/// Jobs, files and batches. They are accepted once their store is open.
fn jobs(prepared: &PreparedServe, started: &Started, draining: CancellationToken) -> Result<Arc<Jobs>, ServeError> {
    let PreparedServe { config, state, .. } = prepared;
    let (store, changes) = (StoreChoice::of(config), Arc::clone(&started.changes));
    Jobs::new(JobsSetup {
        settings: config.jobs.clone(),
        state: state.clone(),
        open_store: Box::new(move |folder| store.records(folder).map_err(|error| chain(&error))),
        keys: Arc::clone(&started.keys),
        scheduling: started.scheduling.clone(),
        on_change: Box::new(move |kind, view| changes.publish(kind, &view)),
        draining,
    })
    .map_err(|error| ServeError::System("the folder of jobs", error))
}

/// The downloads of models, by the settings of this user's hub.
fn pulls(config: &Config, catalog: &Arc<LiveCatalog>, draining: &CancellationToken) -> Arc<Pulls> {
    let settings = HubSettings { connections: config.pull_connections, ..HubSettings::of_environment() };
    let (manifests, catalog) = (config.manifests_folder(), Arc::clone(catalog));
    Pulls::new(Hub::new(settings), manifests, catalog, config.auto_pull, draining.clone())
}

/// The server of these addresses, with the limits of each connection.
fn server(prepared: &PreparedServe, listeners: Vec<TcpListener>, router: Router) -> Server {
    let PreparedServe { config, descriptors, .. } = prepared;
    let Shares { limit, connections, refusals, .. } = *descriptors;
    if limit < FEW_DESCRIPTORS {
        tracing::warn!(
            "this process may have {limit} file descriptors: {connections} clients are served at once (ulimit -n)"
        );
    }
    let allowed = AllowedHosts::new(&config.allowed_hosts, &config.allowed_origins, &config.host);
    let door = Door::new(allowed, &id_prefix(), router);
    let limits = ServerLimits {
        patience: Patience { head: config.limits.header_timeout, idle: config.limits.idle_timeout },
        header_size: usize::try_from(config.limits.header_size.0).unwrap_or(usize::MAX),
        connections,
        refusals,
    };
    Server::new(listeners, door, limits)
}

/// A prefix of request ids that differs in each run.
fn id_prefix() -> String {
    let mut bits = [0; 4];
    // Request ids are names, not secrets: without randomness the pid is enough.
    if getrandom::fill(&mut bits).is_err() {
        bits = std::process::id().to_ne_bytes();
    }
    format!("req-{:08x}", u32::from_ne_bytes(bits))
}
