//! The coordinator's side of the lease ledger: one OS thread owns the holder and the probes, because both may block. It
//! grants nothing itself; it asks the ledger, tells the driver, renews on time whatever else happens, and gives bytes back
//! only when the process is seen to be gone. While the store is out of reach nothing is forgotten and nothing new begins.

mod guests;
mod keeper;
mod leaks;
mod leftovers;
mod look;
mod opening;
mod workers;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, mpsc};
use std::time::Duration;

use keeper::Ledger;
use model_boss_core::LedgerState;
use model_boss_lease_store::{Document, StoreError, Swap, Terms};
use model_boss_protocol::{ByteCount, DeviceId, Generation, ModelId, Priority, SlotId};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error_chain::chain;
use crate::probe::{DeviceSample, Probe};
use crate::scheduling::News;

pub(crate) use guests::Answer;
pub(crate) use opening::StoreChoice;

/// The handle of the ledger's thread.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    commands: mpsc::Sender<LeaseCommand>,
}

/// What the ledger's thread needs to begin.
pub(crate) struct LeaseSetup {
    /// Where the ledger is.
    pub(crate) store: StoreChoice,
    /// Where it is said who counts this host's devices, if not where everybody finds it.
    pub(crate) runtime_dir: Option<PathBuf>,
    /// How long leases last.
    pub(crate) terms: Terms,
    /// What programs without a lease use on a device whose driver does not tell processes apart.
    pub(crate) foreign: ByteCount,
    /// How long the memory of an ended worker is waited for before its device is said to be leaking.
    pub(crate) return_patience: Duration,
    /// The eyes on the devices.
    pub(crate) probes: Vec<Box<dyn Probe>>,
    /// Where reports go.
    pub(crate) news: News,
}

/// What is known once the ledger is open, or its store is known to be out of reach.
pub(crate) struct LeaseStart {
    /// The handle.
    pub(crate) leases: Leases,
    /// What the devices show, kept up to date.
    pub(crate) devices: DeviceTable,
    /// How the store is, kept up to date.
    pub(crate) store: StoreWatch,
    /// Set when the thread has ended, which it must not.
    pub(crate) ended: CancellationToken,
}

/// The devices as last seen. Written by the ledger's thread only.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceTable(Arc<RwLock<LastLook>>);

/// What the probes gave at the last look.
#[derive(Debug, Default)]
struct LastLook {
    samples: Vec<DeviceSample>,
    /// What is wrong with the probes themselves.
    problems: Vec<String>,
}

/// How the store is. Written by the ledger's thread only.
#[derive(Clone, Debug)]
pub(crate) struct StoreWatch(Arc<RwLock<StoreStatus>>);

/// How the lease store is, for people and probes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct StoreStatus {
    /// What and where it is, without credentials.
    pub(crate) store: String,
    /// Whether memory can be leased now.
    #[serde(flatten)]
    pub(crate) state: LedgerState,
    /// Whether it was ever reached: before that nothing is loaded, so nothing can be served.
    pub(crate) reached: bool,
    /// What is wrong with how other processes of this host are seen, if anything is.
    #[serde(skip)]
    pub(crate) warnings: Vec<String>,
}

/// What the ledger's thread is told.
enum LeaseCommand {
    Acquire {
        slot: SlotId,
        generation: Generation,
        ask: Ask,
    },
    Wait(Ask),
    Forgo(ModelId),
    Attach {
        slot: SlotId,
        generation: Generation,
        pid: u32,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    Release {
        slot: SlotId,
        generation: Generation,
    },
    /// Anything else that is done there; gets an error in place of the ledger while there is none.
    Do(Job),
}

/// What a model wants.
#[derive(Clone, Debug, PartialEq)]
struct Ask {
    model: ModelId,
    parts: Vec<(DeviceId, ByteCount)>,
    priority: Priority,
    /// Whether others are asked to make way.
    preempt: bool,
    /// Whether more important holders may ask for it back.
    yields: bool,
}

type Job = Box<dyn FnOnce(Result<&mut Ledger, StoreError>) + Send>;

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
}

impl Leases {
    /// Starts the thread. It opens the ledger, ends what an earlier coordinator left behind and looks at the devices. A
    /// store that is out of reach is tried again for as long as it takes; one that cannot be used is an error.
    pub(crate) async fn start(setup: LeaseSetup) -> Result<LeaseStart, LeaseStartError> {
        let (commands, inbox) = mpsc::channel();
        let (reply, begun) = oneshot::channel();
        let (devices, store) = (DeviceTable::default(), StoreWatch::new(setup.store.describe()));
        let (table, watch) = (devices.clone(), store.clone());
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        std::thread::Builder::new()
            .name("leases".into())
            .spawn(move || {
                let _guard = guard;
                keeper::keep(setup, &table, &watch, reply, &inbox);
            })
            .map_err(LeaseStartError::Thread)?;
        begun.await.map_err(|_| LeaseStartError::Ended)??;
        Ok(LeaseStart { leases: Self { commands }, devices, store, ended })
    }

    /// Asks for bytes; answered with `LeaseGranted` or `LeaseRefused`. One that is refused keeps its model's place in the
    /// queue.
    pub(crate) fn acquire(
        &self,
        slot: SlotId,
        generation: Generation,
        model: ModelId,
        parts: Vec<(DeviceId, ByteCount)>,
        priority: Priority,
        yields: bool,
    ) {
        self.send(LeaseCommand::Acquire {
            slot,
            generation,
            ask: Ask { model, parts, priority, preempt: false, yields },
        });
    }

    /// Takes or keeps a place in the ledger's queue for a model that cannot be loaded yet.
    pub(crate) fn wait_for(
        &self,
        model: ModelId,
        parts: Vec<(DeviceId, ByteCount)>,
        priority: Priority,
        preempt: bool,
    ) {
        self.send(LeaseCommand::Wait(Ask { model, parts, priority, preempt, yields: true }));
    }

    /// Leaves the queue.
    pub(crate) fn forgo(&self, model: ModelId) {
        self.send(LeaseCommand::Forgo(model));
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

    /// A worker has loaded what it needs. Where the driver does not tell processes apart, the next load may begin.
    pub(crate) fn loaded(&self, slot: SlotId, generation: Generation) {
        self.send(LeaseCommand::Do(Box::new(move |ledger| {
            // While there is no ledger nothing is loaded.
            if let Ok(ledger) = ledger {
                ledger.loaded((slot, generation));
            }
        })));
    }

    /// Gives the bytes of a reaped worker back; answered with `LeaseReleased`, which waits for the store if it must.
    pub(crate) fn release(&self, slot: SlotId, generation: Generation) {
        self.send(LeaseCommand::Release { slot, generation });
    }

    /// A small document of the store, shared by everybody who uses it: runtime configuration, learned sizes.
    pub(crate) async fn load_document(&self, name: &'static str) -> Result<Document, StoreError> {
        self.on_thread(move |ledger| {
            let document = ledger.holder.load_document(name);
            ledger.done(&document);
            document
        })
        .await
    }

    /// Changes a small document if nobody else did since it was loaded.
    pub(crate) async fn swap_document(
        &self,
        name: &'static str,
        loaded: Document,
        content: String,
    ) -> Result<Swap, StoreError> {
        self.on_thread(move |ledger| {
            let swapped = ledger.holder.swap_document(name, &loaded, &content);
            ledger.done(&swapped);
            swapped
        })
        .await
    }

    /// Does something on the ledger's thread, between its other work.
    async fn on_thread<T: Send + 'static, E: From<StoreError> + Send + 'static>(
        &self,
        act: impl FnOnce(&mut Ledger) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let (reply, done) = oneshot::channel();
        self.send(LeaseCommand::Do(Box::new(move |ledger| {
            // Nobody waits any more.
            let _ = reply.send(ledger.map_err(E::from).and_then(act));
        })));
        done.await.unwrap_or_else(|_| Err(StoreError::Host("the thread that keeps the ledger").into()))
    }

    fn send(&self, command: LeaseCommand) {
        // The thread ends only after the last handle is gone.
        let _ = self.commands.send(command);
    }
}

impl DeviceTable {
    /// What was last seen.
    pub(crate) fn samples(&self) -> Vec<DeviceSample> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).samples.clone()
    }

    /// Whether any device or probe is not as it should be.
    pub(crate) fn is_in_trouble(&self) -> bool {
        let look = self.0.read().unwrap_or_else(PoisonError::into_inner);
        !look.problems.is_empty() || look.samples.iter().any(|sample| sample.trouble.is_some())
    }

    /// What is wrong with devices and probes now, for people.
    pub(crate) fn problems(&self) -> Vec<String> {
        let look = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let in_trouble = look.samples.iter().filter_map(|sample| {
            let DeviceSample { device, name, uuid, trouble, .. } = sample;
            let uuid = uuid.as_deref().map(|uuid| format!(", {uuid}")).unwrap_or_default();
            trouble.as_ref().map(|trouble| format!("{device} ({name}{uuid}): {trouble}"))
        });
        in_trouble.chain(look.problems.iter().cloned()).collect()
    }

    /// The identity of a GPU.
    pub(crate) fn uuid_of(&self, device: &DeviceId) -> Option<String> {
        let look = self.0.read().unwrap_or_else(PoisonError::into_inner);
        look.samples.iter().find(|sample| sample.device == *device)?.uuid.clone()
    }

    fn set(&self, samples: Vec<DeviceSample>, problems: Vec<String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = LastLook { samples, problems };
    }
}

impl StoreWatch {
    fn new(store: String) -> Self {
        let state = LedgerState::Away { detail: "it was not asked yet".to_owned() };
        Self(Arc::new(RwLock::new(StoreStatus { store, state, reached: false, warnings: Vec::new() })))
    }

    /// How the store is now.
    pub(crate) fn status(&self) -> StoreStatus {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn update(&self, change: impl FnOnce(&mut StoreStatus)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}
