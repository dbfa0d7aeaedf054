//! The settings in groups, with defaults and help texts.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model_boss_access::{KeyFile, KeyFileError};
use model_boss_core::{ClientRules, LoadFailurePolicy, MaxLoaded};
use model_boss_lease_store::LeaseDurations;
use model_boss_protocol::{ByteCount, Category, InstructionSet, KeepAlive, LlamaArgs, SandboxMode, TextLimits};
use nix::unistd::{User, geteuid};

use crate::{
    BackendTables, DeclaredDevices, Hosts, IdleTime, Installation, LogFormat, LogLevel, ParkingPlace, RedisUrl,
};

/// The file of tasks where none is named.
pub const DEFAULT_TASKS: &str = "tasks.yaml";
/// The folder of manifests in the folder of the start, or in the state folder.
const MANIFESTS: &str = "manifests";
/// The file of keys in the state folder where none is named.
const KEYS_FILE: &str = "api-keys";

use super::provider::ProviderTables;
use super::setting::section;
use crate::model_folders::ModelFolders;

section! {
    /// All settings. Every duration has millisecond resolution.
    pub struct Config {
        /// The addresses to listen on; several as a list. Any but a loopback address needs `api_keys`.
        host: Hosts = Hosts::default(),
        /// The port to listen on; 0 lets the system choose, and the chosen one is printed.
        port: u16 = 8210,
        /// The folder with one TOML file per model; unset: `manifests` here, if it is there, else in `state_dir`.
        manifests: Option<PathBuf> = None,
        /// Models of the installation, whose names yield to those in `manifests`; unset: `share/model-boss/models`.
        installed_models: Option<PathBuf> = None,
        /// The file with tasks and clients; it may be absent unless it is named here.
        tasks: PathBuf = PathBuf::from(DEFAULT_TASKS),
        /// Whether a request may go to a cloud when no earlier rung of its task's ladder can serve it.
        allow_cloud_fallback: bool = true,
        /// Folders from which models may be loaded by path, besides `manifests`; links are followed. `~`: home.
        model_roots: Vec<PathBuf> = ModelFolders::usual(),
        /// Whether a load or a request for a model that was not downloaded starts its pull (docs/downloads.md).
        auto_pull: bool = false,
        /// The most connections of one pull.
        pull_connections: usize = 8,
        /// State folder; unset: `$STATE_DIRECTORY`, for root `/var/lib/model-boss`, else `~/.local/state/model-boss`.
        state_dir: PathBuf = default_state_dir(),
        /// The Redis server that keeps the leases, `redis://HOST:PORT` (docs/leases.md); unset: a file in `state_dir`.
        redis_url: Option<RedisUrl> = None,
        /// For tests: the folder in which coordinators claim devices; unset: one that all users of the machine share.
        runtime_dir: Option<PathBuf> = None,
        /// The worker program; unset: `model-boss-worker` beside this program, else on PATH.
        worker_binary: Option<PathBuf> = None,
        /// Simulate a machine: a TOML file with its GPUs. Every model is then run by the fake worker.
        simulate: Option<PathBuf> = None,
        /// The ports given to workers, in sequence; busy ones are skipped.
        worker_ports: RangeInclusive<u16> = 8300..=8499,
        /// The file of API keys (docs/keys.md); unset: `api-keys` in `state_dir`. With a key, every request needs one.
        api_keys: Option<PathBuf> = None,
        /// The certificate for HTTPS, a PEM file with its chain; read again when it changes (docs/keys.md).
        tls_cert: Option<PathBuf> = None,
        /// The private key of `tls_cert`, a PEM file.
        tls_key: Option<PathBuf> = None,
        /// The collector of traces (OTLP), `http://HOST:4318`; unset: as `OTEL_*` says; docs/observability.md.
        otlp_endpoint: Option<String> = None,
        /// Models with series of their own at `/metrics`; those that are used after them are `other` together.
        metrics_models: usize = 100,
        /// Names accepted in the Host and Origin headers besides loopback ones.
        allowed_hosts: Vec<String> = Vec::new(),
        /// Sites whose pages may call from a browser (CORS): `https://chat.example`, `http://localhost:*`; docs/api.md.
        allowed_origins: Vec<String> = Vec::new(),
        /// The longest load before its worker is ended; unset: by size, 60 s and 20 s for each GiB.
        load_timeout: Option<Duration> = None,
        /// The time from SIGTERM until a worker is killed by SIGKILL.
        stop_grace: Duration = Duration::from_secs(10),
        /// The time that running requests get to end when the coordinator is asked to stop.
        drain_grace: Duration = Duration::from_secs(30),
        /// A worker with work and no step for this long counts as hung.
        hang_timeout: Duration = Duration::from_secs(60),
        /// Each such wait raises a request's priority by one step.
        aging_step: Duration = Duration::from_secs(30),
        /// A request that waited this long may evict any model that is not pinned; 0 = never.
        max_wait: Duration = Duration::from_secs(600),
        /// The least time a model in use serves before a request of equal priority may evict it.
        min_hold: Duration = Duration::from_secs(10),
        /// Queued requests are reconsidered at least this often.
        reevaluate_every: Duration = Duration::from_secs(5),
        /// At equal priority, each such step of service (in tokens) that a client got more puts it behind others.
        service_step: usize = 1_000,
        /// How often a request is retried whose worker died before any byte of its answer.
        max_retries: usize = 3,
        /// Failed loads of a model in a row after which its queued requests are refused.
        max_load_attempts: usize = 3,
        /// The wait before a failed model is loaded again; doubles with each failure in a row.
        back_off_first: Duration = Duration::from_secs(1),
        /// The longest such wait.
        back_off_limit: Duration = Duration::from_secs(300),
        /// A worker that lost a request gets no further one for this time, or until it is known to be gone.
        lost_pause: Duration = Duration::from_secs(1),
        /// Memory in use by other programs is waited for this long; then layers are streamed (docs/streaming.md).
        peak_patience: Duration = Duration::from_secs(30),
        /// A request whose only device its driver no longer lists waits this long, then 409 `device_not_available`.
        device_patience: Duration = Duration::from_secs(30),
        /// After a failed load: `evict_all_and_retry` once, or `fail`. Never retried for faults of the model's files.
        load_failure_policy: LoadFailurePolicy = LoadFailurePolicy::default(),
        /// Models loaded at once: `auto` (by memory), numbers for LLM, EMBEDDING, RERANKING, or `llm=2 tts=1`; else 1.
        max_loaded_models: MaxLoaded = MaxLoaded::Auto,
        /// Instructions for products on the CPU, such as `avx2`, for comparisons and bug reports; unset: the fastest.
        cpu_features: Option<InstructionSet> = None,
        /// Whether workers are confined to their model's files: `auto`, `off`, or `required`; docs/sandbox.md.
        sandbox: SandboxMode = SandboxMode::Auto,
        /// Models on `cpu` that compute at the same time share its cores by priority; `false`: each uses all of them.
        share_cores: bool = true,
        /// The most that models may use of this machine's memory, e.g. "2GiB"; unset: all but a tenth that stays free.
        host_memory: Option<ByteCount> = None,
        /// Memory for idle models on `cpu` in MiB; 0 = every request loads and unloads; unset: 60 % of usable RAM.
        model_cache_mb: Option<u64> = None,
        /// How long an unneeded model stays, in place of `stay_warm`: seconds, or a text with a unit; 0 = forever.
        model_idle_secs: Option<IdleTime> = None,
        /// The longest `keep_alive` that a request may set.
        max_keep_alive: Duration = Duration::from_secs(86_400),
        /// Devices that no probe finds: `[devices.NAME]` with `memory`, `exclusive`, `backend`.
        devices: DeclaredDevices = DeclaredDevices::default(),
        /// The context in tokens of a model where neither a load nor its manifest states one.
        ctx_size: Option<u64> = None,
        /// Arguments for llama-server, before a manifest's and a load's, as one text; docs/engines.md has the list.
        llamacpp_args: LlamaArgs = LlamaArgs::default(),
        /// The default build of llama-server: a name in `[backends.llama-server.builds]`.
        llamacpp: Option<String> = None,
        /// The program llama-server; unset: `llama-server` on PATH, if it is there.
        llama_server: Option<PathBuf> = None,
        /// Variables that models' programs inherit besides a fixed list; `HF_*`: all that begin so; docs/engines.md.
        inherit_env: Vec<String> = Vec::new(),
        /// External engines: `[backends.llama-server.builds]`, `[backends.NAME]` with a command line; docs/engines.md.
        backends: BackendTables = BackendTables::default(),
        /// Cloud providers: `[providers.NAME]` with `base_url`, `key_env` or `key_file`, `prices`; see docs/clouds.md.
        providers: ProviderTables = ProviderTables::default(),
        /// Limits of clients: `[clients.default]` for all, `[clients.NAME]` over that; docs/clients.md has the keys.
        clients: ClientRules = ClientRules::default(),
        /// How long an unneeded model of each category stays loaded after its last use.
        stay_warm: StayWarm = StayWarm::default(),
        /// Bounds on requests and on the queue.
        limits: Limits = Limits::default(),
        /// Limits on a model's chat template and tokenizer, which are programs in its files.
        text: TextSettings = TextSettings::default(),
        /// Jobs, files and batches (docs/jobs.md).
        jobs: JobSettings = JobSettings::default(),
        /// Prefixes of conversations whose model leaves memory for a time (docs/parking.md).
        parking: ParkingSettings = ParkingSettings::default(),
        /// Terms of leases.
        leases: LeaseTerms = LeaseTerms::default(),
        /// Comments that keep a stream alive while its request waits for a model.
        sse: Sse = Sse::default(),
        /// The log on standard error.
        log: Log = Log::default(),
    }
}

section! {
    /// How long an unneeded model stays loaded after its last use, per category (RC-8).
    pub struct StayWarm {
        /// Text models.
        llm: Duration = Category::Llm.stay_warm(),
        /// Embedding models.
        embedding: Duration = Category::Embedding.stay_warm(),
        /// Reranking models.
        reranking: Duration = Category::Reranking.stay_warm(),
        /// Image and text towers.
        vision: Duration = Category::Vision.stay_warm(),
        /// Image makers.
        diffusion: Duration = Category::Diffusion.stay_warm(),
        /// Speech makers.
        tts: Duration = Category::Tts.stay_warm(),
        /// Models that turn speech into text.
        transcription: Duration = Category::Transcription.stay_warm(),
    }
}

section! {
    /// Bounds on requests and on the queue (RC-10).
    pub struct Limits {
        /// The largest body on inference routes.
        inference_body: ByteCount = ByteCount::mib(32),
        /// The largest body on management routes.
        management_body: ByteCount = ByteCount::mib(1),
        /// How long a client may take to send its request head.
        header_timeout: Duration = Duration::from_secs(10),
        /// How long a connection may stay open between two requests.
        idle_timeout: Duration = Duration::from_secs(75),
        /// The largest request head.
        header_size: ByteCount = ByteCount(32 << 10),
        /// The deepest nesting of a JSON body.
        json_depth: usize = 64,
        /// The most values in a JSON body that is translated (Anthropic's, Ollama's, providers' APIs) or that manages.
        json_values: usize = 100_000,
        /// Memory for all bodies and answers in flight; one request may use half of it.
        request_memory: ByteCount = ByteCount::mib(256),
        /// Requests that may wait for one model, or for all providers; the last eighth is for priorities 0 to 2.
        queue_per_model: usize = 512,
        /// Requests that may wait in all; the last eighth as above.
        queue_total: usize = 4_096,
        /// The number of models named by path that are kept; beyond it the least recently used is forgotten.
        path_models: usize = 256,
        /// A model named by its path is forgotten when it was not used for this long.
        path_model_idle: Duration = Duration::from_secs(86_400),
        /// Memory for responses that clients may continue by their id; the least recently used go first.
        responses: ByteCount = ByteCount::mib(64),
        /// A response is forgotten when it was not used for this long.
        response_idle: Duration = Duration::from_secs(86_400),
    }
}

/// Limits on the complexity of a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// The deepest nesting of lists and objects.
    pub depth: usize,
    /// The most values in a document that is parsed.
    pub values: usize,
}

impl Limits {
    /// Limits on a JSON body.
    pub const fn json(&self) -> JsonLimits {
        JsonLimits { depth: self.json_depth, values: self.json_values }
    }
}

section! {
    /// Limits on a model's chat template and tokenizer for one request
    /// (docs/adr/0036-templates-run-in-processes-of-their-own.md).
    pub struct TextSettings {
        /// The longest time for one request.
        time: Duration = TextLimits::default().time,
        /// The memory that one request may use, the vocabulary not counted.
        memory: ByteCount = TextLimits::default().memory,
        /// The stack that a template may use.
        stack: ByteCount = TextLimits::default().stack,
        /// The requests of one model that are processed at the same time.
        processes: usize = TextLimits::default().processes as usize,
    }
}

impl TextSettings {
    /// The limits in the form that workers read.
    pub fn limits(&self) -> TextLimits {
        let Self { time, memory, stack, processes } = *self;
        TextLimits { time, memory, stack, processes: u32::try_from(processes).unwrap_or(u32::MAX) }
    }
}

section! {
    /// Limits of jobs, of uploaded files and of batches (RC-26).
    pub struct JobSettings {
        /// The most jobs that may wait or run; a further one is refused.
        open: usize = 10_000,
        /// Jobs in the queue of requests at once; the others wait behind them.
        in_flight: usize = 64,
        /// How long an ended job and its result are kept.
        keep: Duration = Duration::from_secs(7 * 86_400),
        /// The disk that bodies, results and files may take in all.
        storage: ByteCount = ByteCount::gib(20),
        /// The largest uploaded file, and the largest body of a job that is not JSON.
        file_size: ByteCount = ByteCount::mib(512),
        /// How often a worker may die under one job before the job fails.
        crashes: usize = 3,
        /// The most lines of a batch.
        batch_lines: usize = 50_000,
        /// Lines of all batches in the queue of requests at once; each of `batches` has its part.
        batch_in_flight: usize = 64,
        /// Batches whose lines are answered at once; the others wait.
        batches: usize = 4,
        /// Hosts that webhooks may go to, by HTTPS; none: webhooks are off.
        webhook_hosts: Vec<String> = Vec::new(),
        /// Hosts that may have private addresses and speak plain HTTP, for webhooks inside a network.
        webhook_private_hosts: Vec<String> = Vec::new(),
        /// The file of the secret that signs webhooks, `whsec_…`; unset: one is drawn, in `state_dir`.
        webhook_secret_file: Option<PathBuf> = None,
    }
}

section! {
    /// Parked prefixes (EN-3).
    pub struct ParkingSettings {
        /// Where they are kept: `memory`, `files` in `state_dir`, which hold prompts and outlive a restart, or `off`.
        place: ParkingPlace = ParkingPlace::Memory,
        /// The most bytes of all models; of memory, no more than what is free. 0 = none are kept.
        bytes: ByteCount = ByteCount::gib(1),
        /// The longest time by which they delay the end of a worker, and the first answer of the next.
        time: Duration = Duration::from_secs(1),
        /// Prefixes of a model that was not loaded again for this long are dropped.
        keep: Duration = Duration::from_secs(86_400),
    }
}

section! {
    /// Terms of leases, for holders that do not renew.
    pub struct LeaseTerms {
        /// A lease that is not renewed for this long expires; its bytes stay counted until its processes are gone.
        term: Duration = Duration::from_secs(15),
        /// How often leases are renewed.
        heartbeat: Duration = Duration::from_secs(3),
        /// A sample of a device that is older than this is not used.
        observation_stale: Duration = Duration::from_secs(10),
        /// Memory of programs without a lease where a GPU's driver tells no processes apart; loads take turns there.
        foreign: ByteCount = ByteCount::ZERO,
        /// How long a request for a model that is not loaded waits for a store that is out of reach.
        patience: Duration = Duration::from_secs(30),
        /// How long the memory of an ended worker is waited for before its device is said to be leaking.
        return_patience: Duration = Duration::from_secs(10),
    }
}

section! {
    /// Keep-alive comments of streams (RC-12).
    pub struct Sse {
        /// When the first comment is sent.
        first_comment: Duration = Duration::from_secs(2),
        /// The time between comments after that.
        interval: Duration = Duration::from_secs(10),
    }
}

section! {
    /// The log.
    pub struct Log {
        /// `off`, `error`, `warn`, `info`, `debug` or `trace`.
        level: LogLevel = LogLevel::Info,
        /// `text` for people or `json` for programs.
        format: LogFormat = LogFormat::Text,
    }
}

impl Config {
    /// How long an unneeded model of this category stays loaded when neither request nor manifest says (RC-8).
    pub fn stay_warm(&self, category: Category) -> KeepAlive {
        self.model_idle_secs.map_or_else(|| KeepAlive::For(self.stay_warm.of(category)), |idle| idle.0)
    }
}

impl Config {
    /// The state folder of this configuration: a simulated machine has one of its own inside.
    pub fn own_state_dir(&self) -> PathBuf {
        if self.simulate.is_some() { self.state_dir.join("simulation") } else { self.state_dir.clone() }
    }

    /// The folder of manifests.
    pub fn manifests_folder(&self) -> PathBuf {
        let here = || Some(PathBuf::from(MANIFESTS)).filter(|folder| folder.is_dir());
        self.manifests.clone().or_else(here).unwrap_or_else(|| self.own_state_dir().join(MANIFESTS))
    }

    /// The folder of models that came with this program.
    pub fn installed_models_folder(&self) -> Option<PathBuf> {
        let usual = || Installation::of_this_program().map(|installed| installed.models());
        self.installed_models.clone().or_else(usual).filter(|folder| folder.is_dir())
    }

    /// The file of API keys.
    pub fn keys_file(&self) -> PathBuf {
        self.api_keys.clone().unwrap_or_else(|| self.own_state_dir().join(KEYS_FILE))
    }

    /// The API keys. `None` where no key was made and no file is named.
    pub fn keys(&self) -> Result<Option<KeyFile>, KeyFileError> {
        match KeyFile::read(&self.keys_file()) {
            Ok(file) => Ok(Some(file)),
            Err(KeyFileError::Read(_, error)) if self.api_keys.is_none() && error.kind() == ErrorKind::NotFound => {
                Ok(None)
            }
            Err(KeyFileError::Empty(_)) if self.api_keys.is_none() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl LeaseTerms {
    /// The terms in the ledger's type.
    pub fn terms(&self) -> LeaseDurations {
        let mut terms = LeaseDurations::default();
        (terms.lease, terms.heartbeat, terms.stale) = (self.term, self.heartbeat, self.observation_stale);
        terms
    }
}

impl StayWarm {
    fn of(&self, category: Category) -> Duration {
        match category {
            Category::Llm => self.llm,
            Category::Embedding => self.embedding,
            Category::Reranking => self.reranking,
            Category::Vision => self.vision,
            Category::Diffusion => self.diffusion,
            Category::Tts => self.tts,
            Category::Transcription => self.transcription,
        }
    }
}

/// The default state folder: one for each service and user, wherever the process was started.
fn default_state_dir() -> PathBuf {
    let home = || User::from_uid(geteuid()).ok().flatten().map(|user| user.dir);
    state_dir_of(&|name| std::env::var_os(name), geteuid().is_root(), home)
}

/// The state folder: systemd's for a service, else the system's for root, else the user's own (XDG Base Directory).
pub(super) fn state_dir_of(
    variable: &dyn Fn(&str) -> Option<OsString>,
    root: bool,
    home: impl Fn() -> Option<PathBuf>,
) -> PathBuf {
    const NAME: &str = "model-boss";
    // XDG and systemd define only absolute paths: relative ones are ignored.
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // A service may have several folders, with colons between them.
    let of_service = variable("STATE_DIRECTORY").and_then(|all| std::env::split_paths(&all).next());
    let of_system = || Path::new("/var/lib").join(NAME);
    if let Some(folder) = of_service.filter(|path| path.is_absolute()) {
        return folder;
    }
    if root {
        return of_system();
    }
    let home = || folder("HOME").or_else(&home).map(|home| home.join(".local/state"));
    folder("XDG_STATE_HOME").or_else(home).map_or_else(of_system, |state| state.join(NAME))
}
