//! `model-boss serve`: the steps from a configuration to a running coordinator, and back.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model_boss_core::{Moment, Scheduler, Settings};
use model_boss_protocol::Category;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{self, AllowedHosts, Context, Door, Patience, Server, ServerLimits};
use crate::catalog::{LiveCatalog, ModelRoots};
use crate::config::{ApiKeys, ApiKeysError, Config};
use crate::driver::{Driver, News, Scheduling, Waiting};
use crate::leases::{LeaseSetup, LeaseStart, LeaseStartError, Leases};
use crate::metrics::Metrics;
use crate::probe::{HostProbe, NvidiaProbe, Probe};
use crate::startup::Startup;
use crate::supervisor::{Ports, Spawner, Supervisor, SupervisorSettings, Tools};

/// The worker's program, when nothing else is configured.
const WORKER: &str = "model-boss-worker";
/// Recorded samples are moved into their buckets this often.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);
/// After drain_grace the workers are killed, and their requests get this long to hear of it.
const CUT_LIMIT: Duration = Duration::from_secs(1);

/// The coordinator cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// Everybody on the network could use the machine.
    #[error("{0} is not a loopback address: set api_keys to a file with one key per line before others can connect")]
    OpenToAll(IpAddr),
    /// The keys.
    #[error("the API keys cannot be used")]
    Keys(#[from] ApiKeysError),
    /// No worker program.
    #[error("the worker program '{WORKER}' is neither beside this program nor on PATH; build it, or set worker_binary")]
    NoWorker,
    /// The configured worker program.
    #[error("worker_binary {0} is not a file")]
    BadWorker(PathBuf),
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
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

/// Runs the coordinator until it is asked to end.
pub(crate) async fn serve(config: Config) -> Result<ExitCode, ServeError> {
    let keys = keys(&config)?;
    let mut asked = Asked::new()?;
    let listener = bind(&config).await?;
    let (news, inbox) = News::channel();
    let metrics = Arc::new(Metrics::new()?);
    let roots = ModelRoots::new(&config.model_roots);
    let live = Arc::new(LiveCatalog::read(&config.manifests, roots, news.clone(), Arc::clone(&metrics)));
    let catalog = live.current();
    let (probes, no_gpu) = probes();
    let LeaseStart { leases, devices, store, ended } = Leases::start(LeaseSetup {
        state_dir: config.state_dir.clone(),
        runtime_dir: config.runtime_dir.clone(),
        terms: config.leases.terms(),
        probes,
        news: news.clone(),
    })
    .await?;
    let scheduling = Scheduling::new(news.clone());
    let (drained, draining) = (CancellationToken::new(), CancellationToken::new());
    let driver = Driver {
        scheduler: Scheduler::new(settings(&config), Moment::START),
        scheduling: scheduling.clone(),
        catalog: Arc::clone(&live),
        supervisor: supervisor(&config, leases.clone(), news)?,
        leases: leases.clone(),
        devices: devices.clone(),
        metrics: Arc::clone(&metrics),
        drained: drained.clone(),
        waiting: Waiting::default(),
    };
    let mut driver = tokio::spawn(driver.run(inbox));
    tokio::spawn(keep_up(Arc::clone(&metrics)));
    tokio::spawn(Arc::clone(&live).follow());

    let context = Arc::new(Context {
        scheduling: scheduling.clone(),
        catalog: Arc::clone(&live),
        leases,
        devices: devices.clone(),
        metrics,
        hosts: AllowedHosts::new(&config.allowed_hosts, config.host),
        keys,
        limits: config.limits.clone(),
        sse: config.sse.clone(),
        draining: draining.clone(),
        started: (Instant::now(), SystemTime::now()),
        id_prefix: id_prefix(),
    });
    let limits = ServerLimits {
        patience: Patience { head: config.limits.header_timeout, idle: config.limits.idle_timeout },
        header_size: usize::try_from(config.limits.header_size.0).unwrap_or(usize::MAX),
    };
    let server = Server::new(listener, Door::new(Arc::clone(&context), api::router(context)), limits);
    let address = server.address().map_err(|error| ServeError::System("the listening socket", error))?;
    Startup { address, catalog: &catalog, devices: &devices.samples(), store: &store, no_gpu: no_gpu.as_deref() }
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
    if keys.is_none() && !config.host.is_loopback() {
        return Err(ServeError::OpenToAll(config.host));
    }
    Ok(keys)
}

async fn bind(config: &Config) -> Result<TcpListener, ServeError> {
    let address = SocketAddr::new(config.host, config.port);
    TcpListener::bind(address).await.map_err(|error| ServeError::Bind(address, error))
}

/// The eyes on the machine's devices, and why there are no NVIDIA GPUs among them.
fn probes() -> (Vec<Box<dyn Probe>>, Option<String>) {
    let mut probes: Vec<Box<dyn Probe>> = vec![Box::new(HostProbe::new())];
    match NvidiaProbe::new() {
        Ok(nvidia) => {
            probes.push(Box::new(nvidia));
            (probes, None)
        }
        Err(error) => (probes, Some(error.to_string())),
    }
}

fn supervisor(config: &Config, leases: Leases, news: News) -> Result<Supervisor, ServeError> {
    let spawner =
        Spawner::start(Handle::current()).map_err(|error| ServeError::System("the spawning thread", error))?;
    let settings = SupervisorSettings {
        program: worker_program(config.worker_binary.as_deref())?,
        logs: config.state_dir.join("logs"),
        load_timeout: config.load_timeout,
        stop_grace: config.stop_grace,
        hang_timeout: config.hang_timeout,
    };
    let ports = Ports::new(config.worker_ports.clone());
    Ok(Supervisor::new(Tools { settings, spawner, ports, leases, news }))
}

/// The configured program, else the one beside this one, else the one on PATH.
pub(crate) fn worker_program(configured: Option<&Path>) -> Result<PathBuf, ServeError> {
    if let Some(program) = configured {
        return if program.is_file() { Ok(program.to_owned()) } else { Err(ServeError::BadWorker(program.to_owned())) };
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(WORKER)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(WORKER));
    beside.into_iter().chain(on_path).find(|program| program.is_file()).ok_or(ServeError::NoWorker)
}

fn settings(config: &Config) -> Settings {
    let stay_warm = Category::ALL.into_iter().map(|category| (category, config.stay_warm(category))).collect();
    Settings {
        max_queued_per_model: config.limits.queue_per_model,
        max_queued: config.limits.queue_total,
        aging_step: config.aging_step,
        max_keep_alive: config.max_keep_alive,
        stay_warm,
        ..Settings::default()
    }
}

async fn keep_up(metrics: Arc<Metrics>) {
    let mut ticks = tokio::time::interval(METRICS_UPKEEP);
    loop {
        ticks.tick().await;
        metrics.upkeep();
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

/// SIGINT and SIGTERM, one after another.
struct Asked {
    interrupt: Signal,
    terminate: Signal,
}

impl Asked {
    fn new() -> Result<Self, ServeError> {
        let on = |kind| signal(kind).map_err(|error| ServeError::System("signal handlers", error));
        Ok(Self { interrupt: on(SignalKind::interrupt())?, terminate: on(SignalKind::terminate())? })
    }

    async fn once(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
