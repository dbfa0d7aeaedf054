//! What the scheduler shows to the API, the metrics and the command line: plain values, made on demand.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use model_boss_protocol::{
    ByteCount, Category, DeviceId, Generation, ModelId, Priority, RequestId, ResidencyMode, SlotId,
};
use serde::{Serialize, Serializer};

use crate::{
    ClientRule, Ladder, LayerOptions, LeaseShare, LeaveCause, Moment, Outcome, Principal, PrincipalKind, RungChoice,
    SizeEstimate, SizeRule, SlotState, Target, WaitReason,
};

/// A model of the catalog.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelView {
    /// Its name.
    pub id: ModelId,
    /// Other names for it.
    pub aliases: Vec<ModelId>,
    /// What it does.
    pub category: Category,
    /// Where it wants to run.
    pub device: DeviceId,
    /// The memory it will need, and which rule says so.
    pub size: ByteCount,
    /// The rule.
    pub size_rule: SizeRule,
    /// Never evicted, never unloaded for idleness.
    pub pin: bool,
    /// Whether it is loaded.
    pub status: ModelStatus,
    /// Share of the weights read while it is loading, 0 to 1.
    pub progress: Option<f32>,
    /// Why it failed last, when it failed since its last answer.
    pub failure: Option<String>,
    /// The slot that serves it or is being filled for it.
    pub slot: Option<SlotId>,
    /// The context it serves, once it is loaded.
    pub context_length: Option<u64>,
    /// Requests that wait for it.
    pub queued: usize,
    /// Requests it works on.
    pub running: usize,
}

/// Whether a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelStatus {
    /// No slot serves it.
    Unloaded,
    /// A slot is being filled for it.
    Loading,
    /// A slot serves it.
    Loaded,
    /// The last attempt to load it failed.
    Failed,
}

/// A slot that is not idle.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlotView {
    /// Which slot.
    pub id: SlotId,
    /// Which filling of it.
    pub generation: Generation,
    /// Which model.
    pub model: ModelId,
    /// What the model does.
    pub category: Category,
    /// Where it is in its life.
    #[serde(flatten)]
    pub state: SlotState,
    /// Share of the weights read, 0 to 1.
    pub progress: f32,
    /// The bytes it holds, by device.
    pub parts: Vec<(DeviceId, ByteCount)>,
    /// The worker's process.
    pub pid: Option<u32>,
    /// Where the worker listens, on 127.0.0.1.
    pub port: Option<u16>,
    /// The context it serves.
    pub context_length: Option<u64>,
    /// The rule that gave its size (RC-20).
    pub size_rule: SizeRule,
    /// Its layers come and go (RS-11).
    pub streamed: bool,
    /// It is a second copy on its way to take over (DM-5).
    pub moving: bool,
    /// Requests in flight.
    pub running: usize,
    /// Requests it takes at once.
    pub max_concurrent: usize,
    /// Requests answered since it is ready.
    pub completed: u64,
    /// Never evicted, never unloaded for idleness.
    pub pinned: bool,
    /// Which revision of the model it holds.
    pub revision: u64,
    /// Whether that is out of date: it leaves when it is idle.
    pub stale: bool,
    /// How important it is now (RC-18).
    pub rank: Priority,
    /// When it was used last.
    pub last_used: Moment,
    /// When it became ready, if it is.
    pub ready_at: Option<Moment>,
    /// How long this load took.
    #[serde(rename = "load_ms", serialize_with = "optional_millis")]
    pub load_time: Option<Duration>,
    /// When it leaves unless it is used before.
    pub unload_at: Option<Moment>,
    /// Why it leaves, if it does.
    pub leaving: Option<LeaveCause>,
}

/// A waiting request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueuedView {
    /// Which request.
    pub id: RequestId,
    /// Who asks.
    pub client: Principal,
    /// A client, or the operator.
    pub kind: PrincipalKind,
    /// For which model.
    pub model: ModelId,
    /// What it asks for.
    pub purpose: RequestPurpose,
    /// Its own priority.
    pub priority: Priority,
    /// Its priority after aging (RC-5).
    pub effective_priority: Priority,
    /// Its place in the whole queue, from 1.
    pub position: usize,
    /// How long it has waited.
    #[serde(rename = "waited_ms", serialize_with = "millis")]
    pub waited: Duration,
    /// How often it was tried again after its worker died.
    pub retries: u32,
    /// When its answer is worth nothing any more.
    pub deadline: Option<Moment>,
    /// What it waits for.
    pub wait: WaitReason,
    /// The same in words.
    pub message: String,
}

/// What a waiting request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestPurpose {
    /// An answer.
    Inference,
    /// That the model is loaded.
    Load,
}

/// A device with its accounts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceView {
    /// Which device.
    pub id: DeviceId,
    /// What may be used for models in all; `null` is unknown.
    pub capacity: Option<ByteCount>,
    /// Kept free for others.
    pub reserve: ByteCount,
    /// Used by programs without a lease; `null` is unknown.
    pub foreign: Option<ByteCount>,
    /// Held by leases of others: training jobs, other coordinators.
    pub leased: ByteCount,
    /// Which ones.
    pub leases: Vec<LeaseShare>,
    /// Held by slots, those on their way out included.
    pub charged: ByteCount,
    /// Used by workers that ended and whose memory the driver did not show back in time (RC-18).
    pub leaking: ByteCount,
    /// What a load could take now; `null` is unknown.
    pub free: Option<ByteCount>,
    /// Models with bytes here.
    pub models: Vec<ModelId>,
    /// The model that is loading here.
    pub loading: Option<ModelId>,
    /// An operator freed it for something else (RC-30).
    pub closed: bool,
    /// Its driver does not list it any more: its models end, and none is placed here until it is seen again.
    pub lost: bool,
    /// What models may keep here while nobody uses them (BC-1).
    pub retention: Option<ByteCount>,
    /// Only one model at a time may use it (MM-5).
    pub exclusive: bool,
    /// The model for which room is being made here.
    pub making_room_for: Option<ModelId>,
}

/// A request that somebody thinks of (`POST /api/v1/plan`).
#[derive(Clone, Debug, PartialEq)]
pub struct PlanQuestion {
    /// Where it may be served.
    pub ladder: Ladder,
    /// What it asks for, if not for what the first model of this machine in the ladder does.
    pub category: Option<Category>,
    /// With which context, if not the manifest's.
    pub context: Option<u64>,
    /// How its layers would live, if not as the manifest says.
    pub layers: LayerOptions,
    /// The size with that context and layers that live so.
    pub size: Option<SizeEstimate>,
    /// How important it would be; 5 when nothing is said.
    pub priority: Option<Priority>,
    /// Where it would have to run.
    pub device: Option<DeviceId>,
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

/// What would happen to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanView {
    /// Which model.
    pub model: ModelId,
    /// Which rung of its ladder that is, and why.
    #[serde(flatten)]
    pub rung: RungChoice,
    /// How every rung stands, in the ladder's order.
    pub ladder: Vec<RungView>,
    /// How important the request would be.
    pub priority: Priority,
    /// The memory the model needs there.
    pub size: ByteCount,
    /// The rule that says so.
    pub size_rule: SizeRule,
    /// How its layers would live, or do; `null` for a provider elsewhere.
    pub layers: Option<LayersView>,
    /// What would be done.
    #[serde(flatten)]
    pub step: PlannedStep,
    /// The same in words.
    pub message: String,
    /// Requests for this model that would go first.
    pub before_it: usize,
    /// How long a load is expected to take; `null` when the model is loaded, or when none was measured.
    #[serde(rename = "expected_load_s", serialize_with = "optional_seconds")]
    pub expected_load: Option<Duration>,
    /// How long an answer takes at most, 19 times of 20; `null` with too few samples.
    #[serde(rename = "expected_answer_s", serialize_with = "optional_seconds")]
    pub expected_answer: Option<Duration>,
}

/// How a model's layers live (RS-11).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayersView {
    /// What was asked for.
    pub residency: ResidencyMode,
    /// Blocks fetched ahead, where somebody says.
    pub window: Option<u32>,
    /// Layers of a block, where somebody says.
    pub block: Option<u32>,
    /// Whether they come and go.
    pub streamed: bool,
    /// What all of them would take with everything else; `null` where they cannot come and go.
    pub whole: Option<ByteCount>,
    /// Why they come and go.
    pub why: Option<String>,
}

/// How a rung stands for a request that somebody thinks of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RungView {
    /// Its place in the ladder as it was written, from 0.
    pub rung: usize,
    /// What serves it.
    pub model: Target,
    /// Whether it could take the request now.
    pub usable: bool,
    /// How long until an answer could begin there, as far as anybody knows; `null` where it cannot.
    #[serde(rename = "expected_s", serialize_with = "optional_seconds")]
    pub expected: Option<Duration>,
    /// How it stands, or what is wrong with it, in words.
    pub state: String,
}

/// What would be done for a request that somebody thinks of.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum PlannedStep {
    /// A provider elsewhere takes it.
    Elsewhere {
        /// Which one.
        provider: String,
    },
    /// Its model is loaded and takes it at once.
    Serve {
        /// Where it is.
        parts: Vec<(DeviceId, ByteCount)>,
    },
    /// Its model is loaded at once: there is room.
    Load {
        /// Where to.
        parts: Vec<(DeviceId, ByteCount)>,
    },
    /// Its model is loaded when others have left.
    Evict {
        /// Where to.
        parts: Vec<(DeviceId, ByteCount)>,
        /// Who leaves.
        evictions: Vec<Eviction>,
        /// Holders of leases who are asked to make way.
        asks: Vec<LeaseShare>,
    },
    /// It waits.
    Wait {
        /// Where its model is, if it is anywhere.
        parts: Vec<(DeviceId, ByteCount)>,
        /// For what.
        wait: WaitReason,
    },
}

/// A model that would leave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Eviction {
    /// Which one.
    pub model: ModelId,
    /// Whether it would end its requests first.
    pub drains: bool,
    /// By which right.
    pub why: String,
}

impl PlannedStep {
    /// Where the model is or would be.
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

/// A client and what it got (RC-9).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClientView {
    /// Its name.
    pub id: Principal,
    /// A client, or the operator.
    pub kind: PrincipalKind,
    /// Its requests that wait.
    pub queued: u32,
    /// Its requests that run.
    pub running: u32,
    /// Requests taken in.
    pub requests: u64,
    /// Requests refused because of its limits.
    pub refused: u64,
    /// Tokens of its prompts and answers.
    pub tokens: u64,
    /// Requests a minute, averaged over about the last one.
    pub requests_per_minute: f64,
    /// What it got beyond the least-served client that waits or runs (RC-4).
    pub service_ahead: u64,
    /// Why it may start nothing now.
    pub held_back: Option<WaitReason>,
    /// When it was seen last.
    pub last_seen: Moment,
    /// Answers by model.
    pub models: BTreeMap<ModelId, u64>,
    /// Its last requests that ended, oldest first.
    pub recent: Vec<RecentView>,
    /// What it may do.
    pub rule: ClientRule,
}

/// A request that ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecentView {
    /// Which request.
    pub id: RequestId,
    /// Which model.
    pub model: ModelId,
    /// When it ended.
    pub ended: Moment,
    /// From dispatch to its end.
    #[serde(rename = "took_ms", serialize_with = "millis")]
    pub took: Duration,
    /// Tokens of prompt and answer, when known.
    pub tokens: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
}

fn optional_seconds<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| span.as_secs_f64()).serialize(serializer)
}
