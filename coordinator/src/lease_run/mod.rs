//! `model-boss lease`: a program that runs with leased memory, the same for programs in other languages, and a look at
//! who holds and waits. Speaks with the ledger in Redis directly where one is named, so that it works whether a
//! coordinator runs or not, and else with a coordinator. Decides nothing: the rules do.

mod desk;
mod gate;
mod hold;
mod http_desk;
mod job;
mod keeper;
mod look;
mod redis_desk;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use model_boss_lease_store::{StoreError, Yielding};
use model_boss_protocol::{ByteCount, DeviceId, ErrorCode, Priority};
use nix::sys::signal::Signal;

use crate::client::{Client, ClientError};
use desk::Wanted;

/// Leases of GPU memory that training jobs and models share.
#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// Run a program once the memory it needs is leased, and give it back when the program ends.
    Run(Box<RunArgs>),
    /// Who holds leases.
    List(LookArgs),
    /// One lease.
    Show {
        /// Its id, as `lease list` shows it.
        lease: String,
        #[command(flatten)]
        look: LookArgs,
    },
    /// End a lease whose holder is gone and whose processes are gone. Never ends a process.
    Release {
        /// Its id, as `lease list` shows it.
        lease: String,
        /// End it whatever its processes do, as an operator: what they still use counts as foreign memory from then on.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Leases for a program in another language: JSON lines in and out, see docs/leases.md. Ends with its standard input.
    Hold(Place),
    /// Who holds and who waits, printed again whenever it changes, until Ctrl-C.
    Watch(LookArgs),
    /// What `run` starts behind its guards: waits at the gate, then becomes the program.
    #[command(hide = true)]
    Gate(gate::GateArgs),
}

/// Where leases are kept: at the Redis server, if one is named, else at the coordinator that --url names.
#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// The Redis server that keeps the ledger: redis://HOST:PORT, rediss:// for TLS, redis+sentinel://HOST,HOST/SERVICE.
    /// Without one the coordinator is asked.
    #[arg(long, value_name = "URL", env = "MODEL_BOSS_REDIS_URL", hide_env_values = true)]
    redis: Option<String>,
    /// The folder of the host's locks, the same for every program that uses the ledger.
    #[arg(long, value_name = "FOLDER", env = "MODEL_BOSS_RUNTIME_DIR")]
    runtime_dir: Option<PathBuf>,
}

/// What to look at.
#[derive(Clone, Debug, Args)]
pub(crate) struct LookArgs {
    #[command(flatten)]
    place: Place,
    /// JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// What to run, and with how much.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    place: Place,
    /// How much memory on each device.
    #[arg(long, value_name = "SIZE")]
    vram: ByteCount,
    /// On how many GPUs, whichever have room first.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "device")]
    gpus: usize,
    /// On this device, and on others when given again.
    #[arg(long, value_name = "DEVICE")]
    device: Vec<DeviceId>,
    /// How important it is: 0 (most) to 9, or interactive, normal, batch.
    #[arg(long, default_value = "7")]
    priority: Priority,
    /// For people: what it is. The program's name by default.
    #[arg(long)]
    label: Option<String>,
    /// How long to wait for the memory; for ever by default.
    #[arg(long, value_name = "TIME", value_parser = span)]
    wait: Option<Duration>,
    /// Ask less important programs that allow it to give memory back.
    #[arg(long)]
    preempt: bool,
    /// Allow more important requests to ask for the memory back.
    #[arg(long)]
    preemptible: bool,
    /// Send the program this signal when its memory is asked back. Allows that, like --preemptible.
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    on_revoke: Option<Signal>,
    /// How long the program needs to give the memory back before it is ended.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "60s")]
    grace: Duration,
    /// How long it is left alone after it got the memory.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10m")]
    min_hold: Duration,
    /// Say also where leases are kept, and what was let through the gate.
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Where leases are kept.
#[derive(Clone)]
enum Whereabouts {
    /// The ledger in Redis.
    Redis { url: String, runtime_dir: Option<PathBuf> },
    /// A coordinator.
    Coordinator(Client),
}

/// `lease` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// The ledger.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The coordinator.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It does not answer in time.
    #[error("the coordinator at {url} did not answer within {} s", limit.as_secs())]
    Slow {
        /// Where.
        url: String,
        /// How long it was given.
        limit: Duration,
    },
    /// It answers what its API does not say.
    #[error("the coordinator's answer cannot be understood: {0}; are both of the same version?")]
    Answer(String),
    /// Attached or renewed before it was granted.
    #[error("the lease is not granted yet")]
    NotGranted,
    /// A part of this program that the operating system did not give.
    #[error("cannot {0}")]
    System(&'static str, #[source] io::Error),
    /// The program to run.
    #[error("cannot run {}", .0.display())]
    Program(PathBuf, #[source] io::Error),
    /// Larger than the device.
    #[error("it can never fit: {0}")]
    NeverFits(String),
    /// `--wait` has passed.
    #[error("the memory did not come free within {} s: {reason}", waited.as_secs())]
    WaitedTooLong {
        /// How long.
        waited: Duration,
        /// What it waited for at the end.
        reason: String,
    },
    /// No GPU, or none that can be leased.
    #[error("no GPU can be leased here; name a device with --device, such as --device cpu")]
    NoGpu,
    /// The device does not exist.
    #[error("there is no device {0} here; there are: {1}")]
    NoDevice(DeviceId, String),
    /// No such lease.
    #[error("no lease is called '{0}'; `model-boss lease list` shows them")]
    NoLease(String),
    /// It lives.
    #[error("{0} is held: end its program first ({1}); an operator can end the lease without it: --force")]
    StillHeld(String, String),
    /// Serialising for display.
    #[error("cannot be written as JSON")]
    Json(#[source] serde_json::Error),
    /// The thread that keeps the lease ended, which it must not.
    #[error("the thread that keeps the lease has ended; its program was ended too")]
    Keeper,
}

/// Does what the command says; `run` passes on the exit code of its program. `url` is where a coordinator would be.
pub(crate) fn run(command: LeaseCommand, url: &str) -> Result<ExitCode, LeaseError> {
    match command {
        LeaseCommand::Run(args) => job::run(&args, &args.place.whereabouts(url)?),
        LeaseCommand::List(look) => look::list(&look.place.whereabouts(url)?, look.json),
        LeaseCommand::Show { lease, look } => look::show(&lease, &look.place.whereabouts(url)?, look.json),
        LeaseCommand::Release { lease, force: false, place } => look::release(&lease, &place.whereabouts(url)?),
        LeaseCommand::Release { lease, force: true, place } => look::force(&lease, &place.whereabouts(url)?),
        LeaseCommand::Watch(look) => look::watch(&look.place.whereabouts(url)?, look.json),
        LeaseCommand::Hold(place) => hold::run(&place.whereabouts(url)?),
        LeaseCommand::Gate(args) => gate::gate(&args),
    }
}

impl LeaseError {
    /// Whether where leases are kept is out of reach for now: what is held is kept, nothing new is begun.
    fn is_outage(&self) -> bool {
        const PASSING: [ErrorCode; 3] =
            [ErrorCode::LeaseStoreUnavailable, ErrorCode::LeaseStoreRecovering, ErrorCode::Draining];
        match self {
            Self::Store(error) => error.is_outage(),
            Self::Client(ClientError::NoCoordinator(..) | ClientError::Connection(..)) | Self::Slow { .. } => true,
            // A proxy in front of a coordinator that restarts.
            Self::Client(ClientError::Stranger { status, .. }) => *status >= 500,
            Self::Client(ClientError::Api(body)) => {
                PASSING.iter().any(|code| body.error.code.as_deref() == Some(code.as_str()))
            }
            _ => false,
        }
    }
}

impl Place {
    fn whereabouts(&self, url: &str) -> Result<Whereabouts, LeaseError> {
        match self.redis.as_ref().filter(|url| !url.is_empty()) {
            Some(url) => Ok(Whereabouts::Redis { url: url.clone(), runtime_dir: self.runtime_dir.clone() }),
            None => Ok(Whereabouts::Coordinator(Client::new(url, std::env::var("MODEL_BOSS_API_KEY").ok())?)),
        }
    }
}

impl RunArgs {
    fn label(&self) -> String {
        let name = || self.program.first().map(|program| PathBuf::from(program).display().to_string());
        self.label.clone().or_else(name).unwrap_or_default()
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            label: self.label(),
            memory: self.vram,
            devices: self.device.clone(),
            count: self.gpus,
            priority: self.priority,
            preempt: self.preempt,
            yielding: Yielding {
                preemptible: self.preemptible || self.on_revoke.is_some(),
                grace: self.grace,
                min_hold: self.min_hold,
                reload: Duration::ZERO,
            },
        }
    }

    /// The signal that tells the program to give its memory back.
    fn revoke_signal(&self) -> Signal {
        self.on_revoke.unwrap_or(Signal::SIGTERM)
    }
}

fn span(text: &str) -> Result<Duration, String> {
    model_boss_protocol::parse_span(text).map_err(|error| error.to_string())
}

/// `SIGUSR1` or `USR1`.
fn signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    let name = if name.starts_with("SIG") { name } else { format!("SIG{name}") };
    name.parse().map_err(|_| format!("'{text}' is no signal; write SIGUSR1, SIGTERM or the like"))
}
