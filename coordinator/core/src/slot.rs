//! One slot: its lifecycle in one table, and the state of its use. Other slots and sums of memory are kept in other
//! modules.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use model_boss_protocol::{
    ByteCount, CpuShare, DeviceId, Generation, KeepAlive, Priority, RequestId, Residency, ResidencyMode, SlotId,
    WorkerCores,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::catalog::ModelIndex;
use crate::reason::LeaveCause;
use crate::slot_key::SlotKey;
use crate::time::steps;
use crate::{EngineOptions, LayerOptions, LoadPhase, Moment, ReadyPhase, SizeRule, StopPhase};

/// The state of a slot, in the cycle `IDLE → LOADING → READY → STOPPING → IDLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "state", content = "phase", rename_all = "snake_case")]
pub enum SlotState {
    /// The slot is empty: it has no lease and no process.
    Idle,
    /// A load is in progress.
    Loading(LoadPhase),
    /// A worker serves.
    Ready(ReadyPhase),
    /// The slot is stopping; its bytes count until the driver reports them as free.
    Stopping(StopPhase),
}

/// An event of a slot: an order of the scheduler, or a report from the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotEvent {
    Fill,
    LeaseGranted,
    LeaseRefused,
    Started,
    Progressed,
    Ready,
    Drain,
    KeepAfterAll,
    Stop,
    Exited,
    Released,
}

/// The shell's task for a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotOrder {
    Nothing,
    AcquireLease,
    Spawn,
    Stop,
    ReleaseLease,
}

/// The transition table: the next state after `event` in `state`, and the shell's task. An event without a transition
/// in this state yields `None` and changes nothing. Such events are late reports, or orders that do not apply.
pub(crate) const fn transition(state: SlotState, event: SlotEvent) -> Option<(SlotState, SlotOrder)> {
    use LoadPhase as L;
    use ReadyPhase as R;
    use SlotEvent as E;
    use SlotOrder as O;
    use SlotState::{Idle, Loading, Ready, Stopping};
    use StopPhase as S;
    Some(match (state, event) {
        (Idle, E::Fill) => (Loading(L::AwaitingLease), O::AcquireLease),

        (Loading(L::AwaitingLease), E::LeaseGranted) => (Loading(L::Spawning), O::Spawn),
        (Loading(L::AwaitingLease), E::LeaseRefused) => (Idle, O::Nothing),
        (Loading(L::AwaitingLease), E::Stop) => (Stopping(S::AwaitingLease), O::Nothing),
        (Loading(L::Spawning), E::Started) => (Loading(L::Weights), O::Nothing),
        (Loading(L::Weights), E::Progressed) => (Loading(L::Weights), O::Nothing),
        (Loading(L::Spawning | L::Weights), E::Ready) => (Ready(R::Serving), O::Nothing),
        (Loading(L::Spawning | L::Weights), E::Stop) => (Stopping(S::Terminating), O::Stop),
        (Loading(L::Spawning | L::Weights), E::Exited) => (Stopping(S::Releasing), O::ReleaseLease),

        (Ready(R::Serving), E::Drain) => (Ready(R::Draining), O::Nothing),
        (Ready(R::Draining), E::KeepAfterAll) => (Ready(R::Serving), O::Nothing),
        (Ready(_), E::Stop) => (Stopping(S::Terminating), O::Stop),
        (Ready(_), E::Exited) => (Stopping(S::Releasing), O::ReleaseLease),

        (Stopping(S::AwaitingLease), E::LeaseGranted) => (Stopping(S::Releasing), O::ReleaseLease),
        (Stopping(S::AwaitingLease), E::LeaseRefused) => (Idle, O::Nothing),
        (Stopping(S::Terminating), E::Exited) => (Stopping(S::Releasing), O::ReleaseLease),
        (Stopping(S::Releasing), E::Released) => (Idle, O::Nothing),

        _ => return None,
    })
}

/// A slot: one model on one device set.
#[derive(Debug)]
pub(crate) struct ModelSlot {
    pub(crate) id: SlotId,
    pub(crate) model: ModelIndex,
    pub(crate) state: SlotState,
    /// The generation, which rises each time the slot is filled. A load that the ledger refused is tried again under
    /// the same number, so that the ledger sees one asker instead of many.
    pub(crate) generation: Generation,
    /// The bytes charged, by device, while the slot is not idle.
    pub(crate) parts: Vec<(DeviceId, ByteCount)>,
    /// The model's revision when this generation began.
    pub(crate) revision: u64,
    /// Whether an operator marked the loaded copy as out of date (BC-5).
    pub(crate) stale: bool,
    /// The context of the load, if it is not the manifest's.
    pub(crate) context: Option<u64>,
    /// Options of the load for the engine.
    pub(crate) engine: EngineOptions,
    /// The residency of the slot's layers.
    pub(crate) layers: Layers,
    /// Devices the slot has for itself alone (MM-5).
    pub(crate) exclusive: Vec<DeviceId>,
    /// The rule that gave the slot's size (RC-20).
    pub(crate) size_rule: SizeRule,
    pub(crate) load_started: Moment,
    pub(crate) ready_at: Moment,
    pub(crate) progress: f32,
    pub(crate) pid: Option<u32>,
    pub(crate) port: Option<u16>,
    pub(crate) context_length: Option<u64>,
    /// The cores that the worker computes with, if it computes on the host.
    pub(crate) cores: Option<WorkerCores>,
    /// The share of the cores that the worker was told last; `None`: it computes with all its threads.
    pub(crate) share: Option<CpuShare>,
    /// Requests in flight, most important first.
    pub(crate) running: BTreeSet<(Priority, RequestId)>,
    /// The number of requests answered since READY.
    pub(crate) completed: u64,
    pub(crate) last_used: Moment,
    pub(crate) last_priority: Priority,
    /// The `keep_alive` of the request that finished last.
    pub(crate) keep_alive: Option<KeepAlive>,
    pub(crate) unload_at: Option<Moment>,
    /// The request that caused this load, until it is dispatched.
    pub(crate) cause: Option<RequestId>,
    /// The cause for which the slot drains or stops.
    pub(crate) leaving: Option<LeaveCause>,
    /// The end of the pause after a lost request, in which no other is dispatched to it.
    pub(crate) paused_until: Option<Moment>,
    refused: bool,
}

impl ModelSlot {
    pub(crate) fn new(id: SlotId, model: ModelIndex) -> Self {
        Self {
            id,
            model,
            state: SlotState::Idle,
            generation: Generation(0),
            parts: Vec::new(),
            revision: 0,
            stale: false,
            context: None,
            engine: EngineOptions::default(),
            layers: Layers::default(),
            exclusive: Vec::new(),
            size_rule: SizeRule::Manifest,
            load_started: Moment::START,
            ready_at: Moment::START,
            progress: 0.0,
            pid: None,
            port: None,
            context_length: None,
            cores: None,
            share: None,
            running: BTreeSet::new(),
            completed: 0,
            last_used: Moment::START,
            last_priority: Priority::NORMAL,
            keep_alive: None,
            unload_at: None,
            cause: None,
            leaving: None,
            paused_until: None,
            refused: false,
        }
    }

    /// Moves along the table and returns the shell's task; `None` when the event has no transition now.
    pub(crate) fn apply(&mut self, event: SlotEvent) -> Option<SlotOrder> {
        let (state, order) = transition(self.state, event)?;
        self.state = state;
        self.refused = match event {
            SlotEvent::LeaseRefused => true,
            SlotEvent::Fill => self.refused,
            _ => false,
        };
        Some(order)
    }

    /// Begins a new generation. The caller charges the bytes.
    pub(crate) fn fill(&mut self, now: Moment, parts: Vec<(DeviceId, ByteCount)>, cause: Filling) -> Option<SlotOrder> {
        let again = self.refused;
        let order = self.apply(SlotEvent::Fill)?;
        let generation = if again { self.generation } else { Generation(self.generation.0 + 1) };
        *self = Self {
            state: self.state,
            generation,
            parts,
            revision: cause.revision,
            context: cause.context,
            layers: cause.layers,
            exclusive: cause.exclusive,
            size_rule: cause.size_rule,
            load_started: now,
            last_used: now,
            last_priority: cause.priority,
            cause: cause.request,
            ..Self::new(self.id, self.model)
        };
        Some(order)
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// The share of the host's cores that the worker computes with for its requests in flight.
    pub(crate) fn cpu_share(&self) -> Option<CpuShare> {
        let cores = self.cores.filter(|_| self.is_busy())?;
        Some(self.share.unwrap_or(CpuShare::whole(cores)))
    }

    /// The slot in its present generation.
    pub(crate) const fn key(&self) -> SlotKey {
        SlotKey { id: self.id, generation: self.generation }
    }

    /// The slot's importance: that of its most important running request. For an idle slot it is the last priority,
    /// made one step less important per `aging_step` of idle time (RC-18).
    pub(crate) fn rank(&self, now: Moment, aging_step: Duration) -> Priority {
        match self.running.first() {
            Some(&(priority, _)) => priority,
            None => self.last_priority.faded(steps(now.since(self.last_used), aging_step)),
        }
    }

    /// The time since READY for which the slot is protected from equally important requests (RC-18).
    pub(crate) fn hold(&self, min_hold: Duration) -> Duration {
        min_hold.max(self.load_time().saturating_mul(2))
    }

    /// The measured time of this load.
    pub(crate) fn load_time(&self) -> Duration {
        self.ready_at.since(self.load_started)
    }

    /// The bytes on the devices that compute, without the host's buffers for streamed layers.
    pub(crate) fn computing(&self) -> &[(DeviceId, ByteCount)] {
        match &self.parts[..] {
            [devices @ .., (DeviceId::Cpu, _)] if !devices.is_empty() => devices,
            devices => devices,
        }
    }

    /// Whether the model computes on this device.
    pub(crate) fn computes_on(&self, device: &DeviceId) -> bool {
        self.computing().iter().any(|(part, _)| part == device)
    }

    /// The bytes that the slot holds on `device`.
    pub(crate) fn bytes_on(&self, device: &DeviceId) -> ByteCount {
        self.parts.iter().filter(|(d, _)| d == device).map(|&(_, bytes)| bytes).sum()
    }
}

/// The residency of a generation's layers (RS-11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layers {
    /// The residency that the manifest or a load requires.
    pub(crate) asked: Residency,
    /// The lease that a load requires.
    pub(crate) memory: Option<ByteCount>,
    /// Whether layers are streamed.
    pub(crate) stream: bool,
}

impl Layers {
    /// The residency that the worker is started with.
    pub(crate) fn residency(&self) -> Residency {
        let mode = if self.stream { ResidencyMode::Stream } else { self.asked.mode };
        Residency { mode, ..self.asked }
    }

    /// Whether layers are streamed only because there was no room for all of them.
    pub(crate) fn for_want_of_room(&self) -> bool {
        self.stream && self.asked.mode == ResidencyMode::Auto
    }

    /// Whether the loaded copy meets the options of a load, so that no other load is needed (RC-29). Options that the
    /// load does not set are ignored, and for resident layers window and block are too.
    pub(crate) fn satisfy(&self, wanted: &LayerOptions, held: ByteCount) -> bool {
        let mode = match wanted.mode {
            None => true,
            Some(ResidencyMode::Auto) => self.asked.mode != ResidencyMode::Stream,
            Some(ResidencyMode::Resident) => !self.stream,
            Some(ResidencyMode::Stream) => self.stream,
        };
        let same = |given: Option<u32>, wanted: Option<u32>| !self.stream || wanted.is_none() || given == wanted;
        let memory = wanted.memory.is_none_or(|memory| match wanted.mode {
            // An operator wants the rest of the memory back, or more layers to stay.
            Some(ResidencyMode::Stream) => self.memory == Some(memory) || held == memory,
            _ => !self.stream || held >= memory,
        });
        let kv = wanted.kv_cache_type.is_none_or(|wanted| wanted == self.asked.kv_cache_type);
        mode && same(self.asked.window, wanted.window) && same(self.asked.block, wanted.block) && memory && kv
    }
}

/// The purpose of a new generation.
#[derive(Clone, Debug)]
pub(crate) struct Filling {
    /// The request that the load is for; `None` for a load without one.
    pub(crate) request: Option<RequestId>,
    pub(crate) priority: Priority,
    pub(crate) revision: u64,
    pub(crate) context: Option<u64>,
    pub(crate) layers: Layers,
    pub(crate) exclusive: Vec<DeviceId>,
    pub(crate) size_rule: SizeRule,
}

impl fmt::Display for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Loading(_) => "loading",
            Self::Ready(ReadyPhase::Serving) => "ready",
            Self::Ready(ReadyPhase::Draining) => "draining",
            Self::Stopping(_) => "stopping",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoadPhase;
    use crate::ReadyPhase;
    use crate::StopPhase;

    const STATES: [SlotState; 9] = [
        SlotState::Idle,
        SlotState::Loading(LoadPhase::AwaitingLease),
        SlotState::Loading(LoadPhase::Spawning),
        SlotState::Loading(LoadPhase::Weights),
        SlotState::Ready(ReadyPhase::Serving),
        SlotState::Ready(ReadyPhase::Draining),
        SlotState::Stopping(StopPhase::AwaitingLease),
        SlotState::Stopping(StopPhase::Terminating),
        SlotState::Stopping(StopPhase::Releasing),
    ];

    const EVENTS: [SlotEvent; 11] = [
        SlotEvent::Fill,
        SlotEvent::LeaseGranted,
        SlotEvent::LeaseRefused,
        SlotEvent::Started,
        SlotEvent::Progressed,
        SlotEvent::Ready,
        SlotEvent::Drain,
        SlotEvent::KeepAfterAll,
        SlotEvent::Stop,
        SlotEvent::Exited,
        SlotEvent::Released,
    ];

    /// One letter per state in the order of `STATES`, `.` where the event has no transition.
    const LETTERS: [char; 9] = ['i', 'l', 's', 'w', 'r', 'd', 'a', 't', 'g'];

    #[test]
    fn rc_14_every_pair_of_state_and_event() {
        // Columns: the events in their order.
        //   Fill, LeaseGranted, LeaseRefused, Started, Progressed, Ready, Drain, KeepAfterAll, Stop, Exited, Released
        let table = [
            ("idle                  ", "l.........."),
            ("loading, lease        ", ".si.....a.."),
            ("loading, spawning     ", "...w.r..tg."),
            ("loading, weights      ", "....wr..tg."),
            ("ready, serving        ", "......d.tg."),
            ("ready, draining       ", ".......rtg."),
            ("stopping, lease       ", ".gi........"),
            ("stopping, terminating ", ".........g."),
            ("stopping, releasing   ", "..........i"),
        ];
        for ((name, row), state) in table.iter().zip(STATES) {
            for (expected, event) in row.chars().zip(EVENTS) {
                let got = transition(state, event)
                    .map_or('.', |(next, _)| STATES.iter().position(|s| *s == next).map_or('?', |i| LETTERS[i]));
                assert_eq!(got, expected, "{} on {event:?}", name.trim());
            }
        }
    }

    #[test]
    fn rc_14_orders_follow_the_table() {
        for state in STATES {
            for event in EVENTS {
                let Some((next, order)) = transition(state, event) else { continue };
                let expected = match (state, next) {
                    (SlotState::Idle, _) => SlotOrder::AcquireLease,
                    (_, SlotState::Loading(LoadPhase::Spawning)) => SlotOrder::Spawn,
                    (_, SlotState::Stopping(StopPhase::Terminating)) => SlotOrder::Stop,
                    (_, SlotState::Stopping(StopPhase::Releasing)) => SlotOrder::ReleaseLease,
                    _ => SlotOrder::Nothing,
                };
                assert_eq!(order, expected, "{state:?} on {event:?}");
            }
        }
    }

    #[test]
    fn a_refused_filling_keeps_its_generation_and_a_granted_one_does_not() {
        let mut slot = ModelSlot::new(SlotId(0), ModelIndex::new(0));
        let filling = Filling {
            request: Some(RequestId(1)),
            priority: Priority::NORMAL,
            revision: 1,
            context: None,
            layers: Layers::default(),
            exclusive: Vec::new(),
            size_rule: SizeRule::Manifest,
        };
        slot.fill(Moment::START, Vec::new(), filling.clone()).unwrap();
        assert_eq!(slot.generation, Generation(1));
        slot.apply(SlotEvent::LeaseRefused).unwrap();
        slot.fill(Moment::START, Vec::new(), filling.clone()).unwrap();
        assert_eq!(slot.generation, Generation(1));
        slot.apply(SlotEvent::LeaseGranted).unwrap();
        slot.apply(SlotEvent::Exited).unwrap();
        slot.apply(SlotEvent::Released).unwrap();
        slot.fill(Moment::START, Vec::new(), filling.clone()).unwrap();
        assert_eq!(slot.generation, Generation(2));
    }

    #[test]
    fn rc_18_the_rank_of_an_idle_slot_fades_and_that_of_a_busy_one_does_not() {
        let step = Duration::from_secs(30);
        let mut slot = ModelSlot::new(SlotId(0), ModelIndex::new(0));
        slot.last_priority = Priority::INTERACTIVE;
        let later = Moment::at(Duration::from_secs(95));
        assert_eq!(slot.rank(later, step).number(), 5);
        slot.running.insert((Priority::BATCH, RequestId(1)));
        slot.running.insert((Priority::INTERACTIVE, RequestId(2)));
        assert_eq!(slot.rank(later, step), Priority::INTERACTIVE);
    }
}
