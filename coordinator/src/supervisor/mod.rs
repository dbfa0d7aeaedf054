//! Worker processes: one runner task each, from spawn to reaping. Acts on the core's `Spawn` and `Stop` and reports what
//! happened; decides nothing about which model runs where, or whether to try again.

mod contract;
mod engine_gate;
mod log_file;
mod output;
mod ports;
mod programs;
mod runner;
mod sockets;
mod spawner;
mod streams;
mod worker_log;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use model_boss_core::EngineOptions;
use model_boss_dialects::EngineDialect;
use model_boss_protocol::{Backend, ByteCount, DeviceId, Generation, ModelId, Residency, SlotId, TextLimits};
use tokio_util::sync::CancellationToken;

use crate::catalog::{LiveCatalog, Model};
use crate::driver::News;
use crate::environment::ChildEnvironment;
use crate::leases::Leases;
use crate::probe::SimulatedMachine;
use crate::state_folder::StateFolder;
use crate::upstream::Upstream;

pub(crate) use engine_gate::{ENGINE_GATE, engine_gate};
pub(crate) use log_file::{earlier_log, log_path};
pub(crate) use output::LOGS;
pub(crate) use ports::Ports;
pub(crate) use programs::{ProgramError, Programs};
use runner::WorkerRunner;
pub(crate) use spawner::Spawner;
pub(crate) use streams::Streams;

/// Starts, watches and ends workers.
pub(crate) struct Supervisor {
    tools: Arc<Tools>,
    workers: HashMap<SlotId, Arc<Worker>>,
}

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

/// One filling of a slot, as the rest of the shell sees it.
#[derive(Debug)]
pub(crate) struct Worker {
    /// What it serves.
    pub(crate) model: ModelId,
    /// Which filling of the slot it is.
    pub(crate) generation: Generation,
    /// What requests must be for it, when it is an engine of others.
    dialect: Option<EngineDialect>,
    /// Set right before `WorkerReady` is reported.
    upstream: OnceLock<Arc<Upstream>>,
    stop: CancellationToken,
    kill: CancellationToken,
    /// Set before `kill`.
    kill_reason: OnceLock<&'static str>,
}

impl Supervisor {
    /// No workers yet.
    pub(crate) fn new(tools: Tools) -> Self {
        Self { tools: Arc::new(tools), workers: HashMap::new() }
    }

    /// Starts a worker. `WorkerExited` is reported exactly once, whatever happens.
    pub(crate) fn spawn(&mut self, order: SpawnOrder) {
        let worker = Arc::new(Worker {
            model: order.model.description.id.clone(),
            generation: order.generation,
            dialect: self.tools.catalog.engines().dialect(&order.model),
            upstream: OnceLock::new(),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            kill_reason: OnceLock::new(),
        });
        self.workers.insert(order.slot, Arc::clone(&worker));
        tokio::spawn(WorkerRunner::new(order, worker, Arc::clone(&self.tools)).run());
    }

    /// Asks a worker to end.
    pub(crate) fn stop(&self, slot: SlotId, generation: Generation) {
        if let Some(worker) = self.worker(slot, generation) {
            worker.stop.cancel();
        }
    }

    /// Ends a worker without grace.
    pub(crate) fn kill(&self, slot: SlotId, generation: Generation, why: &'static str) {
        if let Some(worker) = self.worker(slot, generation) {
            worker.kill(why);
        }
    }

    /// Ends every worker without grace.
    pub(crate) fn kill_all(&self, why: &'static str) {
        self.workers.values().for_each(|worker| worker.kill(why));
    }

    /// The worker that fills this slot.
    pub(crate) fn worker(&self, slot: SlotId, generation: Generation) -> Option<&Arc<Worker>> {
        self.workers.get(&slot).filter(|worker| worker.generation == generation)
    }

    /// A worker is reaped: its handle may go.
    pub(crate) fn forget(&mut self, slot: SlotId, generation: Generation) {
        if self.worker(slot, generation).is_some() {
            self.workers.remove(&slot);
        }
    }
}

impl Worker {
    /// Its HTTP door, once it is ready.
    pub(crate) fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.upstream.get()
    }

    /// What requests must be for it; `None` for our own workers, which take them as they are.
    pub(crate) fn dialect(&self) -> Option<&EngineDialect> {
        self.dialect.as_ref()
    }

    fn kill(&self, why: &'static str) {
        // The first reason is the one that counts.
        let _ = self.kill_reason.set(why);
        self.kill.cancel();
    }

    /// Waits for the order to kill it, and gives the reason.
    async fn killed(&self) -> &'static str {
        self.kill.cancelled().await;
        self.kill_reason.get().copied().unwrap_or_default()
    }
}

/// The time a load may take when nobody says: one minute, and 20 seconds for each GiB.
fn load_timeout_for(size: ByteCount) -> Duration {
    Duration::from_secs(60).saturating_add(Duration::from_secs_f64(20.0 * size.0 as f64 / ByteCount::gib(1).0 as f64))
}
