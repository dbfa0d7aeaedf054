//! Settings and tools that every runner uses, and the order that it carries out.

use std::sync::Arc;
use std::time::Duration;

use model_boss_catalog::{LiveCatalog, Model};
use model_boss_core::EngineOptions;
use model_boss_host::environment::ChildEnvironment;
use model_boss_host::probe::SimulatedMachine;
use model_boss_host::process::Spawner;
use model_boss_host::programs::Programs;
use model_boss_host::state_folder::StateFolder;
use model_boss_protocol::{Backend, ByteCount, DeviceId, Generation, Residency, SlotId, TextLimits};

use crate::leases::Leases;
use crate::scheduling::News;
use crate::supervisor::{Ports, Streams};

/// What every runner uses.
pub(crate) struct Tools {
    /// How long things may take, and where things are.
    pub(crate) settings: SupervisorSettings,
    /// The thread that forks.
    pub(crate) spawner: Spawner,
    /// Where workers listen.
    pub(crate) ports: Ports,
    /// What can run models, and how engines of others are started.
    pub(crate) catalog: Arc<LiveCatalog>,
    /// The ledger, which must know a pid before its worker may start.
    pub(crate) leases: Leases,
    /// Where reports go.
    pub(crate) news: News,
    /// The machine that is played, if one is: workers' memory is what they say.
    pub(crate) machine: Option<Arc<SimulatedMachine>>,
    /// What workers say of layers that come and go.
    pub(crate) streams: Streams,
}

/// How long things may take, and where things are.
#[derive(Clone, Debug)]
pub(crate) struct SupervisorSettings {
    /// The workers' programs.
    pub(crate) programs: Programs,
    /// Where the logs of workers go.
    pub(crate) state: StateFolder,
    /// How long a load may take; by size when absent.
    pub(crate) load_timeout: Option<Duration>,
    /// From SIGTERM to SIGKILL.
    pub(crate) stop_grace: Duration,
    /// How long a worker may stand still with work in hand, or leave its health check unanswered.
    pub(crate) hang_timeout: Duration,
    /// What workers inherit of our environment.
    pub(crate) environment: ChildEnvironment,
    /// What templates and tokenizers may use in a worker.
    pub(crate) text: TextLimits,
}

/// The order to fill a slot.
pub(crate) struct SpawnOrder {
    /// Which slot.
    pub(crate) slot: SlotId,
    /// Which filling of it.
    pub(crate) generation: Generation,
    /// What to load.
    pub(crate) model: Arc<Model>,
    /// What runs it.
    pub(crate) backend: Backend,
    /// Where, and how much on each device. Never `auto`, never empty.
    pub(crate) parts: Vec<(DeviceId, ByteCount)>,
    /// The context to serve, when a load asked for one.
    pub(crate) context: Option<u64>,
    /// How its layers live: `stream` where it was given less than it needs for them to stay.
    pub(crate) residency: Residency,
    /// The UUIDs of the GPUs of its lease, joined by commas; empty on `cpu`.
    pub(crate) visible_gpus: String,
    /// What the load asked of its engine.
    pub(crate) engine: EngineOptions,
}

/// The time a load may take when nobody says: one minute, and 20 seconds for each GiB.
pub(super) fn load_timeout_for(size: ByteCount) -> Duration {
    Duration::from_secs(60).saturating_add(Duration::from_secs_f64(20.0 * size.0 as f64 / ByteCount::gib(1).0 as f64))
}
