//! Worker processes: one runner task each, from spawn to reaping. The runners execute the core's `Spawn` and `Stop` and
//! report the results. They do not decide which model runs where, or whether to retry.

mod contract;
mod ended;
mod engine_gate;
mod log_file;
mod order;
mod output;
mod ports;
mod runner;
mod sockets;
mod start_line;
mod streams;
mod worker_log;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use model_boss_core::SlotKey;
use model_boss_protocol::{CpuShare, DeviceId, ModelId};
use runner::WorkerRunner;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::adapters::WorkerAdapters;
use crate::worker::Worker;

pub(crate) use engine_gate::{ENGINE_GATE, engine_gate};
pub(crate) use log_file::{earlier_log, log_path};
pub(crate) use order::{SpawnOrder, SupervisorSettings, Tools};
pub(crate) use output::LOGS;
pub(crate) use ports::Ports;
pub(crate) use streams::Streams;

/// Starts, watches and ends workers.
pub(crate) struct Supervisor {
    tools: Arc<Tools>,
    workers: HashMap<SlotKey, Arc<Worker>>,
}

impl Supervisor {
    /// A supervisor without workers.
    pub(crate) fn new(tools: Tools) -> Self {
        Self { tools: Arc::new(tools), workers: HashMap::new() }
    }

    /// Starts a worker. `WorkerExited` is reported exactly once, in every case.
    pub(crate) fn spawn(&mut self, order: SpawnOrder) {
        let devices: Vec<String> = order.parts.iter().map(|(device, _)| device.to_string()).collect();
        let worker = Arc::new(Worker {
            model: order.model.description.id.clone(),
            devices: devices.join(","),
            backend: order.backend,
            dialect: self.tools.catalog.engines().dialect(&order.model),
            upstream: OnceLock::new(),
            stop: CancellationToken::new(),
            parks: OnceLock::new(),
            era: self.tools.parking.era(&order.model.description.id),
            kill: CancellationToken::new(),
            kill_reason: OnceLock::new(),
            ended: CancellationToken::new(),
            adapters: WorkerAdapters::default(),
            share: watch::Sender::new(None),
        });
        let on_host = order.parts.iter().filter(|(device, _)| *device == DeviceId::Cpu).map(|(_, bytes)| *bytes).sum();
        self.tools.parking.make_room(&worker.model, on_host);
        self.workers.insert(order.slot, Arc::clone(&worker));
        tokio::spawn(WorkerRunner::new(order, worker, Arc::clone(&self.tools)).run());
    }

    /// Orders a worker to end. Its prefixes may be parked first, if `parks`; not in the place of the successor's.
    pub(crate) fn stop(&self, slot: SlotKey, parks: bool, successor: Option<ModelId>) {
        if let Some(worker) = self.worker(slot) {
            // A worker is stopped once.
            let _ = parks.then(|| worker.parks.set(successor));
            worker.stop.cancel();
        }
    }

    /// Tells a worker the threads that it computes with. Of several shares only the last one matters.
    pub(crate) fn share_cores(&self, slot: SlotKey, share: CpuShare) {
        if let Some(worker) = self.worker(slot) {
            worker.share.send_replace(Some(share));
        }
    }

    /// Ends a worker without grace.
    pub(crate) fn kill(&self, slot: SlotKey, why: &'static str) {
        if let Some(worker) = self.worker(slot) {
            worker.kill(why);
        }
    }

    /// Ends every worker without grace.
    pub(crate) fn kill_all(&self, why: &'static str) {
        self.workers.values().for_each(|worker| worker.kill(why));
    }

    /// The worker of this generation of the slot.
    pub(crate) fn worker(&self, slot: SlotKey) -> Option<&Arc<Worker>> {
        self.workers.get(&slot)
    }

    /// Drops the handle of a worker that was reaped.
    pub(crate) fn forget(&mut self, slot: SlotKey) {
        self.workers.remove(&slot);
    }
}
