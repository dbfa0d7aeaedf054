//! The state of the scheduler: everything that it remembers between two inputs.

mod ledger;
mod looks;
mod others;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model_boss_protocol::{Category, DeviceId, Generation, Priority, RequestId, SlotId};

use crate::by_number::ByNumber;
use crate::catalog::{Catalog, LoadWish, ModelIndex};
use crate::client::{ClientIndex, Clients};
use crate::decision::Decisions;
use crate::device::{Claim, Devices};
use crate::footprint::Footprints;
use crate::pool::ModelPool;
use crate::queue::{Arrival, InferenceQueue, Waiting};
use crate::timer::Timers;
use crate::{Effect, LayerOptions, Moment, Settings, SizeEstimate};

pub(super) use ledger::Ledger;
pub(super) use looks::{Budget, Looked, Reconsider, Unlooked};
pub(super) use others::{Others, Place};

/// No setting makes the scheduler spin.
pub(in crate::scheduler) const LEAST_WAIT: Duration = Duration::from_millis(1);

/// Everything the coordinator decides. One task owns it and feeds it; the same events give the same effects.
#[derive(Debug)]
pub struct Scheduler {
    pub(in crate::scheduler) settings: Settings,
    pub(in crate::scheduler) now: Moment,
    pub(in crate::scheduler) catalog: Catalog,
    pub(in crate::scheduler) queue: InferenceQueue,
    pub(in crate::scheduler) clients: Clients,
    pub(in crate::scheduler) pool: ModelPool,
    pub(in crate::scheduler) devices: Devices,
    pub(in crate::scheduler) ledger: Ledger,
    pub(in crate::scheduler) others: Others,
    /// Looked up by id only, never iterated where order shows.
    pub(in crate::scheduler) running: ByNumber<RequestId, Running>,
    /// Waiting requests that could go to another rung than the one they stand on.
    pub(in crate::scheduler) climbing: BTreeSet<RequestId>,
    /// The last of them that was looked at.
    pub(in crate::scheduler) looked_at: RequestId,
    pub(in crate::scheduler) timers: Timers<Timer>,
    pub(in crate::scheduler) decisions: Decisions,
    /// Room being made, by the model it is for.
    pub(in crate::scheduler) claims: BTreeMap<ModelIndex, Claim>,
    pub(in crate::scheduler) moves: BTreeMap<ModelIndex, Move>,
    pub(in crate::scheduler) second_try: Option<SecondTry>,
    /// Slots that have devices for themselves alone (MM-5).
    pub(in crate::scheduler) alone: BTreeSet<SlotId>,
    pub(in crate::scheduler) footprints: Footprints,
    /// What idle models hold may be more than they may keep.
    pub(in crate::scheduler) accounts_changed: bool,
    /// Models that left because nobody used them.
    pub(in crate::scheduler) idle_sweeps: u64,
    /// Who waits for which slots to be empty.
    pub(in crate::scheduler) unloads: BTreeMap<RequestId, BTreeSet<SlotId>>,
    /// Models whose last lease was refused; asked again at any lease change.
    pub(in crate::scheduler) refused_leases: BTreeSet<ModelIndex>,
    pub(in crate::scheduler) life: Life,
    pub(in crate::scheduler) reconsider: Reconsider,
    /// The families of models that have the same places to go.
    pub(in crate::scheduler) families: BTreeMap<FamilyKey, u32>,
    pub(in crate::scheduler) next_family: u32,
    /// What is still to be looked at since the last change.
    pub(in crate::scheduler) unlooked: Unlooked,
    /// Where the round through everybody goes on behind the events.
    pub(in crate::scheduler) round: Option<ModelIndex>,
    pub(in crate::scheduler) out: Vec<Effect>,
}

/// Where models can go. Those with the same places differ in what they need only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::scheduler) struct FamilyKey {
    pub(in crate::scheduler) device: DeviceId,
    pub(in crate::scheduler) category: Category,
    /// Each of these can hold it alone. Empty where several share it, or its layers come and go: there the room decides.
    pub(in crate::scheduler) alone_on: Vec<DeviceId>,
    pub(in crate::scheduler) splittable: bool,
    pub(in crate::scheduler) streams: bool,
    pub(in crate::scheduler) exclusive: Vec<DeviceId>,
}

/// Families remembered at once; who has one of those forgotten gets a new one when it is looked at.
pub(in crate::scheduler) const FAMILIES_KEPT: usize = 1_024;

/// A request that was dispatched and has not ended.
#[derive(Debug)]
pub(in crate::scheduler) struct Running {
    pub(in crate::scheduler) request: Waiting,
    /// Which filling of which slot; `None` is a provider elsewhere.
    pub(in crate::scheduler) place: Option<(SlotId, Generation)>,
    pub(in crate::scheduler) started: Moment,
}

/// What time may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::scheduler) enum Timer {
    /// The slot's stay-warm time ends.
    Unload(SlotId),
    /// The slot may take requests again after it lost one.
    Resume(SlotId),
    /// A back-off ends, a lease may be asked for again, or a request has waited so long that it may evict others.
    Consider(ModelIndex),
    /// A slot may have come to be less protected.
    Rights,
    /// The client's pause between requests is over.
    Client(ClientIndex),
    /// The ledger may be asked again for the second copy of a model that moves.
    Move(ModelIndex),
    /// An idle model may have become less important than somebody who waits in the ledger.
    Yield,
    /// Somebody has waited long enough for a ledger that is out of reach.
    Patience,
    /// An idle model whose layers come and go may have room for all of them by now.
    Stay(SlotId),
    /// Everything that waits is looked at.
    Reevaluate,
    /// A model named by its path may have been unused for long enough.
    Forget,
    /// Looks that did not fit into an event go on.
    LookOn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduler) enum Life {
    Serving,
    /// Nothing new is taken; what runs is finished.
    Draining,
    /// Said so.
    Drained,
}

/// A model on its way to another place.
#[derive(Debug)]
pub(in crate::scheduler) struct Move {
    /// Those who are told; the move goes on without them.
    pub(in crate::scheduler) callers: Vec<RequestId>,
    pub(in crate::scheduler) asker: RequestId,
    pub(in crate::scheduler) priority: Priority,
    pub(in crate::scheduler) arrival: Arrival,
    pub(in crate::scheduler) device: DeviceId,
    pub(in crate::scheduler) context: Option<u64>,
    pub(in crate::scheduler) layers: LayerOptions,
    pub(in crate::scheduler) estimate: SizeEstimate,
    /// Whether others may be evicted for it.
    pub(in crate::scheduler) evict: bool,
    pub(in crate::scheduler) began: Moment,
    /// The ledger refused; it is asked again then.
    pub(in crate::scheduler) again_at: Option<Moment>,
    /// The second copy, once it is being loaded.
    pub(in crate::scheduler) slot: Option<SlotId>,
    /// For a load with other options: what held before.
    pub(in crate::scheduler) reload: Option<LoadWish>,
}

/// A second try under way. While it lasts no other load begins, so that what leaves for it is not taken by others.
#[derive(Debug)]
pub(in crate::scheduler) struct SecondTry {
    pub(in crate::scheduler) model: ModelIndex,
    /// Those that have to be gone first.
    pub(in crate::scheduler) leaving: BTreeSet<SlotId>,
    /// Those of them that load on, and serve the request that caused them before they leave.
    pub(in crate::scheduler) finishing: BTreeSet<SlotId>,
}
