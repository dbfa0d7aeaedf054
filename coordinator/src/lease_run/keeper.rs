//! The thread that asks for the lease and keeps it: its heartbeat depends on nothing that the program does.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use model_boss_lease_store::{
    Accounting, AcquireRequest, Acquired, DeviceDeclaration, DeviceKey, Evidence, Holder, LeaseHandle, Mode,
    Observation, Owner, OwnerKind, Process, ProcessTree, StoreError, Terms, Wish, process, this_process,
};
use model_boss_protocol::{ByteCount, DeviceId};
use tokio::sync::{mpsc as news, oneshot};

use super::{LeaseError, RunArgs};
use crate::error_chain::chain;
use crate::probe::{DeviceSample, HostProbe, NvidiaProbe, Probe, Probes};

/// Who waits asks this often: well within the lease time, so that the place in the queue is kept.
const ASK: Duration = Duration::from_secs(1);
/// A driver that needs longer for one sample is not waited for.
const SAMPLE_LIMIT: Duration = Duration::from_millis(500);
/// After the program has ended the device is looked at this often,
const RELEASE_INTERVAL: Duration = Duration::from_millis(50);
/// for at most so long; then the memory stays counted until somebody sees it free.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// What has happened to the lease.
#[derive(Debug)]
pub(super) enum News {
    /// Not yet granted.
    Waits {
        reason: String,
    },
    /// The memory is promised.
    Granted(Granted),
    /// It is asked back. With nothing remaining, the grace is over.
    Revoked {
        remaining: Duration,
        wanted_by: String,
    },
    /// It is gone: the program must end.
    Lost,
    /// The store cannot be reached, or can again.
    Away(String),
    Back,
    /// It will never be granted.
    Failed(LeaseError),
}

/// What was granted.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) lease: String,
    pub(super) parts: Vec<(DeviceId, ByteCount)>,
    /// The GPUs among them.
    pub(super) gpus: Vec<String>,
}

enum Order {
    Attach { pid: u32, reply: oneshot::Sender<Result<(), StoreError>> },
    Release { reply: oneshot::Sender<()> },
    Cancel { reply: oneshot::Sender<()> },
}

/// The handle of the thread.
pub(super) struct Keeper {
    orders: mpsc::Sender<Order>,
    news: news::UnboundedReceiver<News>,
}

impl Keeper {
    /// Reaches the ledger and begins to ask.
    pub(super) fn start(args: &RunArgs) -> Result<Self, LeaseError> {
        let owner = Owner::new(this_process()?, args.label(), OwnerKind::Job);
        let holder = Holder::redis(&args.place.redis, &args.place.runtime_dir(), owner.clone(), Terms::default())?;
        let system = |error| LeaseError::System("look at the devices", error);
        let probes = Probes::start(probes()).map_err(system)?;
        let (orders, inbox) = mpsc::channel();
        let (sender, news) = news::unbounded_channel();
        let request_id = format!("{}-{}-{}", owner.process.pid_ns, owner.process.pid, owner.process.start_time);
        let lease = Lease {
            holder,
            probes,
            news: sender,
            request_id,
            args: args.clone(),
            handle: None,
            attached: None,
            own: BTreeSet::new(),
            samples: Vec::new(),
            away: false,
        };
        std::thread::Builder::new()
            .name("lease".to_owned())
            .spawn(move || lease.run(&inbox))
            .map_err(|error| LeaseError::System("start the thread that keeps the lease", error))?;
        Ok(Self { orders, news })
    }

    /// What happens next; `None` when the thread has ended.
    pub(super) async fn next(&mut self) -> Option<News> {
        self.news.recv().await
    }

    /// The gate.
    pub(super) async fn attach(&self, pid: u32) -> Result<(), LeaseError> {
        let (reply, attached) = oneshot::channel();
        self.order(Order::Attach { pid, reply });
        Ok(attached.await.map_err(|_| LeaseError::Keeper)??)
    }

    /// Gives the memory back once no device shows the program any more.
    pub(super) async fn release(&self) {
        let (reply, done) = oneshot::channel();
        self.order(Order::Release { reply });
        // A thread that has ended keeps nothing alive: the lease expires, and is ended by whoever looks next.
        let _ = done.await;
    }

    /// Takes the request back.
    pub(super) async fn cancel(&self) {
        let (reply, done) = oneshot::channel();
        self.order(Order::Cancel { reply });
        let _ = done.await;
    }

    fn order(&self, order: Order) {
        // The thread ends only after this handle, or after its last order.
        let _ = self.orders.send(order);
    }
}

/// The eyes on the host's memory and, where there is a driver, its GPUs.
fn probes() -> Vec<Box<dyn Probe>> {
    let mut probes: Vec<Box<dyn Probe>> = vec![Box::new(HostProbe::new(None))];
    probes.extend(NvidiaProbe::new().ok().map(|nvidia| Box::new(nvidia) as Box<dyn Probe>));
    probes
}

/// What the thread owns.
struct Lease {
    holder: Holder,
    probes: Probes,
    news: news::UnboundedSender<News>,
    request_id: String,
    args: RunArgs,
    handle: Option<LeaseHandle>,
    attached: Option<Process>,
    /// Processes of the program that were seen on a device.
    own: BTreeSet<u32>,
    samples: Vec<DeviceSample>,
    away: bool,
}

impl Lease {
    fn run(mut self, inbox: &mpsc::Receiver<Order>) {
        let mut due = Instant::now();
        loop {
            if Instant::now() >= due {
                let next = match self.handle {
                    None => match self.ask() {
                        Ok(()) => ASK,
                        Err(error) => return self.tell(News::Failed(error)),
                    },
                    Some(_) => {
                        self.renew();
                        self.holder.heartbeat()
                    }
                };
                due = Instant::now() + if self.handle.is_some() { self.holder.heartbeat() } else { next };
            }
            match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Order::Attach { pid, reply }) => drop(reply.send(self.attach(pid))),
                Ok(Order::Release { reply }) => {
                    self.release();
                    // Nobody waits any more.
                    let _ = reply.send(());
                    return;
                }
                Ok(Order::Cancel { reply }) => {
                    if let Err(error) = self.holder.cancel(&self.request_id) {
                        tracing::debug!("the request could not be taken back: {}", chain(&error));
                    }
                    // Nobody waits any more.
                    let _ = reply.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn ask(&mut self) -> Result<(), LeaseError> {
        match self.look().and_then(|()| self.wish()).and_then(|request| Ok(self.holder.acquire(request)?)) {
            Ok(Acquired::Granted(handle)) => {
                let parts = self.holder.parts(&handle);
                let uuid = |device: &DeviceId| self.samples.iter().find(|s| s.device == *device)?.uuid.clone();
                let gpus = parts.iter().filter_map(|(device, _)| uuid(device)).collect();
                self.tell(News::Granted(Granted { lease: handle.lease.to_string(), parts, gpus }));
                self.handle = Some(handle);
                Ok(())
            }
            Ok(Acquired::Wait { position, reason, asked, .. }) => {
                let asked: Vec<String> =
                    asked.iter().map(|a| format!("{} has {} s", a.label, a.remaining.as_secs())).collect();
                let asked = if asked.is_empty() { String::new() } else { format!("; asked: {}", asked.join(", ")) };
                self.tell(News::Waits { reason: format!("{position} in the queue: {reason}{asked}") });
                Ok(())
            }
            Ok(Acquired::NeverFits { reason }) => Err(LeaseError::NeverFits(reason)),
            Err(LeaseError::Store(error)) if error.is_outage() => {
                self.tell(News::Waits { reason: chain(&error) });
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn wish(&self) -> Result<AcquireRequest, LeaseError> {
        let args = &self.args;
        let wish = if args.device.is_empty() {
            let devices: Vec<_> = self
                .samples
                .iter()
                .filter(|sample| sample.uuid.is_some())
                .map(|sample| sample.device.clone())
                .collect();
            if devices.is_empty() {
                return Err(LeaseError::NoGpu);
            }
            Wish::AnyOf { count: args.gpus, bytes: args.vram, devices }
        } else {
            if let Some(unknown) = args.device.iter().find(|d| !self.samples.iter().any(|s| s.device == **d)) {
                let known: Vec<_> = self.samples.iter().map(|sample| sample.device.to_string()).collect();
                return Err(LeaseError::NoDevice(unknown.clone(), known.join(", ")));
            }
            Wish::Parts(args.device.iter().map(|device| (device.clone(), args.vram)).collect())
        };
        let request = AcquireRequest::new(self.request_id.clone(), args.label(), args.priority, Vec::new());
        let mode = if args.preempt { Mode::Preempt } else { Mode::Wait };
        Ok(AcquireRequest { wish, mode, yielding: args.yielding(), ..request })
    }

    fn attach(&mut self, pid: u32) -> Result<(), StoreError> {
        let Some(handle) = self.handle.clone() else { return Err(StoreError::NoSuchProcess(pid)) };
        self.holder.attach(&handle, pid)?;
        self.attached = Some(process(pid)?);
        Ok(())
    }

    fn renew(&mut self) {
        let renewed = self.holder.renew();
        match renewed {
            Ok(kept) => {
                if std::mem::take(&mut self.away) {
                    self.tell(News::Back);
                }
                for revoked in kept.revoked {
                    self.tell(News::Revoked { remaining: revoked.remaining, wanted_by: revoked.wanted_by });
                }
                if !kept.lost.is_empty() {
                    self.tell(News::Lost);
                }
            }
            // Nothing is known to be lost: the program goes on, and nothing new is begun.
            Err(error) => {
                if !std::mem::replace(&mut self.away, true) {
                    self.tell(News::Away(chain(&error)));
                }
            }
        }
        if let Err(error) = self.look() {
            tracing::debug!("the devices could not be written to the ledger: {}", chain(&error));
        }
    }

    /// Looks at every device and writes it down, so that it works with no coordinator running.
    fn look(&mut self) -> Result<(), LeaseError> {
        let pids: Vec<u32> = self.attached.iter().map(|process| process.pid).collect();
        self.samples = self.probes.sample(&pids, SAMPLE_LIMIT);
        for sample in self.samples.clone() {
            let key = match (&sample.uuid, &sample.device) {
                (Some(uuid), _) => DeviceKey::gpu(uuid.as_str()),
                (None, DeviceId::Cpu) => DeviceKey::cpu(),
                (None, _) => continue,
            };
            let Some(capacity) = sample.capacity else { continue };
            let (device, reserve, accounting) = (sample.device.clone(), sample.reserve, Accounting::PerProcess);
            let declaration = DeviceDeclaration { device: device.clone(), key, capacity, reserve, accounting };
            if !self.holder.has_declared(&declaration) {
                self.holder.declare(&declaration)?;
            }
            let (used, sampled_at) = (sample.used, sample.sampled_at);
            self.holder.observe(&Observation { device, used, processes: sample.processes.clone(), sampled_at })?;
            if let Some(attached) = &self.attached {
                let tree = ProcessTree::of_this_host(attached.pid_ns.clone());
                let known = std::slice::from_ref(attached);
                let own = sample.processes.iter().map(|(pid, _)| *pid);
                self.own.extend(own.filter(|pid| tree.lineage(*pid, known).contains(attached)));
            }
        }
        Ok(())
    }

    fn release(&mut self) {
        let Some(handle) = self.handle.clone() else { return };
        let deadline = Instant::now() + RELEASE_LIMIT;
        let gone = loop {
            // Without the store the samples are there all the same.
            let _ = self.look();
            let dead = self.attached.as_ref().is_none_or(model_boss_lease_store::is_gone);
            let shown = self.samples.iter().flat_map(|s| &s.processes).any(|(pid, _)| self.own.contains(pid));
            if dead && !shown {
                break true;
            }
            if Instant::now() > deadline {
                break false;
            }
            std::thread::park_timeout(RELEASE_INTERVAL);
        };
        let evidence = if gone { Evidence::Gone } else { Evidence::None };
        while let Err(error) = self.holder.release(&handle, evidence) {
            if !error.is_outage() || Instant::now() > deadline {
                // It expires, and is ended by whoever looks next and finds its processes gone.
                tracing::debug!("the lease could not be released: {}", chain(&error));
                return;
            }
            std::thread::park_timeout(RELEASE_INTERVAL);
        }
    }

    fn tell(&self, news: News) {
        // Nobody listens any more: the program is about to end.
        let _ = self.news.send(news);
    }
}
