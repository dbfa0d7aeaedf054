//! The state of the scheduler: all that it remembers between two inputs.

mod ledger;
mod looks;
mod others;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model_boss_protocol::{Category, DeviceId, Priority, RequestId, SlotId};

use crate::by_number::ByNumber;
use crate::catalog::{KnownModels, LoadWish, ModelIndex};
use crate::client::{ClientIndex, Clients};
use crate::decision::Decisions;
use crate::device::{Claim, Devices};
use crate::footprint::Footprints;
use crate::pool::ModelPool;
use crate::queue::{Arrival, InferenceQueue, Waiting};
use crate::timer::Timers;
use crate::{Effect, LayerOptions, Moment, Settings, SizeEstimate, SlotKey};

pub(super) use ledger::KnownLedger;
pub(super) use looks::{EventBudget, Looked, Reconsider, Unlooked};
pub(super) use others::{LedgerPlace, OtherHolders};

/// The shortest time of a timer, so that no setting makes the scheduler spin.
pub(in crate::scheduler) const LEAST_WAIT: Duration = Duration::from_millis(1);

/// The decisions of the coordinator. One task owns this value and passes it events; the same events give the same
/// effects.
#[derive(Debug)]
pub struct Scheduler {
    pub(in crate::scheduler) settings: Settings,
    pub(in crate::scheduler) now: Moment,
    pub(in crate::scheduler) catalog: KnownModels,
    pub(in crate::scheduler) queue: InferenceQueue,
    pub(in crate::scheduler) clients: Clients,
    pub(in crate::scheduler) pool: ModelPool,
    pub(in crate::scheduler) devices: Devices,
    pub(in crate::scheduler) ledger: KnownLedger,
    pub(in crate::scheduler) others: OtherHolders,
    /// Dispatched requests, looked up by id only. They are never iterated where the order would be visible.
    pub(in crate::scheduler) running: ByNumber<RequestId, RunningRequest>,
    /// Waiting requests that could move to another rung.
    pub(in crate::scheduler) climbing: BTreeSet<RequestId>,
    /// The request of `climbing` that was last reconsidered.
    pub(in crate::scheduler) looked_at: RequestId,
    pub(in crate::scheduler) timers: Timers<Timer>,
    pub(in crate::scheduler) decisions: Decisions,
    /// Claims on room that is being made, by model.
    pub(in crate::scheduler) claims: BTreeMap<ModelIndex, Claim>,
    pub(in crate::scheduler) moves: BTreeMap<ModelIndex, Move>,
    pub(in crate::scheduler) second_try: Option<SecondTry>,
    /// Slots that have devices for themselves alone (MM-5).
    pub(in crate::scheduler) alone: BTreeSet<SlotId>,
    pub(in crate::scheduler) footprints: Footprints,
    /// Whether accounts changed, so that idle models may exceed their retention budget.
    pub(in crate::scheduler) accounts_changed: bool,
    /// Whether requests, workers or settings changed, so that cores may have to be shared in another way.
    pub(in crate::scheduler) cores_changed: bool,
    /// The number of models evicted because they were unused.
    pub(in crate::scheduler) idle_sweeps: u64,
    /// Unload orders, and the slots that each still waits for.
    pub(in crate::scheduler) unloads: BTreeMap<RequestId, BTreeSet<SlotId>>,
    /// Models whose last lease was refused. It is requested again after any change of leases.
    pub(in crate::scheduler) refused_leases: BTreeSet<ModelIndex>,
    pub(in crate::scheduler) life: Life,
    pub(in crate::scheduler) reconsider: Reconsider,
    /// Families: models with the same possible sites.
    pub(in crate::scheduler) families: BTreeMap<FamilyKey, u32>,
    pub(in crate::scheduler) next_family: u32,
    /// Models that remain to be considered since the last change.
    pub(in crate::scheduler) unlooked: Unlooked,
    /// The position of the round through all models, which continues after other work.
    pub(in crate::scheduler) round: Option<ModelIndex>,
    pub(in crate::scheduler) out: Vec<Effect>,
}

/// The possible sites of a model. Models of one family differ only in the memory they need.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::scheduler) struct FamilyKey {
    pub(in crate::scheduler) device: DeviceId,
    pub(in crate::scheduler) category: Category,
    /// Devices that can each hold the model alone. The list is empty where several devices share the model or its
    /// layers are streamed. Then the room decides.
    pub(in crate::scheduler) alone_on: Vec<DeviceId>,
    pub(in crate::scheduler) splittable: bool,
    pub(in crate::scheduler) streams: bool,
    pub(in crate::scheduler) exclusive: Vec<DeviceId>,
}

/// The number of families remembered at once; a model whose family was forgotten gets a new one when it is next
/// considered.
pub(in crate::scheduler) const FAMILIES_KEPT: usize = 1_024;

/// A request that was dispatched and has not ended.
#[derive(Debug)]
pub(in crate::scheduler) struct RunningRequest {
    pub(in crate::scheduler) request: Waiting,
    /// The slot and generation that serve the request; `None` for a cloud provider.
    pub(in crate::scheduler) place: Option<SlotKey>,
    pub(in crate::scheduler) started: Moment,
}

/// Changes that the passing of time may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::scheduler) enum Timer {
    /// The slot's stay-warm time ends.
    Unload(SlotId),
    /// The slot may take requests again after it lost one.
    Resume(SlotId),
    /// A backoff ends, a lease may be requested again, or a request has waited so long that it may evict other models.
    Consider(ModelIndex),
    /// The protection of a slot from eviction may have ended.
    Rights,
    /// The client's pause between requests is over.
    Client(ClientIndex),
    /// The lease for the second copy of a moving model may be requested again.
    Move(ModelIndex),
    /// An idle model may have become less important than a request that waits in the ledger.
    Yield,
    /// A request may have run out of patience with an unreachable ledger.
    Patience,
    /// An idle model that streams layers may have room for all of them by now.
    Stay(SlotId),
    /// All waiting models are considered again.
    Reevaluate,
    /// A model named by its path may have been unused for long enough.
    Forget,
    /// Examinations that exceeded the budget of an event continue.
    LookOn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduler) enum Life {
    Serving,
    /// No further request is accepted; running ones finish.
    Draining,
    /// The end of the shutdown was reported.
    Drained,
}

/// A model that moves to another device.
#[derive(Debug)]
pub(in crate::scheduler) struct Move {
    /// Callers that get the outcome; the move continues without them too.
    pub(in crate::scheduler) callers: Vec<RequestId>,
    pub(in crate::scheduler) asker: RequestId,
    pub(in crate::scheduler) priority: Priority,
    pub(in crate::scheduler) arrival: Arrival,
    pub(in crate::scheduler) device: DeviceId,
    pub(in crate::scheduler) context: Option<u64>,
    pub(in crate::scheduler) layers: LayerOptions,
    pub(in crate::scheduler) estimate: SizeEstimate,
    /// Whether other models may be evicted for the move.
    pub(in crate::scheduler) evict: bool,
    pub(in crate::scheduler) began: Moment,
    /// The time of the next try after the ledger refused the lease.
    pub(in crate::scheduler) again_at: Option<Moment>,
    /// The second copy, once it is loading.
    pub(in crate::scheduler) slot: Option<SlotId>,
    /// The wish that held before, if the move is a reload with other options.
    pub(in crate::scheduler) reload: Option<LoadWish>,
}

/// A second try of a load. Until it ends no other load begins, so that the freed memory remains for it.
#[derive(Debug)]
pub(in crate::scheduler) struct SecondTry {
    pub(in crate::scheduler) model: ModelIndex,
    /// Slots that have to be empty before the second try.
    pub(in crate::scheduler) leaving: BTreeSet<SlotId>,
    /// Slots of `leaving` that finish loading, and serve the request that caused them before they stop.
    pub(in crate::scheduler) finishing: BTreeSet<SlotId>,
}
