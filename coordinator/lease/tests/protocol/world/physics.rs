//! The true state of processes and the memory they hold.

use model_boss_lease::{LeaseId, Process, ProcessUse, StoreTime};

use super::{NAMESPACE, World, bytes, device};

/// The bytes that a program without a lease uses of each device.
pub(super) const FOREIGN: [u64; 2] = [2, 0];

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Physics {
    /// Workers that passed the gate and hold memory, alive or remaining in the driver.
    pub(super) workers: Vec<Worker>,
    /// An observation that is not recorded yet.
    pub(super) sample: Option<Sample>,
    /// The newest recorded sample of each device.
    pub(super) newest: [Option<Sample>; 2],
    /// The number of worker starts by client; their process ids repeat.
    pub(super) starts: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    pub(super) client: usize,
    pub(super) lease: LeaseId,
    pub(super) process: Process,
    /// The promised bytes on each device.
    pub(super) promised: [u64; 2],
    /// The part of the promised bytes taken so far.
    pub(super) taken: [u64; 2],
    /// The bytes taken beyond the promise.
    pub(super) extra: u64,
    pub(super) alive: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sample {
    pub(super) device: usize,
    pub(super) used: Option<u64>,
    pub(super) processes: Vec<ProcessUse>,
    pub(super) at: StoreTime,
}

impl Worker {
    pub(super) fn uses(&self, device: usize) -> u64 {
        match self.taken[device] {
            0 => 0,
            taken => taken + self.extra,
        }
    }
}

/// The processes of a client's worker have the same ids at every start.
pub(super) fn worker_process(client: usize, start_time: u64) -> Process {
    Process { pid: 100 + u32::try_from(client).unwrap_or(0), start_time, pid_ns: NAMESPACE.to_owned() }
}

/// The memory is held by a child of the worker, as by a rank of a training job.
fn child_of(worker: &Process) -> Process {
    Process { pid: worker.pid + 100, ..worker.clone() }
}

impl Physics {
    pub(super) fn look(&self, number: usize, at: StoreTime) -> Sample {
        let using = || self.workers.iter().filter(|worker| worker.uses(number) > 0);
        let used = FOREIGN[number] + using().map(|worker| worker.uses(number)).sum::<u64>();
        let processes = using()
            .filter(|worker| worker.alive)
            .map(|worker| ProcessUse {
                lineage: vec![child_of(&worker.process), worker.process.clone()],
                bytes: bytes(worker.uses(number)),
            })
            .collect();
        Sample { device: number, used: Some(used), processes, at }
    }

    pub(super) fn worker_of(&self, client: usize) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.client == client && worker.alive)
    }

    pub(super) fn is_through(&self, client: usize) -> bool {
        self.worker_of(client).is_some()
    }

    pub(super) fn stop(&mut self, client: usize) {
        for worker in self.workers.iter_mut().filter(|worker| worker.client == client) {
            worker.alive = false;
        }
    }

    /// The process of a client's next worker.
    pub(super) fn start(&mut self, client: usize) -> Process {
        self.starts.resize(self.starts.len().max(client + 1), 0);
        self.starts[client] += 1;
        worker_process(client, self.starts[client])
    }

    pub(super) fn former_processes(&self, clients: usize) -> Vec<Process> {
        let mut gone = Vec::new();
        for client in 0..clients {
            let starts = self.starts.get(client).copied().unwrap_or(0);
            for start in 1..=starts {
                let process = worker_process(client, start);
                if !self.workers.iter().any(|worker| worker.alive && worker.process == process) {
                    gone.extend([child_of(&process), process]);
                }
            }
        }
        gone
    }
}

impl World {
    pub(super) fn observe(&mut self, number: usize) {
        let sample = self.physics.look(number, self.store.clock);
        self.write_down(sample);
    }

    pub(super) fn write_down(&mut self, sample: Sample) {
        // A coordinator declares its devices again if the ledger does not have them.
        if self.store.document.as_ref().is_none_or(|ledger| !ledger.devices.contains_key(&device(sample.device))) {
            self.declare();
        }
        let op = model_boss_lease::Op::Observe {
            device: device(sample.device),
            used: sample.used.map(bytes),
            processes: sample.processes.clone(),
            sampled_at: sample.at,
        };
        let seen = |world: &Self| {
            let ledger = world.store.document.as_ref();
            ledger.and_then(|ledger| ledger.devices.get(&device(sample.device))).and_then(|device| device.observed_at)
        };
        let before = seen(self);
        self.transact(None, op);
        // An older sample, or another one of the same moment, changes nothing.
        if before != Some(sample.at) && seen(self) == Some(sample.at) {
            let number = sample.device;
            self.physics.newest[number] = Some(sample);
        }
    }
}
