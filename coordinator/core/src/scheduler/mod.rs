//! The scheduler: takes each event, keeps queue, pool and devices in step, and says what is to be done. Knows no clock
//! and no I/O; the parts of it that are plain rules live in the modules beside it.

mod budget;
mod claims;
mod clients;
mod devices;
mod forgetting;
mod ladders;
mod ledger;
mod loading;
mod looks;
mod measure;
mod moves;
mod operator;
mod places;
mod plan;
mod pressure;
mod requests;
mod room;
mod second_try;
mod sizing;
mod slots;
mod staying;
mod views;
mod yielding;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model_boss_protocol::{ApiError, Category, DeviceId, Generation, RequestId, SlotId};

use self::ledger::Ledger;
use self::looks::{Budget, Reconsider, Unlooked};
use self::moves::Move;
use self::second_try::SecondTry;
use self::yielding::Others;
use crate::by_number::ByNumber;
use crate::catalog::{Catalog, ModelIndex};
use crate::client::{ClientIndex, Clients};
use crate::decision::Decisions;
use crate::device::{Claim, Devices};
use crate::footprint::Footprints;
use crate::pool::ModelPool;
use crate::queue::{InferenceQueue, QueueLimits, Waiting};
use crate::slot::{ModelSlot, SlotState, StopPhase};
use crate::timer::Timers;
use crate::{Effect, Event, Input, Moment, Order, Outcome, Settings};

/// No setting makes the scheduler spin.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// Everything the coordinator decides. One task owns it and feeds it; the same events give the same effects.
#[derive(Debug)]
pub struct Scheduler {
    settings: Settings,
    now: Moment,
    catalog: Catalog,
    queue: InferenceQueue,
    clients: Clients,
    pool: ModelPool,
    devices: Devices,
    ledger: Ledger,
    others: Others,
    /// Looked up by id only, never iterated where order shows.
    running: ByNumber<RequestId, Running>,
    /// Waiting requests that could go to another rung than the one they stand on.
    climbing: BTreeSet<RequestId>,
    /// The last of them that was looked at.
    looked_at: RequestId,
    timers: Timers<Timer>,
    decisions: Decisions,
    /// Room being made, by the model it is for.
    claims: BTreeMap<ModelIndex, Claim>,
    moves: BTreeMap<ModelIndex, Move>,
    second_try: Option<SecondTry>,
    /// Slots that have devices for themselves alone (MM-5).
    alone: BTreeSet<SlotId>,
    footprints: Footprints,
    /// What idle models hold may be more than they may keep.
    accounts_changed: bool,
    /// Models that left because nobody used them.
    idle_sweeps: u64,
    /// Who waits for which slots to be empty.
    unloads: BTreeMap<RequestId, BTreeSet<SlotId>>,
    /// Models whose last lease was refused; asked again at any lease change.
    refused_leases: BTreeSet<ModelIndex>,
    life: Life,
    reconsider: Reconsider,
    /// The families of models that have the same places to go.
    families: BTreeMap<FamilyKey, u32>,
    next_family: u32,
    /// What is still to be looked at since the last change.
    unlooked: Unlooked,
    /// Where the round through everybody goes on behind the events.
    round: Option<ModelIndex>,
    out: Vec<Effect>,
}

/// Where models can go. Those with the same places differ in what they need only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FamilyKey {
    device: DeviceId,
    category: Category,
    /// Each of these can hold it alone. Empty where several share it, or its layers come and go: there the room decides.
    alone_on: Vec<DeviceId>,
    splittable: bool,
    streams: bool,
    exclusive: Vec<DeviceId>,
}

/// Families remembered at once; who has one of those forgotten gets a new one when it is looked at.
const FAMILIES_KEPT: usize = 1_024;

/// A request that was dispatched and has not ended.
#[derive(Debug)]
struct Running {
    request: Waiting,
    /// Which filling of which slot; `None` is a provider elsewhere.
    place: Option<(SlotId, Generation)>,
    started: Moment,
}

/// What time may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Timer {
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
enum Life {
    Serving,
    /// Nothing new is taken; what runs is finished.
    Draining,
    /// Said so.
    Drained,
}

impl Scheduler {
    /// A scheduler that knows no models and no devices yet.
    pub fn new(settings: Settings, now: Moment) -> Self {
        let limits = queue_limits(&settings);
        Self {
            now,
            catalog: Catalog::default(),
            queue: InferenceQueue::new(limits, settings.aging_step),
            clients: Clients::new(settings.clients.clone(), settings.service_step),
            pool: ModelPool::default(),
            devices: Devices::default(),
            ledger: Ledger::default(),
            others: Others::default(),
            running: ByNumber::default(),
            climbing: BTreeSet::new(),
            looked_at: RequestId(0),
            timers: Timers::new(),
            decisions: Decisions::new(settings.decisions_kept),
            claims: BTreeMap::new(),
            moves: BTreeMap::new(),
            second_try: None,
            alone: BTreeSet::new(),
            footprints: Footprints::default(),
            accounts_changed: false,
            idle_sweeps: 0,
            unloads: BTreeMap::new(),
            refused_leases: BTreeSet::new(),
            life: Life::Serving,
            reconsider: Reconsider::Nothing,
            families: BTreeMap::new(),
            next_family: 1,
            unlooked: Unlooked::default(),
            round: None,
            out: Vec::new(),
            settings,
        }
    }

    /// Takes in what happened at `now` and says what is to be done, in this order. Moments never go back; one that does
    /// counts as the latest seen.
    pub fn handle(&mut self, now: Moment, input: impl Into<Input>) -> Vec<Effect> {
        self.now = self.now.max(now);
        self.expire_deadlines();
        let input = input.into();
        let budget = Budget::with(&input);
        match input {
            Input::Event(event) => self.take_in(event),
            Input::Order(order) => self.take_order(order),
        }
        self.fire_timers();
        self.settle(budget);
        std::mem::take(&mut self.out)
    }

    /// When [`Event::Tick`] is due at the latest, if nothing else happens. `None`: time alone brings nothing.
    pub fn next_wake(&self) -> Option<Moment> {
        [self.timers.next(), self.queue.next_deadline()].into_iter().flatten().min()
    }

    fn take_in(&mut self, event: Event) {
        match event {
            Event::Catalog(models) => self.catalog_changed(models),
            Event::DeviceObserved(observation) => self.device_observed(observation),
            Event::Cancel(request) => self.finished(request, Outcome::ClientGone, None),
            Event::Finished { request, outcome, tokens } => self.finished(request, outcome, tokens),
            Event::RungFailed { request, error } => self.rung_failed(request, error),
            Event::Settings(settings) => self.reconfigure(*settings),
            Event::Ledger(state) => self.ledger_changed(state),
            Event::Others { leases, requests } => self.others_changed(leases, requests),
            Event::LeaseRevoked { slot, generation, by, priority, remaining } => {
                self.lease_revoked(slot, generation, &by, priority, remaining);
            }
            Event::LeaseKept { slot, generation } => self.lease_kept(slot, generation),
            Event::LeaseGranted { slot, generation } => self.lease_granted(slot, generation),
            Event::LeaseRefused { slot, generation, reason, retry_after } => {
                self.lease_refused(slot, generation, reason, retry_after);
            }
            Event::WorkerStarted { slot, generation, pid, port } => self.worker_started(slot, generation, pid, port),
            Event::WorkerProgress { slot, generation, progress } => self.worker_progress(slot, generation, progress),
            Event::WorkerReady { slot, generation, context_length } => {
                self.worker_ready(slot, generation, context_length);
            }
            Event::WorkerExited { slot, generation, exit } => self.worker_exited(slot, generation, &exit),
            Event::LeaseReleased { slot, generation } => self.lease_released(slot, generation),
            Event::Measured { slot, generation, parts } => self.measured(slot, generation, &parts),
            Event::Footprints(footprints) => self.remember(footprints),
            Event::Drain => self.drain(),
            Event::Tick => {}
        }
    }

    fn take_order(&mut self, order: Order) {
        match order {
            Order::Submit(submission) => self.submit(submission),
            Order::Load { request, by, model, options } => self.load(request, &by, &model, &options),
            Order::Move { request, by, model, device, evict, priority } => {
                self.move_model(request, &by, &model, &device, evict, priority);
            }
            Order::Invalidate { request, model } => self.invalidate(request, &model),
            Order::Pin { request, model, pinned } => self.pin(request, &model, pinned),
            Order::FreeDevice { request, device } => self.free_device(request, &device),
            Order::OpenDevice { request, device } => self.open_device(request, &device),
            Order::Unload { request, by, model: Some(model) } => self.unload_one(request, &by, &model),
            Order::Unload { request, model: None, .. } => self.unload_all(request),
        }
    }

    fn fire_timers(&mut self) {
        while let Some(timer) = self.timers.pop_due(self.now) {
            match timer {
                Timer::Unload(slot) => self.rest_if_idle(slot),
                Timer::Resume(slot) => self.resume(slot),
                Timer::Consider(model) => self.look_at_by_itself(model),
                Timer::Rights => self.reconsider_at_least(Reconsider::Kinds),
                Timer::LookOn => self.reconsider_at_least(Reconsider::Rest),
                Timer::Client(client) => self.client_changed(client),
                Timer::Move(model) => self.consider_move(model),
                Timer::Yield => self.accounts_changed = true,
                Timer::Forget => self.forget_path_models(),
                Timer::Patience => self.end_patience(),
                Timer::Stay(slot) => self.consider_staying(slot),
                Timer::Reevaluate => {
                    self.reconsider_rungs();
                    self.reconsider_at_least(Reconsider::Kinds);
                    self.round.get_or_insert(ModelIndex::new(0));
                }
            }
        }
    }

    /// Looks again at what waits, until nothing more follows from it.
    fn settle(&mut self, mut budget: Budget) {
        // Each round either starts something or ends; the bound is a fence against a mistake in that reasoning, and
        // what it cuts off is taken up by the next re-evaluation.
        for _ in 0..8 {
            self.relieve();
            if self.second_try.as_ref().is_some_and(|second| self.queue.len_of(second.model) == 0) {
                self.second_try = None;
                self.reconsider = Reconsider::Kinds;
            }
            self.tend_second_try();
            match std::mem::replace(&mut self.reconsider, Reconsider::Nothing) {
                Reconsider::Nothing => break,
                Reconsider::Rest => {}
                Reconsider::Kinds => self.look_at_all_kinds(),
            }
            self.look_on(&mut budget);
            self.consider_moves();
        }
        if self.unlooked.is_empty() && self.round.is_none() {
            self.timers.clear(Timer::LookOn);
        } else {
            self.timers.set_if_unset(Timer::LookOn, self.now + LEAST_WAIT);
        }
        self.leave_queue();
        if self.queue.anyone_waits_for_a_load() {
            self.timers.set_if_unset(Timer::Reevaluate, self.now + self.settings.reevaluate_every.max(LEAST_WAIT));
        } else {
            self.timers.clear(Timer::Reevaluate);
            self.timers.clear(Timer::Rights);
        }
        if self.life == Life::Draining && self.nothing_is_left() && self.running.is_empty() && self.queue.len() == 0 {
            self.life = Life::Drained;
            self.out.push(Effect::Drained);
        }
    }

    /// Whether every slot is empty, or has no process any more and only waits for a ledger that is out of reach: whoever
    /// looks at the ledger next sees that its processes are gone.
    fn nothing_is_left(&self) -> bool {
        let only_its_lease = |slot: &ModelSlot| slot.state == SlotState::Stopping(StopPhase::Releasing);
        self.pool.is_empty() || (!self.is_ledger_open() && self.pool.in_use().all(only_its_lease))
    }

    fn reconsider_at_least(&mut self, scope: Reconsider) {
        self.reconsider = self.reconsider.max(scope);
    }

    /// Bytes or leases changed: everything that waits may go on.
    fn memory_changed(&mut self) {
        for model in std::mem::take(&mut self.refused_leases) {
            self.catalog[model].lease_refusal = None;
            self.timers.clear(Timer::Consider(model));
            self.back_in_line(model);
        }
        self.reconsider_at_least(Reconsider::Kinds);
    }

    fn refuse(&mut self, request: RequestId, error: ApiError) {
        self.out.push(Effect::Refuse { request, error });
    }
}

fn queue_limits(settings: &Settings) -> QueueLimits {
    QueueLimits { per_model: settings.max_queued_per_model, in_all: settings.max_queued }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
