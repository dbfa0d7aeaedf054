//! The coordinator's side of the lease ledger: one OS thread owns the holder and the probes, because both may block. It
//! grants nothing itself; it asks the ledger, tells the driver, renews on time whatever else happens, and gives bytes back
//! only when the process is seen to be gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use model_boss_core::{DeviceObservation, Event};
use model_boss_lease_store::{
    Accounting, AcquireRequest, Acquired, DeviceDeclaration, DeviceKey, Evidence, Holder, LeaseHandle, LeaseView,
    Leftover, Owner, OwnerKind, PartView, Process, StoreError, Terms, is_gone, this_process,
};
use model_boss_lease_store::{Observation, process};
use model_boss_protocol::{ByteCount, DeviceId, Generation, ModelId, Priority, SlotId};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::driver::News;
use crate::error_chain::chain;
use crate::probe::{DeviceSample, Probe, Probes};

/// A driver that needs longer for one sample is not waited for.
const SAMPLE_LIMIT: Duration = Duration::from_millis(500);
/// Devices are looked at this often while a lease is held,
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// this often while none is,
const IDLE_INTERVAL: Duration = Duration::from_secs(4);
/// and this often while a process that ended still shows on a device (RC-18),
const RELEASE_INTERVAL: Duration = Duration::from_millis(50);
/// for at most so long: then its bytes stay charged in the ledger until they are seen to be free.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
/// A store that failed is asked again after this long.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// Processes of a former coordinator are given this long to go after SIGKILL.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(5);

/// The handle of the ledger's thread.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    commands: mpsc::Sender<LeaseCommand>,
}

/// What the ledger's thread needs to begin.
pub(crate) struct LeaseSetup {
    /// Where the ledger is.
    pub(crate) state_dir: PathBuf,
    /// Where the locks of this host's devices are.
    pub(crate) runtime_dir: PathBuf,
    /// How long leases last.
    pub(crate) terms: Terms,
    /// The eyes on the devices.
    pub(crate) probes: Vec<Box<dyn Probe>>,
    /// Where reports go.
    pub(crate) news: News,
}

/// What is known once the ledger is open.
pub(crate) struct LeaseStart {
    /// The handle.
    pub(crate) leases: Leases,
    /// What the devices show, kept up to date.
    pub(crate) devices: DeviceTable,
    /// The store, for people.
    pub(crate) store: String,
    /// Set when the thread has ended, which it must not.
    pub(crate) ended: CancellationToken,
}

/// The devices as last seen. Written by the ledger's thread only.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceTable(Arc<RwLock<Vec<DeviceSample>>>);

enum LeaseCommand {
    Acquire { slot: SlotId, generation: Generation, request: AcquireRequest },
    Attach { slot: SlotId, generation: Generation, pid: u32, reply: oneshot::Sender<Result<(), StoreError>> },
    Release { slot: SlotId, generation: Generation },
    List { reply: oneshot::Sender<Vec<LeaseView>> },
}

/// The ledger could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseStartError {
    /// The ledger itself.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No thread.
    #[error("cannot start the thread that keeps the lease ledger")]
    Thread(#[source] std::io::Error),
    /// The thread went away without a word.
    #[error("the thread that keeps the lease ledger ended while it started")]
    Ended,
    /// Processes of a former coordinator do not die.
    #[error("processes of an earlier coordinator still hold memory and do not end: {0}")]
    Leftovers(String),
}

impl Leases {
    /// Opens the ledger, ends what an earlier coordinator left behind, looks at the devices once and starts the thread.
    pub(crate) async fn start(setup: LeaseSetup) -> Result<LeaseStart, LeaseStartError> {
        let (commands, inbox) = mpsc::channel();
        let (reply, opened) = oneshot::channel();
        let devices = DeviceTable::default();
        let table = devices.clone();
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        std::thread::Builder::new()
            .name("leases".into())
            .spawn(move || {
                let _guard = guard;
                match Ledger::open(setup, table) {
                    Ok(ledger) => {
                        // Nobody waits for a start that was given up.
                        let _ = reply.send(Ok(ledger.holder.describe()));
                        ledger.run(&inbox);
                    }
                    Err(error) => drop(reply.send(Err(error))),
                }
            })
            .map_err(LeaseStartError::Thread)?;
        let store = opened.await.map_err(|_| LeaseStartError::Ended)??;
        Ok(LeaseStart { leases: Self { commands }, devices, store, ended })
    }

    /// Asks for bytes; answered with `LeaseGranted` or `LeaseRefused`.
    pub(crate) fn acquire(
        &self,
        slot: SlotId,
        generation: Generation,
        model: ModelId,
        parts: Vec<(DeviceId, ByteCount)>,
        priority: Priority,
    ) {
        // The ledger's thread makes the request id unique among everything ever asked.
        let request_id = format!("{slot}-{generation}");
        let request = AcquireRequest::new(request_id, model.as_str(), priority, parts);
        self.send(LeaseCommand::Acquire { slot, generation, request });
    }

    /// The gate: lets a process through to the devices of its lease. An error says why not.
    pub(crate) async fn attach(&self, slot: SlotId, generation: Generation, pid: u32) -> Result<(), String> {
        let (reply, attached) = oneshot::channel();
        self.send(LeaseCommand::Attach { slot, generation, pid, reply });
        match attached.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(chain(&error)),
            Err(_) => Err("the lease ledger is closed".to_owned()),
        }
    }

    /// Gives the bytes of a reaped worker back; answered with `LeaseReleased`.
    pub(crate) fn release(&self, slot: SlotId, generation: Generation) {
        self.send(LeaseCommand::Release { slot, generation });
    }

    /// Every lease of this host.
    pub(crate) async fn list(&self) -> Vec<LeaseView> {
        let (reply, list) = oneshot::channel();
        self.send(LeaseCommand::List { reply });
        list.await.unwrap_or_default()
    }

    fn send(&self, command: LeaseCommand) {
        // The thread ends only after the last handle is gone.
        let _ = self.commands.send(command);
    }
}

impl DeviceTable {
    /// What was last seen.
    pub(crate) fn samples(&self) -> Vec<DeviceSample> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The identity of a GPU.
    pub(crate) fn uuid_of(&self, device: &DeviceId) -> Option<String> {
        let samples = self.0.read().unwrap_or_else(PoisonError::into_inner);
        samples.iter().find(|sample| sample.device == *device)?.uuid.clone()
    }

    fn set(&self, samples: Vec<DeviceSample>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = samples;
    }
}

type Filling = (SlotId, Generation);

/// What the thread owns.
struct Ledger {
    holder: Holder,
    probes: Probes,
    news: News,
    table: DeviceTable,
    /// Makes request ids unique across restarts.
    run: String,
    held: HashMap<Filling, Held>,
    releasing: Vec<(Filling, Instant)>,
    declared: BTreeMap<DeviceId, (ByteCount, ByteCount)>,
    /// Some lease was released without proof: it is looked for at each heartbeat.
    unsettled: bool,
}

struct Held {
    handle: LeaseHandle,
    pid: Option<u32>,
    /// The most that the scheduler was told of its use.
    told: Vec<(DeviceId, ByteCount)>,
}

impl Ledger {
    fn open(setup: LeaseSetup, table: DeviceTable) -> Result<Self, LeaseStartError> {
        let LeaseSetup { state_dir, runtime_dir, terms, probes, news } = setup;
        let owner = this_process()?;
        let run = format!("{}-{}", owner.pid, owner.start_time);
        let owner = Owner::new(owner, "coordinator", OwnerKind::Coordinator);
        let mut holder = Holder::embedded(&state_dir, &runtime_dir, owner, terms)?;
        end_leftovers(&mut holder)?;
        let probes = Probes::start(probes).map_err(LeaseStartError::Thread)?;
        let mut ledger = Self {
            holder,
            probes,
            news,
            table,
            run,
            held: HashMap::new(),
            releasing: Vec::new(),
            declared: BTreeMap::new(),
            unsettled: false,
        };
        ledger.look()?;
        Ok(ledger)
    }

    fn run(mut self, inbox: &mpsc::Receiver<LeaseCommand>) {
        let mut renewed = Instant::now();
        let mut looked = Instant::now();
        loop {
            let interval = match (self.releasing.is_empty(), self.held.is_empty()) {
                (false, _) => RELEASE_INTERVAL,
                (true, false) => WATCH_INTERVAL,
                (true, true) => IDLE_INTERVAL,
            };
            let due = (renewed + self.holder.heartbeat()).min(looked + interval);
            match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(command) => self.command(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if renewed.elapsed() >= self.holder.heartbeat() {
                self.renew();
                renewed = Instant::now();
            }
            if looked.elapsed() >= interval {
                self.look_or_log();
                self.finish_releases();
                looked = Instant::now();
            }
        }
    }

    fn command(&mut self, command: LeaseCommand) {
        match command {
            LeaseCommand::Acquire { slot, generation, request } => self.acquire((slot, generation), request),
            LeaseCommand::Attach { slot, generation, pid, reply } => {
                let attached = match self.held.get_mut(&(slot, generation)) {
                    Some(held) => self.holder.attach(&held.handle, pid).inspect(|()| held.pid = Some(pid)),
                    None => Err(StoreError::NoSuchProcess(pid)),
                };
                // A runner that was stopped meanwhile kills its process itself.
                let _ = reply.send(attached);
            }
            LeaseCommand::Release { slot, generation } => {
                self.releasing.push(((slot, generation), Instant::now()));
                self.look_or_log();
                self.finish_releases();
            }
            LeaseCommand::List { reply } => drop(reply.send(self.holder.leases())),
        }
    }

    fn acquire(&mut self, filling: Filling, mut request: AcquireRequest) {
        request.request_id = format!("{}-{}", self.run, request.request_id);
        // Every acquirer looks first: nothing is granted on an old or missing observation.
        self.look_or_log();
        let (reason, retry_after) = match self.holder.acquire(request) {
            Ok(Acquired::Granted(handle)) => {
                self.held.insert(filling, Held { handle, pid: None, told: Vec::new() });
                let (slot, generation) = filling;
                self.news.event(Event::LeaseGranted { slot, generation });
                return;
            }
            Ok(Acquired::Wait { reason, retry_after, .. }) => (reason, retry_after),
            Ok(Acquired::NeverFits { reason }) => (reason, RELEASE_LIMIT),
            Err(error) => (chain(&error), STORE_RETRY),
        };
        let (slot, generation) = filling;
        self.news.event(Event::LeaseRefused { slot, generation, reason, retry_after });
    }

    fn renew(&mut self) {
        match self.holder.renew() {
            Ok(kept) => {
                for lease in kept.lost {
                    if let Some((filling, _)) = self.held.iter().find(|(_, held)| held.handle == lease) {
                        tracing::error!(lease = %lease.lease, "lease lost, its worker is ended");
                        self.news.lease_lost(filling.0, filling.1);
                    }
                }
            }
            Err(error) => tracing::warn!("leases could not be renewed: {}", chain(&error)),
        }
        if self.unsettled {
            match self.holder.settle() {
                Ok(living) => self.unsettled = !living.is_empty(),
                Err(error) => tracing::warn!("leases could not be settled: {}", chain(&error)),
            }
        }
    }

    fn look_or_log(&mut self) {
        if let Err(error) = self.look() {
            tracing::warn!("devices could not be written to the lease ledger: {}", chain(&error));
        }
    }

    /// Looks at every device, writes it down, and tells the scheduler.
    fn look(&mut self) -> Result<(), StoreError> {
        let pids: Vec<u32> = self.held.values().filter_map(|held| held.pid).collect();
        let samples = self.probes.sample(&pids, SAMPLE_LIMIT);
        self.table.set(samples.clone());
        for sample in samples {
            let foreign = self.write_down(&sample)?;
            let DeviceSample { device, capacity, reserve, retention, exclusive, .. } = sample;
            let observation = DeviceObservation { device, capacity, reserve, foreign, retention, exclusive };
            self.news.event(Event::DeviceObserved(observation));
        }
        self.tell_measured();
        Ok(())
    }

    /// Tells the scheduler what the workers were seen to use, when that is more than it was told.
    fn tell_measured(&mut self) {
        if self.held.values().all(|held| held.pid.is_none()) {
            return;
        }
        let leases = self.holder.leases();
        for (&(slot, generation), held) in &mut self.held {
            let Some(lease) = leases.iter().find(|lease| lease.lease == held.handle.lease) else { continue };
            let part = |part: &PartView| {
                // A driver that does not tell processes apart shows nothing, which is not zero (RC-21).
                let bytes = part.measured.filter(|bytes| *bytes > ByteCount::ZERO)?;
                Some((part.device.parse().ok()?, bytes))
            };
            let parts: Vec<(DeviceId, ByteCount)> = lease.parts.iter().filter_map(part).collect();
            let more = |(device, bytes): &(DeviceId, ByteCount)| {
                held.told.iter().find(|(told, _)| told == device).is_none_or(|(_, told)| bytes > told)
            };
            if parts.iter().any(more) {
                held.told.clone_from(&parts);
                self.news.event(Event::Measured { slot, generation, parts });
            }
        }
    }

    fn write_down(&mut self, sample: &DeviceSample) -> Result<Option<ByteCount>, StoreError> {
        let (device, reserve) = (sample.device.clone(), sample.reserve);
        let key = match (&sample.uuid, &device) {
            (Some(uuid), _) => DeviceKey::gpu(uuid.as_str()),
            (None, DeviceId::Cpu) => DeviceKey::cpu(),
            // Declared ones are known by the name the operator gave.
            (None, DeviceId::Npu | DeviceId::Custom(_)) => DeviceKey::gpu(format!("declared-{device}")),
            // A GPU that cannot be told from another cannot be leased.
            (None, _) => return Ok(None),
        };
        let Some(capacity) = sample.capacity else { return Ok(None) };
        if self.declared.get(&device) != Some(&(capacity, reserve)) {
            let accounting = Accounting::PerProcess;
            self.holder.declare(&DeviceDeclaration { device: device.clone(), key, capacity, reserve, accounting })?;
            self.declared.insert(device.clone(), (capacity, reserve));
        }
        self.holder.observe(&Observation {
            device,
            used: sample.used,
            processes: sample.processes.clone(),
            sampled_at: sample.sampled_at,
        })
    }

    /// Releases what no device shows any more.
    fn finish_releases(&mut self) {
        let showing: BTreeSet<u32> =
            self.table.samples().iter().flat_map(|sample| sample.processes.iter().map(|(pid, _)| *pid)).collect();
        let (done, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.releasing).into_iter().partition(|(filling, since)| {
                let pid = self.held.get(filling).and_then(|held| held.pid);
                pid.is_none_or(|pid| !showing.contains(&pid)) || since.elapsed() >= RELEASE_LIMIT
            });
        self.releasing = waiting;
        for ((slot, generation), _) in done {
            if let Some(held) = self.held.remove(&(slot, generation)) {
                let leaks = held.pid.is_some_and(|pid| showing.contains(&pid));
                let evidence = if leaks { Evidence::None } else { Evidence::Gone };
                self.unsettled |= leaks;
                if let Err(error) = self.holder.release(&held.handle, evidence) {
                    tracing::warn!("a lease could not be released: {}", chain(&error));
                    self.unsettled = true;
                }
            }
            self.news.event(Event::LeaseReleased { slot, generation });
        }
    }
}

/// Ends the processes that a coordinator which is gone left behind: only those whose number and start time are in its
/// leases.
fn end_leftovers(holder: &mut Holder) -> Result<(), LeaseStartError> {
    let deadline = Instant::now() + LEFTOVER_LIMIT;
    loop {
        let leftovers = holder.settle()?;
        if leftovers.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let name = |leftover: &Leftover| format!("{} {:?}", leftover.label, leftover.processes);
            return Err(LeaseStartError::Leftovers(leftovers.iter().map(name).collect::<Vec<_>>().join(", ")));
        }
        for leftover in &leftovers {
            for old in leftover.processes.iter().filter(|old| !is_gone(old)) {
                tracing::warn!(model = leftover.label, pid = old.pid, "ending a worker of an earlier coordinator");
                end(old);
            }
        }
        std::thread::park_timeout(RELEASE_INTERVAL);
    }
}

fn end(old: &Process) {
    // The number alone could be somebody else's by now.
    let same = process(old.pid).is_ok_and(|now| now.start_time == old.start_time);
    if same && let Ok(pid) = i32::try_from(old.pid) {
        // An error means that it is gone already.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
