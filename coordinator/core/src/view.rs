//! Views of the scheduler's state for the API, the metrics and the command line: plain values, created on demand.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use model_boss_protocol::{
    ByteCount, Category, CpuShare, DeviceId, Generation, KvCacheType, ModelId, Priority, RequestId, ResidencyMode,
    SlotId, WorkerCores,
};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::{
    ClientRule, Ladder, LayerOptions, LeaseShare, LeaveCause, Moment, Principal, PrincipalKind, RequestOutcome,
    RungChoice, SizeEstimate, SizeRule, SlotKey, SlotState, Target, WaitReason,
};

/// A model of the catalog.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ModelView {
    /// The name of the model.
    pub id: ModelId,
    /// Other names of the model.
    pub aliases: Vec<ModelId>,
    /// The category, which decides the routes that the model serves.
    pub category: Category,
    /// The device the model should run on.
    pub device: DeviceId,
    /// The memory the model will need.
    pub size: ByteCount,
    /// The rule that gave the model's size (RC-20).
    pub size_rule: SizeRule,
    /// Whether the model is never evicted, nor unloaded for idleness.
    pub pin: bool,
    /// Whether the model is loaded.
    pub status: ModelStatus,
    /// The share of the weights read while the model is loading, 0 to 1.
    pub progress: Option<f32>,
    /// The last failure, if the model failed since its last answer.
    pub failure: Option<String>,
    /// The slot that serves the model or loads it.
    pub slot: Option<SlotId>,
    /// The context the model serves, once it is loaded.
    pub context_length: Option<u64>,
    /// The number of the model's waiting requests.
    pub queued: usize,
    /// The number of the model's running requests.
    pub running: usize,
}

/// The state of a model, as far as it changes while requests are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelState {
    /// The model's id.
    pub id: ModelId,
    /// Whether the model is loaded.
    pub status: ModelStatus,
    /// The text of the last failure in a row.
    pub failure: Option<String>,
    /// The number of waiting requests.
    pub queued: usize,
    /// The number of running requests.
    pub running: usize,
}

/// Whether a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelStatus {
    /// No slot serves the model.
    Unloaded,
    /// A slot is loading the model.
    Loading,
    /// A slot serves the model.
    Loaded,
    /// The last attempt to load the model failed.
    Failed,
}

/// A slot that is not idle.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SlotView {
    /// The slot's number.
    pub id: SlotId,
    /// The slot's generation, which rises each time it is filled.
    pub generation: Generation,
    /// The slot's model.
    pub model: ModelId,
    /// The model's category.
    pub category: Category,
    /// The state in the slot's lifecycle.
    #[serde(flatten)]
    pub state: SlotState,
    /// The share of the weights read, 0 to 1.
    pub progress: f32,
    /// The bytes the slot holds, by device.
    pub parts: Vec<(DeviceId, ByteCount)>,
    /// The worker's process id.
    pub pid: Option<u32>,
    /// The port on which the worker listens, on 127.0.0.1.
    pub port: Option<u16>,
    /// The context the slot serves.
    pub context_length: Option<u64>,
    /// The type of the model's keys and values that the load chose.
    pub kv_cache_type: KvCacheType,
    /// The rule that gave the slot's size (RC-20).
    pub size_rule: SizeRule,
    /// Whether the slot's layers are streamed (RS-11).
    pub streamed: bool,
    /// Whether the slot is a second copy that is loading to take over (DM-5).
    pub moving: bool,
    /// The cores that the worker computes with, if it computes on the host.
    pub cores: Option<WorkerCores>,
    /// The share of the cores that the worker has for the requests in flight (FA-5); `null` without requests.
    pub cpu_share: Option<CpuShare>,
    /// The number of running requests.
    pub running: usize,
    /// The number of requests the slot takes at once.
    pub max_concurrent: usize,
    /// The number of requests answered since the slot became ready.
    pub completed: u64,
    /// Whether the model is pinned: it is never evicted, and never unloaded for idleness.
    pub pinned: bool,
    /// The loaded revision of the model.
    pub revision: u64,
    /// Whether that revision is out of date: the slot then stops when it is idle.
    pub stale: bool,
    /// The slot's present importance (RC-18).
    pub rank: Priority,
    /// The moment of the slot's last use.
    pub last_used: Moment,
    /// The moment when the slot became ready, if it is.
    pub ready_at: Option<Moment>,
    /// The duration of this load.
    #[serde(rename = "load_ms", serialize_with = "optional_millis")]
    #[schemars(with = "Option<u64>")]
    pub load_time: Option<Duration>,
    /// The moment when the slot is unloaded unless it is used before.
    pub unload_at: Option<Moment>,
    /// The cause of the slot's stop, if it is draining or stopping.
    pub leaving: Option<LeaveCause>,
}

/// A waiting request.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct QueuedView {
    /// The request's number.
    pub id: RequestId,
    /// The principal that sent it.
    pub client: Principal,
    /// Whether that is a client or the operator.
    pub kind: PrincipalKind,
    /// The model that the request waits for.
    pub model: ModelId,
    /// The kind of request.
    pub purpose: RequestPurpose,
    /// The request's priority before aging.
    pub priority: Priority,
    /// The request's priority after aging (RC-5).
    pub effective_priority: Priority,
    /// The request's position in the whole queue, from 1.
    pub position: usize,
    /// The time since the request's arrival.
    #[serde(rename = "waited_ms", serialize_with = "millis")]
    #[schemars(with = "u64")]
    pub waited: Duration,
    /// The number of retries after the request's worker died.
    pub retries: u32,
    /// The moment after which an answer is useless.
    pub deadline: Option<Moment>,
    /// The reason why the request waits.
    pub wait: WaitReason,
    /// The reason as a human-readable text.
    pub message: String,
}

/// The purpose of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestPurpose {
    /// An answer of the model.
    Inference,
    /// A load of the model.
    Load,
}

/// A device with its accounts.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DeviceView {
    /// The device's name.
    pub id: DeviceId,
    /// The usable memory, reserve included; `null` is unknown.
    pub capacity: Option<ByteCount>,
    /// Memory to keep free.
    pub reserve: ByteCount,
    /// Memory used by programs without a lease; `null` is unknown.
    pub foreign: Option<ByteCount>,
    /// Memory held by leases of others: training jobs, other coordinators.
    pub leased: ByteCount,
    /// The leases that `leased` sums up.
    pub leases: Vec<LeaseShare>,
    /// Memory held by slots, stopping ones included.
    pub charged: ByteCount,
    /// Memory of workers that ended and that the driver did not report as free in time (RC-18).
    pub leaking: ByteCount,
    /// Memory for a load now; `null` is unknown.
    pub free: Option<ByteCount>,
    /// Models with bytes here.
    pub models: Vec<ModelId>,
    /// The model that is loading here.
    pub loading: Option<ModelId>,
    /// Whether an operator closed the device to models (RC-30).
    pub closed: bool,
    /// Whether the device's driver does not list it any more. Its models stop then, and none is placed here until it is
    /// listed again.
    pub lost: bool,
    /// The most that unused models may keep here (BC-1).
    pub retention: Option<ByteCount>,
    /// Whether the device holds one model at a time only (MM-5).
    pub exclusive: bool,
    /// The model for which room is being made here.
    pub making_room_for: Option<ModelId>,
}

/// A hypothetical request (`POST /api/v1/plan`).
#[derive(Clone, Debug, PartialEq)]
pub struct PlanQuestion {
    /// The rungs that may serve the request.
    pub ladder: Ladder,
    /// The category the request needs; by default, that of the ladder's first local model.
    pub category: Option<Category>,
    /// The context to load with, if not the manifest's.
    pub context: Option<u64>,
    /// The residency of the layers, if not the manifest's.
    pub layers: LayerOptions,
    /// The estimated memory with that context and residency.
    pub size: Option<SizeEstimate>,
    /// The priority; 5 when absent.
    pub priority: Option<Priority>,
    /// The device the request would have to run on.
    pub device: Option<DeviceId>,
}

impl SlotView {
    /// The slot in its present generation.
    pub const fn key(&self) -> SlotKey {
        SlotKey { id: self.id, generation: self.generation }
    }
}

impl Default for PlanQuestion {
    fn default() -> Self {
        Self {
            ladder: Ladder::from("default"),
            category: None,
            context: None,
            layers: LayerOptions::default(),
            size: None,
            priority: None,
            device: None,
        }
    }
}

/// The planned fate of a hypothetical request.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct PlanView {
    /// The model that would answer.
    pub model: ModelId,
    /// The rung of the request's ladder that would be chosen, and why.
    #[serde(flatten)]
    pub rung: RungChoice,
    /// The state of every rung, in the ladder's order.
    pub ladder: Vec<RungView>,
    /// The priority the request would have.
    pub priority: Priority,
    /// The memory the model needs at its site.
    pub size: ByteCount,
    /// The rule that gave the size.
    pub size_rule: SizeRule,
    /// The residency of the model's layers; `null` for a cloud provider.
    pub layers: Option<LayersView>,
    /// The step that the scheduler would take.
    #[serde(flatten)]
    pub step: PlannedStep,
    /// The step as a human-readable text.
    pub message: String,
    /// The number of earlier requests for this model.
    pub before_it: usize,
    /// The expected time of a load; `null` when the model is loaded, or when none was measured.
    #[serde(rename = "expected_load_s", serialize_with = "optional_seconds")]
    #[schemars(with = "Option<f64>")]
    pub expected_load: Option<Duration>,
    /// The 95th percentile of the time of an answer; `null` with too few samples.
    #[serde(rename = "expected_answer_s", serialize_with = "optional_seconds")]
    #[schemars(with = "Option<f64>")]
    pub expected_answer: Option<Duration>,
}

/// The residency of a model's layers (RS-11).
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct LayersView {
    /// The mode that the manifest or the load requires.
    pub residency: ResidencyMode,
    /// The look-ahead in blocks, if it was set.
    pub window: Option<u32>,
    /// The number of layers in a block, if it was set.
    pub block: Option<u32>,
    /// Whether layers are streamed.
    pub streamed: bool,
    /// The bytes with all layers resident; `null` where they cannot be streamed.
    pub whole: Option<ByteCount>,
    /// The reason for streaming.
    pub why: Option<String>,
}

/// The state of a rung for a hypothetical request.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RungView {
    /// The rung's position in the ladder as written, from 0.
    pub rung: usize,
    /// The model of the rung.
    pub model: Target,
    /// Whether the rung could take the request now.
    pub usable: bool,
    /// The estimated time until this rung could begin an answer; `null` if it cannot.
    #[serde(rename = "expected_s", serialize_with = "optional_seconds")]
    #[schemars(with = "Option<f64>")]
    pub expected: Option<Duration>,
    /// The rung's state or fault in words.
    pub state: String,
}

/// The step that the scheduler would take for a hypothetical request.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum PlannedStep {
    /// A cloud provider would answer.
    Elsewhere {
        /// The provider's name.
        provider: String,
    },
    /// The rung's model is loaded and would serve the request at once.
    Serve {
        /// The model's bytes by device.
        parts: Vec<(DeviceId, ByteCount)>,
    },
    /// The rung's model fits, and would be loaded at once.
    Load {
        /// The bytes by device of the load.
        parts: Vec<(DeviceId, ByteCount)>,
    },
    /// The rung's model would be loaded after evictions.
    Evict {
        /// The bytes by device of the load.
        parts: Vec<(DeviceId, ByteCount)>,
        /// The models that would be evicted.
        evictions: Vec<Eviction>,
        /// Leases of other holders that would be revoked.
        asks: Vec<LeaseShare>,
    },
    /// The request would wait.
    Wait {
        /// The model's bytes by device, if it is loaded.
        parts: Vec<(DeviceId, ByteCount)>,
        /// The reason to wait.
        wait: WaitReason,
    },
}

/// A model that would be evicted.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Eviction {
    /// The evicted model.
    pub model: ModelId,
    /// Whether the model would finish its requests first.
    pub drains: bool,
    /// The rule that permits the eviction.
    pub why: String,
}

impl PlannedStep {
    /// The bytes by device of the model, loaded or planned.
    pub fn parts(&self) -> &[(DeviceId, ByteCount)] {
        match self {
            Self::Elsewhere { .. } => &[],
            Self::Serve { parts } | Self::Load { parts } | Self::Evict { parts, .. } | Self::Wait { parts, .. } => {
                parts
            }
        }
    }
}

impl fmt::Display for PlannedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = |f: &mut fmt::Formatter<'_>| {
            for (place, (device, bytes)) in self.parts().iter().enumerate() {
                write!(f, "{}{bytes} on {device}", if place == 0 { "" } else { ", " })?;
            }
            Ok(())
        };
        match self {
            Self::Elsewhere { provider } => write!(f, "sent to the provider '{provider}'"),
            Self::Serve { .. } => {
                f.write_str("answered at once: the model is loaded, ")?;
                places(f)
            }
            Self::Load { .. } => {
                f.write_str("loaded at once: ")?;
                places(f)
            }
            Self::Evict { evictions, asks, .. } => {
                f.write_str("loaded, ")?;
                places(f)?;
                f.write_str(", when ")?;
                for (place, eviction) in evictions.iter().enumerate() {
                    let how = if eviction.drains { "has ended its requests and left" } else { "has left" };
                    write!(f, "{}{} {how} ({})", if place == 0 { "" } else { ", " }, eviction.model, eviction.why)?;
                }
                for (place, lease) in asks.iter().enumerate() {
                    let first = place == 0 && evictions.is_empty();
                    write!(f, "{}{} makes way ({})", if first { "" } else { ", " }, lease.label, lease)?;
                }
                Ok(())
            }
            Self::Wait { wait, .. } => write!(f, "{wait}"),
        }
    }
}

fn millis<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

fn optional_millis<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match span {
        Some(span) => millis(span, serializer),
        None => serializer.serialize_none(),
    }
}

/// A client with its use of the service (RC-9).
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ClientView {
    /// The client's name, or the operator.
    pub id: Principal,
    /// Whether the account is a client's or the operator's.
    pub kind: PrincipalKind,
    /// The number of the client's waiting requests.
    pub queued: u32,
    /// The number of the client's running requests.
    pub running: u32,
    /// The number of accepted requests.
    pub requests: u64,
    /// The number of requests refused because of the client's limits.
    pub refused: u64,
    /// Tokens of the client's prompts and answers.
    pub tokens: u64,
    /// Requests per minute, averaged over approximately the last minute.
    pub requests_per_minute: f64,
    /// The client's service beyond that of the least-served client with waiting or running requests (RC-4).
    pub service_ahead: u64,
    /// The limit for which the client may start no request now.
    pub held_back: Option<WaitReason>,
    /// The moment of the client's last request.
    pub last_seen: Moment,
    /// Answers by model.
    pub models: BTreeMap<ModelId, u64>,
    /// The client's last requests that ended, oldest first.
    pub recent: Vec<RecentView>,
    /// The rule with its limits.
    pub rule: ClientRule,
}

/// A request that ended.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RecentView {
    /// The request's number.
    pub id: RequestId,
    /// The model that served the request.
    pub model: ModelId,
    /// The moment of the request's end.
    pub ended: Moment,
    /// The time from dispatch to the request's end.
    #[serde(rename = "took_ms", serialize_with = "millis")]
    #[schemars(with = "u64")]
    pub took: Duration,
    /// Tokens of prompt and answer, when known.
    pub tokens: Option<u64>,
    /// The outcome of the request.
    pub outcome: RequestOutcome,
}

fn optional_seconds<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| span.as_secs_f64()).serialize(serializer)
}
