//! The handling of one input: time advances, the input is applied, and all state that it may concern is considered
//! again.

use std::collections::{BTreeMap, BTreeSet};

use model_boss_protocol::RequestId;

use super::state::{EventBudget, KnownLedger, LEAST_WAIT, Life, OtherHolders, Reconsider, Scheduler, Timer, Unlooked};
use crate::by_number::ByNumber;
use crate::catalog::{KnownModels, ModelIndex};
use crate::client::Clients;
use crate::decision::Decisions;
use crate::device::Devices;
use crate::footprint::Footprints;
use crate::phase::StopPhase;
use crate::pool::ModelPool;
use crate::queue::{InferenceQueue, QueueLimits};
use crate::refusal::Refusal;
use crate::slot::{ModelSlot, SlotState};
use crate::timer::Timers;
use crate::{Effect, Event, Input, Moment, Order, RequestOutcome, Settings};

impl Scheduler {
    /// A scheduler without models and devices.
    pub fn new(settings: Settings, now: Moment) -> Self {
        let limits = queue_limits(&settings);
        Self {
            now,
            catalog: KnownModels::default(),
            queue: InferenceQueue::new(limits, settings.aging_step),
            clients: Clients::new(settings.clients.clone(), settings.service_step),
            pool: ModelPool::default(),
            devices: Devices::default(),
            ledger: KnownLedger::default(),
            others: OtherHolders::default(),
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
            cores_changed: false,
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

    /// Applies an input that happened at `now` and returns the effects to carry out, in this order. Time does not run
    /// backwards: an earlier moment counts as the latest seen.
    pub fn handle(&mut self, now: Moment, input: impl Into<Input>) -> Vec<Effect> {
        self.now = self.now.max(now);
        self.expire_deadlines();
        let input = input.into();
        let budget = EventBudget::with(&input);
        match input {
            Input::Event(event) => self.take_in(event),
            Input::Order(order) => self.take_order(order),
        }
        self.fire_timers();
        self.settle(budget);
        self.share_cores();
        std::mem::take(&mut self.out)
    }

    /// The moment by which [`Event::Tick`] is due if no other event arrives. `None`: the passing of time alone
    /// changes nothing.
    pub fn next_wake(&self) -> Option<Moment> {
        [self.timers.next(), self.queue.next_deadline()].into_iter().flatten().min()
    }

    fn take_in(&mut self, event: Event) {
        match event {
            Event::Catalog(models) => self.catalog_changed(models),
            Event::DeviceObserved(observation) => self.device_observed(observation),
            Event::Cancel(request) => self.finished(request, RequestOutcome::ClientGone, None),
            Event::Finished { request, outcome, tokens } => self.finished(request, outcome, tokens),
            Event::RungFailed { request, error } => self.rung_failed(request, error),
            Event::Settings(settings) => self.reconfigure(*settings),
            Event::Ledger(state) => self.ledger_changed(state),
            Event::Others { leases, requests } => self.others_changed(leases, requests),
            Event::LeaseRevoked { slot, by, priority, remaining } => {
                self.lease_revoked(slot, &by, priority, remaining);
            }
            Event::LeaseKept { slot } => self.lease_kept(slot),
            Event::LeaseGranted { slot } => self.lease_granted(slot),
            Event::LeaseRefused { slot, reason, retry_after } => {
                self.lease_refused(slot, reason, retry_after);
            }
            Event::WorkerStarted { slot, pid, port } => self.worker_started(slot, pid, port),
            Event::WorkerProgress { slot, progress } => self.worker_progress(slot, progress),
            Event::WorkerReady { slot, context_length, cores } => self.worker_ready(slot, context_length, cores),
            Event::WorkerExited { slot, exit } => self.worker_exited(slot, &exit),
            Event::LeaseReleased { slot } => self.lease_released(slot),
            Event::Measured { slot, parts } => self.measured(slot, &parts),
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
            Order::CancelRequest { request, by, target } => self.cancel_request(request, &by, target),
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

    /// Considers the waiting models and requests until no further effect follows.
    fn settle(&mut self, mut budget: EventBudget) {
        // Each round either starts something or ends. The bound guards against a mistake in that reasoning; work it
        // cuts off is continued by the next re-evaluation.
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

    /// Whether every slot is empty, or has no process any more and only waits for an unreachable ledger. The next
    /// reader of the ledger finds that the processes of such slots are gone.
    fn nothing_is_left(&self) -> bool {
        let only_its_lease = |slot: &ModelSlot| slot.state == SlotState::Stopping(StopPhase::Releasing);
        self.pool.is_empty() || (!self.is_ledger_open() && self.pool.in_use().all(only_its_lease))
    }

    pub(super) fn reconsider_at_least(&mut self, scope: Reconsider) {
        self.reconsider = self.reconsider.max(scope);
    }

    /// Bytes or leases changed: waiting loads may be possible now.
    pub(super) fn memory_changed(&mut self) {
        for model in std::mem::take(&mut self.refused_leases) {
            self.catalog[model].lease_refusal = None;
            self.timers.clear(Timer::Consider(model));
            self.back_in_line(model);
        }
        self.reconsider_at_least(Reconsider::Kinds);
    }

    pub(super) fn refuse(&mut self, request: RequestId, error: Refusal) {
        self.out.push(Effect::Refuse { request, error });
    }
}

pub(super) fn queue_limits(settings: &Settings) -> QueueLimits {
    QueueLimits { per_model: settings.max_queued_per_model, in_all: settings.max_queued }
}
