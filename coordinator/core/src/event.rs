//! What happens to the scheduler, and what it wants done. With [`Order`](crate::Order) these enums are the whole contract
//! between the core, which decides, and the shell, which acts.

use std::time::Duration;

use model_boss_protocol::{
    ApiError, ByteCount, Category, ClientId, DeviceId, Generation, KeepAlive, LlamaArgs, ModelId, Priority, RequestId,
    Residency, ResidencyMode, SlotId, WorkerExit,
};
use serde::{Deserialize, Serialize};

use crate::{Ladder, LedgerState, Moment, OtherLease, OtherRequest, RungChoice, Settings};

/// News for the scheduler. News about a slot carries the generation it is about; older generations are ignored.
#[derive(Clone, Debug)]
pub enum Event {
    /// The manifests were read, or read again: the full list of models.
    Catalog(Vec<ModelDescription>),
    /// What a device has, as its probe sees it now.
    DeviceObserved(DeviceObservation),
    /// The client of a request went away. Ends the request at every stage: one that waits leaves the queue, one that was
    /// dispatched gives its place back, of one that ended nothing is left to change. Nothing else has to follow.
    Cancel(RequestId),
    /// A request ended. Every outcome but [`Outcome::LostBeforeAnswer`] is its end at every stage, as `Cancel` is.
    Finished {
        /// Which request.
        request: RequestId,
        /// How it ended.
        outcome: Outcome,
        /// Tokens of prompt and answer, when the answer said so.
        tokens: Option<u64>,
    },
    /// What a dispatched request was sent to cannot answer it, and no byte was sent on. It goes to the next rung of its
    /// ladder; without one, `error` is its final answer. Answered with `Dispatch`, `DispatchCloud` or `Refuse`.
    RungFailed {
        /// Which request.
        request: RequestId,
        /// What the client is told when nothing else can answer.
        error: ApiError,
    },
    /// The settings were changed while the process runs.
    Settings(Box<Settings>),
    /// Whether memory can be leased changed.
    Ledger(LedgerState),
    /// What other holders have and want in the ledger changed.
    Others {
        /// Their leases.
        leases: Vec<OtherLease>,
        /// Their requests that wait, first come first.
        requests: Vec<OtherRequest>,
    },
    /// Somebody more important asks for the bytes of this slot. Told again at every heartbeat while it is so.
    LeaseRevoked {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// Who asks, for people.
        by: String,
        /// How important that is.
        priority: Priority,
        /// How long there still is.
        remaining: Duration,
    },
    /// The bytes of this slot are not asked for any more.
    LeaseKept {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
    },
    /// The ledger holds the bytes for this slot.
    LeaseGranted {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
    },
    /// The ledger does not give the bytes now.
    LeaseRefused {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// Why, for people.
        reason: String,
        /// When asking again makes sense.
        retry_after: Duration,
    },
    /// The worker's process exists and has its start line.
    WorkerStarted {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// The process.
        pid: u32,
        /// Where it will listen, on 127.0.0.1.
        port: u16,
    },
    /// The worker reads its weights.
    WorkerProgress {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// Share read, 0 to 1.
        progress: f32,
    },
    /// The worker answered its health check with its own proof.
    WorkerReady {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// The context it serves, in tokens.
        context_length: Option<u64>,
    },
    /// The worker is gone: reaped, whatever the reason.
    WorkerExited {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// How it ended.
        exit: ExitReport,
    },
    /// What the probe shows for the worker's process tree once it is ready. Raises what is charged for the slot, and is
    /// learned (RC-20).
    Measured {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// The bytes used on each device; devices that are not among the slot's own are passed over.
        parts: Vec<(DeviceId, ByteCount)>,
    },
    /// What was learned in earlier lives of the process.
    Footprints(Vec<Footprint>),
    /// The lease is released and the driver shows the bytes back.
    LeaseReleased {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
    },
    /// The process is asked to end: refuse what is new, finish what runs, then stop every worker.
    Drain,
    /// Nothing happened but time.
    Tick,
}

/// What the scheduler wants done. The shell does it and reports back with an [`Event`].
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Reserve bytes in the ledger; answer with `LeaseGranted` or `LeaseRefused`.
    AcquireLease {
        /// For which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// For which model.
        model: ModelId,
        /// How much on which device. Never `auto`.
        parts: Vec<(DeviceId, ByteCount)>,
        /// The importance of whoever caused the load.
        priority: Priority,
        /// Whether somebody more important may ask for them back.
        yields: bool,
    },
    /// Take or keep a place in the ledger's queue for a model, before room is made for it: what becomes free is then not
    /// taken by those who come later. The `AcquireLease` of the model takes the place with it.
    AwaitLease {
        /// For which model.
        model: ModelId,
        /// How much on which device.
        parts: Vec<(DeviceId, ByteCount)>,
        /// The importance of who asks.
        priority: Priority,
        /// Ask less important holders that allow it to give memory back.
        preempt: bool,
    },
    /// Leave the ledger's queue.
    ForgoLease {
        /// Which model.
        model: ModelId,
    },
    /// Start the worker behind its gate; answer with `WorkerStarted`, then `WorkerReady` or `WorkerExited`.
    Spawn {
        /// For which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// Which model.
        model: ModelId,
        /// Where, and how much on each device. Never `auto`; more than one device is a split (RC-22).
        parts: Vec<(DeviceId, ByteCount)>,
        /// The context to serve, when a load asked for another one than the manifest's.
        context: Option<u64>,
        /// What a load asked of its engine.
        engine: EngineOptions,
        /// Whether its layers have to come and go to fit into these parts, and through how large a window.
        residency: Residency,
    },
    /// End the worker: SIGTERM, grace, SIGKILL, wait; answer with `WorkerExited`.
    Stop {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
    },
    /// Give the bytes back, with the evidence that the processes are gone; answer with `LeaseReleased`.
    ReleaseLease {
        /// Of which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
    },
    /// Send the request to this worker now; answer with `Finished`.
    Dispatch {
        /// Which request.
        request: RequestId,
        /// To which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// How important it is, after the limits of its client.
        priority: Priority,
        /// How long it waited in the queue.
        queued: Duration,
        /// How much of that was a load it caused or shared.
        loading: Duration,
        /// Which rung of its ladder that is, and why.
        rung: RungChoice,
    },
    /// Send the request to this provider now; answer with `Finished` or `RungFailed`.
    DispatchCloud {
        /// Which request.
        request: RequestId,
        /// Which provider.
        provider: String,
        /// Which of its models.
        model: String,
        /// How long it waited in the queue.
        queued: Duration,
        /// Which rung of its ladder that is, and why.
        rung: RungChoice,
    },
    /// A model that a client named by its path is not used any more, and leaves the catalog unless it was named again.
    ForgetModel {
        /// Its name.
        model: ModelId,
        /// How often it had been named ([`ModelDescription::named`]).
        named: u64,
    },
    /// A footprint was learned: to be kept for the next life of the process ([`Event::Footprints`]).
    Learned(Footprint),
    /// What this operator asked for is done.
    Done {
        /// Which caller.
        request: RequestId,
    },
    /// The final answer of this request is this error.
    Refuse {
        /// Which request.
        request: RequestId,
        /// What the client is told.
        error: ApiError,
    },
    /// Everything is stopped and released after `Drain`: the process may end.
    Drained,
}

/// A model as the scheduler needs to know it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelDescription {
    /// Its name.
    pub id: ModelId,
    /// Other names for it.
    pub aliases: Vec<ModelId>,
    /// What it does.
    pub category: Category,
    /// Where it wants to run; `auto` lets the scheduler choose.
    pub device: DeviceId,
    /// The memory it will need.
    pub size: SizeEstimate,
    /// Requests it works on at once.
    pub max_concurrent: u32,
    /// Never evicted, never unloaded for idleness.
    pub pin: bool,
    /// How long it stays after its last use, when the manifest says.
    pub keep_alive: Option<KeepAlive>,
    /// Changes when the manifest or the weights change.
    pub revision: u64,
    /// Devices that it needs for itself alone, besides the one it computes on (MM-5).
    pub exclusive_devices: Vec<DeviceId>,
    /// Whether its layers can be spread over several devices (RC-22).
    pub splittable: bool,
    /// The context it serves when a load asks for no other, in tokens.
    pub context_length: Option<u64>,
    /// Whether its layers may come and go when a load does not say, and through how large a window (RS-11).
    pub residency: Residency,
    /// The options that its engine is started with when a load asks for nothing.
    #[serde(skip)]
    pub engine: EngineOptions,
    /// Of a model that a client named by its path: how often that was done. Such a model is forgotten when it is not used.
    pub named: Option<u64>,
}

impl ModelDescription {
    /// What stands in the catalog for a provider elsewhere: it needs no memory and takes what comes.
    pub(crate) fn of_provider(name: &str) -> Self {
        Self {
            id: name.into(),
            aliases: Vec::new(),
            category: Category::Llm,
            device: DeviceId::Auto,
            size: SizeEstimate { bytes: ByteCount::ZERO, rule: SizeRule::Manifest, streamed: None },
            max_concurrent: u32::MAX,
            pin: false,
            keep_alive: None,
            revision: 0,
            exclusive_devices: Vec::new(),
            splittable: false,
            context_length: None,
            residency: Residency::default(),
            engine: EngineOptions::default(),
            named: None,
        }
    }
}

/// What an operator's load asks for beyond the manifest. Holds until the model is unloaded, its manifest changes, or
/// another load says otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadOptions {
    /// Where, in place of the manifest's device.
    pub device: Option<DeviceId>,
    /// The context to serve, in tokens.
    pub context: Option<u64>,
    /// Where its layers live.
    pub layers: LayerOptions,
    /// The memory it will need with that context and layers that live so.
    pub size: Option<SizeEstimate>,
    /// How long it stays after this load, if nobody uses it.
    pub keep_alive: Option<KeepAlive>,
    /// How important the load is; 2 when absent (MM-3).
    pub priority: Option<Priority>,
    /// What its engine is told beyond the manifest.
    pub engine: EngineOptions,
}

/// What a load asks of a model's layers in place of the manifest's word (RS-11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerOptions {
    /// Whether they stay, or come and go.
    pub mode: Option<ResidencyMode>,
    /// Blocks fetched ahead of the one in use.
    pub window: Option<u32>,
    /// Layers of a block.
    pub block: Option<u32>,
    /// The lease on the devices that compute.
    pub memory: Option<ByteCount>,
}

impl LayerOptions {
    /// Whether anything is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What is asked for here, and where it says nothing what `before` said.
    #[must_use]
    pub fn over(self, before: Self) -> Self {
        Self {
            mode: self.mode.or(before.mode),
            window: self.window.or(before.window),
            block: self.block.or(before.block),
            memory: self.memory.or(before.memory),
        }
    }

    /// What that makes of the manifest's word.
    pub fn residency(self, manifest: Residency) -> Residency {
        Residency {
            mode: self.mode.unwrap_or(manifest.mode),
            window: self.window.or(manifest.window),
            block: self.block.or(manifest.block),
            store: manifest.store,
        }
    }
}

/// What a load asks of the engine that runs the model (MM-11). Means nothing here; a load with other options than those a
/// model runs with loads it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// More arguments for llama-server.
    pub args: Option<LlamaArgs>,
    /// Which build of it.
    pub build: Option<String>,
}

impl EngineOptions {
    /// Whether an engine started with `self` is what `wanted` asks for, where both come on top of `usual`: what is not
    /// asked for never matters, and what comes to the same is the same, in whatever words (RC-29).
    pub(crate) fn satisfies(&self, wanted: &Self, usual: &Self) -> bool {
        let args = |options: &Self| LlamaArgs::settled([&usual.args, &options.args].into_iter().flatten());
        let build = |options: &Self| options.build.clone().or_else(|| usual.build.clone());
        (wanted.args.is_none() || args(self) == args(wanted))
            && (wanted.build.is_none() || build(self) == build(wanted))
    }

    /// Takes over what `wanted` asks for.
    pub(crate) fn adopt(&mut self, wanted: &Self) {
        if wanted.args.is_some() {
            self.args.clone_from(&wanted.args);
        }
        if wanted.build.is_some() {
            self.build.clone_from(&wanted.build);
        }
    }
}

/// The memory that a model was seen to use (RC-20).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Footprint {
    /// Which model.
    pub model: ModelId,
    /// Which revision of it.
    pub revision: u64,
    /// The context that its load asked for; `None` is the manifest's.
    pub context: Option<u64>,
    /// Requests it took at once.
    pub max_concurrent: u32,
    /// Where; `auto` stands for a split over several devices.
    pub device: DeviceId,
    /// The bytes, in all.
    pub bytes: ByteCount,
}

/// The memory a model will need, and how we know (RC-20).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeEstimate {
    /// The bytes.
    pub bytes: ByteCount,
    /// Which rule gave them.
    pub rule: SizeRule,
    /// What it needs where its layers may come and go (RS-11); none where they have to stay.
    #[serde(skip)]
    pub streamed: Option<Streaming>,
}

/// The memory a model needs whose layers come and go (RS-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// With all layers on the devices that compute.
    pub whole: ByteCount,
    /// The least there: what always stays, keys and values, a step's own values, and the window.
    pub least: ByteCount,
    /// Of the layers alone: more than this the host has not to hold for another device.
    pub layers: ByteCount,
    /// Of the host, where another device computes: the buffers that layers pass through on their way.
    pub ring: ByteCount,
}

/// The rules of RC-20 in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SizeRule {
    /// The manifest says.
    Manifest,
    /// Measured at an earlier load.
    Learned,
    /// Recorded when the source was found, and its files are not there to be read.
    Source,
    /// Computed from headers: weights, keys and values, activations, device context.
    Headers,
    /// From the file sizes.
    FileSize,
    /// Guessed from the name.
    Name,
    /// It does not fit, and its layers come and go through most of what the device can give (RS-11).
    Streamed,
}

impl std::fmt::Display for SizeRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Manifest => "manifest",
            Self::Learned => "learned",
            Self::Source => "source",
            Self::Headers => "headers",
            Self::FileSize => "file size",
            Self::Name => "name",
            Self::Streamed => "streamed",
        })
    }
}

/// What a probe sees of a device. `None` is unknown, never zero (RC-21).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceObservation {
    /// Which device.
    pub device: DeviceId,
    /// The memory that may be used for models in all.
    pub capacity: Option<ByteCount>,
    /// Kept free for others.
    pub reserve: ByteCount,
    /// Used by programs that hold no lease.
    pub foreign: Option<ByteCount>,
    /// What models may keep here while nobody uses them (BC-1); `None` is no such limit.
    pub retention: Option<ByteCount>,
    /// Only one model at a time may use it (MM-5).
    pub exclusive: bool,
    /// Used by workers that ended and whose memory was not given back in time (RC-18). Counted elsewhere too.
    pub leaking: ByteCount,
    /// Its driver does not list it any more. Otherwise what is unknown may be known at the next look.
    pub lost: bool,
}

/// A request for inference, as far as scheduling cares.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Its number.
    pub id: RequestId,
    /// Where it may be served.
    pub ladder: Ladder,
    /// What the route needs the model to be able to do.
    pub category: Category,
    /// Who asks.
    pub client: ClientId,
    /// How important it is; its client's default when it does not say.
    pub priority: Option<Priority>,
    /// When its answer is worth nothing any more.
    pub deadline: Option<Moment>,
    /// How long the model should stay loaded after it.
    pub keep_alive: Option<KeepAlive>,
}

/// How a dispatched request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The worker gave its whole answer, whatever its status.
    Answered,
    /// The client went away while it was answered.
    ClientGone,
    /// The worker went away before any byte of its answer was sent on: may be tried again.
    LostBeforeAnswer,
    /// The worker went away in the middle of its answer: the client has been told in the stream.
    LostMidAnswer,
    /// What was to answer it would not take it, and nothing else may: the client has been told why.
    Refused,
    /// Its time budget was over before its answer was: the client has been told.
    DeadlineExceeded,
}

/// How a worker's process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitReport {
    /// What its exit code says; `None` for a signal or a code that is not ours.
    pub reason: Option<WorkerExit>,
    /// For people: `exit code 65`, `killed by signal 9`, `could not be started: …`.
    pub description: String,
    /// The last lines it wrote to standard error.
    pub last_lines: Vec<String>,
}
