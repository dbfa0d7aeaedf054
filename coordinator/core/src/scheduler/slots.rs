//! Changes of slots: events from ledger and workers, stopping, draining, idling.

use std::time::Duration;

use model_boss_protocol::{KeepAlive, SlotId, WorkerCores, WorkerExit};

use super::state::{Life, Reconsider, Scheduler, Timer};
use crate::catalog::{LeaseRefusal, LoadWish, ModelIndex};
use crate::failure::{FailedWhen, FailurePolicy, describe};
use crate::phase::{LoadPhase, ReadyPhase};
use crate::queue::LoadState;
use crate::reason::LeaveCause;
use crate::residency::stay_warm;
use crate::slot::{SlotEvent, SlotOrder, SlotState};
use crate::slot_key::SlotKey;
use crate::{Effect, ExitReport, MaxLoaded, Verdict};

/// The number of loads in a row that may fail on an occupied port before that counts as a failure of the model.
const PORT_CLASHES: u32 = 8;

/// The shortest pause before the next request to a ledger that allows an immediate retry.
const LEAST_LEASE_WAIT: Duration = Duration::from_millis(50);

impl Scheduler {
    pub(super) fn lease_granted(&mut self, key: SlotKey) {
        if self.news(key, SlotEvent::LeaseGranted).is_some() {
            self.has_lease(self.pool[key.id].model);
        }
    }

    pub(super) fn lease_refused(&mut self, key: SlotKey, reason: String, retry_after: Duration) {
        let id = key.id;
        let Some(before) = self.news(key, SlotEvent::LeaseRefused) else { return };
        let model = self.pool[id].model;
        self.emptied(id);
        if before == SlotState::Loading(LoadPhase::AwaitingLease) {
            let again = retry_after.max(LEAST_LEASE_WAIT);
            let moving = self.second_copy(model) == Some(id);
            if moving {
                self.move_lease_refused(model, &reason, again);
            }
            let serving = self.catalog[model].serving == Some(id);
            self.vacate(id);
            let known = &mut self.catalog[model];
            let text = format!("asked again in {} ms: {reason}", again.as_millis());
            self.decisions.record(self.now, Verdict::LeaseRefused, known.id(), None, vec![text]);
            if serving {
                self.catalog[model].lease_refusal = Some(LeaseRefusal { reason, until: self.now + again });
                self.refused_leases.insert(model);
                self.consider(model);
            }
        }
        self.reconsider_at_least(Reconsider::Kinds);
    }

    pub(super) fn worker_started(&mut self, key: SlotKey, pid: u32, port: u16) {
        let id = key.id;
        if self.news(key, SlotEvent::Started).is_some() {
            self.pool[id].pid = Some(pid);
            self.pool[id].port = Some(port);
        }
    }

    pub(super) fn worker_progress(&mut self, key: SlotKey, progress: f32) {
        let id = key.id;
        if self.news(key, SlotEvent::Progressed).is_some() && progress.is_finite() {
            self.pool[id].progress = progress.clamp(0.0, 1.0);
        }
    }

    pub(super) fn worker_ready(&mut self, key: SlotKey, context_length: Option<u64>, cores: Option<WorkerCores>) {
        let id = key.id;
        if self.news(key, SlotEvent::Ready).is_none() {
            return;
        }
        let slot = &mut self.pool[id];
        slot.context_length = context_length;
        slot.cores = cores;
        slot.progress = 1.0;
        slot.ready_at = self.now;
        slot.last_used = self.now;
        let model = slot.model;
        self.devices.end_turn(id, &slot.parts);
        for (device, _) in &slot.parts {
            if let Some(device) = self.devices.get_mut(device) {
                device.newest = Some(id);
            }
        }
        self.accounts_changed = true;
        let known = &mut self.catalog[model];
        known.port_clashes = 0;
        let load_time = slot.load_time();
        known.history.loaded_in(load_time);
        let took = format!("loaded in {:.3} s", load_time.as_secs_f64());
        self.end_second_try(model);
        self.decisions.record(self.now, Verdict::Ready, self.catalog[model].id(), None, vec![took]);
        self.take_over(id);
        self.queue.set_residency(model, LoadState::Resident);
        self.pump(model);
        self.reconsider_rungs();
        self.reconsider_at_least(Reconsider::Kinds);
    }

    pub(super) fn worker_exited(&mut self, key: SlotKey, exit: &ExitReport) {
        let id = key.id;
        let Some(before) = self.news(key, SlotEvent::Exited) else { return };
        let slot = &mut self.pool[id];
        let model = slot.model;
        let completed = slot.completed;
        // Each request in flight gets its own event for its end; the slot no longer counts them.
        let lost = std::mem::take(&mut slot.running).len();
        self.cores_changed = true;
        self.timers.clear(Timer::Resume(id));
        self.timers.clear(Timer::Unload(id));
        self.timers.clear(Timer::Stay(id));
        let when = match before {
            SlotState::Loading(_) => Some(FailedWhen::Loading),
            SlotState::Ready(_) if completed == 0 => Some(FailedWhen::BeforeFirstAnswer),
            _ => None,
        };
        if matches!(before, SlotState::Stopping(_)) {
            // A place among the models of its category is free, even if its memory is not yet (MM-1).
            if self.settings.max_loaded != MaxLoaded::Auto {
                self.reconsider_at_least(Reconsider::Kinds);
            }
            return;
        }
        self.pool[id].leaving.get_or_insert(LeaveCause::Crash);
        self.devices.end_turn(id, &self.pool[id].parts);
        // A load that ran out of memory would fail again if the next one got no more.
        let futile = when == Some(FailedWhen::Loading)
            && exit.reason == Some(WorkerExit::OutOfMemory)
            && !self.learn_from_out_of_memory(id);
        let text = describe(exit);
        let mut reasons = vec![text.clone(), format!("while {before}, {lost} requests in flight")];
        let clash = self.is_mere_port_clash(id, exit);
        if self.second_copy(model) == Some(id) {
            if clash {
                self.try_move_again(model);
            } else {
                self.fail_move_by_crash(model, &text);
            }
        }
        let serving = self.catalog[model].serving == Some(id);
        self.vacate(id);
        let known = &mut self.catalog[model];
        if serving {
            known.last_exit = Some(text);
        }
        // The failure of a second copy, or of a first copy that was replaced, does not predict the model's next load.
        let when = when.filter(|_| serving && !clash);
        let mut policy = when.map(|when| known.failures.record(self.now, when, exit, &self.settings));
        if futile && when.is_some() {
            policy = Some(known.failures.give_up(self.now, &self.settings));
        }
        if when == Some(FailedWhen::Loading) {
            if self.end_second_try(model) {
                policy = Some(FailurePolicy::GiveUp);
            } else if self.try_without_others(model, before, exit) {
                self.catalog[model].failures.try_at_once();
                policy = None;
            }
        }
        let known = &self.catalog[model];
        if let Some(until) = known.failures.waits_until(self.now) {
            let wait = until.since(self.now).as_secs_f64();
            reasons.push(format!("failed {} times in a row, next try in {wait:.0} s", known.failures.in_a_row()));
        }
        let error = (policy == Some(FailurePolicy::GiveUp)).then(|| known.failures.error(known.id()));
        self.decisions.record(self.now, Verdict::Crash, self.catalog[model].id(), None, reasons);
        match error {
            Some(error) => self.refuse_all(model, &error),
            None if when.is_some() => {
                let known = &self.catalog[model];
                let error = known.failures.error(known.id());
                self.climb_where_possible(model, &error);
            }
            None => {}
        }
        if self.life != Life::Serving {
            self.refuse_what_cannot_run(model);
        }
        self.consider(model);
        self.reconsider_at_least(Reconsider::Kinds);
    }

    pub(super) fn lease_released(&mut self, key: SlotKey) {
        let id = key.id;
        if self.news(key, SlotEvent::Released).is_some() {
            self.emptied(id);
            self.memory_changed();
            self.come_back(self.pool[id].model);
        }
    }

    /// Whether another process listened on the worker's port. That is no fault of the model's unless it happens many
    /// times in a row.
    fn is_mere_port_clash(&mut self, id: SlotId, exit: &ExitReport) -> bool {
        if exit.reason != Some(WorkerExit::PortInUse) {
            return false;
        }
        let known = &mut self.catalog[self.pool[id].model];
        known.port_clashes += 1;
        known.port_clashes <= PORT_CLASHES
    }

    /// Applies an event to a slot by the transition table and issues the resulting order. Returns the state before;
    /// `None` when the event concerns an earlier generation or has no transition.
    fn news(&mut self, key: SlotKey, event: SlotEvent) -> Option<SlotState> {
        let slot = self.pool.current(key)?;
        let before = slot.state;
        let order = slot.apply(event)?;
        self.give_order(key.id, order);
        Some(before)
    }

    pub(super) fn give_order(&mut self, id: SlotId, order: SlotOrder) {
        let slot = &self.pool[id];
        let key = slot.key();
        let effect = match order {
            SlotOrder::Nothing => return,
            SlotOrder::Stop => {
                let cause = slot.leaving.as_ref();
                let successor = cause.and_then(LeaveCause::room_for).cloned();
                Effect::Stop { slot: key, parks: cause.is_some_and(LeaveCause::parks), successor }
            }
            SlotOrder::ReleaseLease => Effect::ReleaseLease { slot: key },
            SlotOrder::AcquireLease => {
                let (model, parts, priority) = (slot.model, slot.parts.clone(), slot.last_priority);
                self.asks_ledger(model, parts.clone(), priority);
                let known = &self.catalog[model];
                let (model, yields) = (known.id().clone(), !known.is_pinned());
                Effect::AcquireLease { slot: key, model, parts, priority, yields }
            }
            SlotOrder::Spawn => Effect::Spawn {
                slot: key,
                model: self.catalog[slot.model].id().clone(),
                parts: slot.parts.clone(),
                context: slot.context,
                engine: slot.engine.clone(),
                residency: slot.layers.residency(),
            },
        };
        self.out.push(effect);
    }

    /// Stops a slot that is not in use. Its model has to be loaded again for later requests.
    pub(super) fn stop_slot(&mut self, id: SlotId, cause: LeaveCause) {
        let slot = &mut self.pool[id];
        let Some(order) = slot.apply(SlotEvent::Stop) else { return };
        if matches!(cause, LeaveCause::Eviction { .. }) {
            self.catalog[slot.model].away_until = self.now + slot.hold(self.settings.min_hold);
        }
        slot.leaving = Some(cause);
        slot.unload_at = None;
        slot.paused_until = None;
        slot.cause = None;
        self.timers.clear(Timer::Unload(id));
        self.timers.clear(Timer::Resume(id));
        self.timers.clear(Timer::Stay(id));
        self.devices.end_turn(id, &self.pool[id].parts);
        self.vacate(id);
        self.give_order(id, order);
        self.reconsider_at_least(Reconsider::Kinds);
    }

    /// Lets a slot finish its requests and then stops it.
    pub(super) fn drain_slot(&mut self, id: SlotId, cause: LeaveCause) {
        let slot = &mut self.pool[id];
        slot.apply(SlotEvent::Drain);
        slot.leaving = Some(cause);
        slot.unload_at = None;
        self.timers.clear(Timer::Unload(id));
        self.rest_if_idle(id);
    }

    /// Cancels a drain for the room that `room_for` wanted.
    pub(super) fn keep_slot(&mut self, id: SlotId, room_for: ModelIndex) {
        let room_for = self.catalog[room_for].id().clone();
        self.keep_slot_that_leaves_for(id, &LeaveCause::Eviction { room_for });
    }

    /// Cancels a drain for this cause, and for no other.
    pub(super) fn keep_slot_that_leaves_for(&mut self, id: SlotId, cause: &LeaveCause) {
        let slot = &mut self.pool[id];
        if slot.leaving.as_ref() == Some(cause) && slot.apply(SlotEvent::KeepAfterAll).is_some() {
            slot.leaving = None;
            let model = slot.model;
            self.pump(model);
        }
    }

    /// Handles a slot without requests: it is evicted at once, or its timer is set.
    pub(super) fn rest_if_idle(&mut self, id: SlotId) {
        let slot = &self.pool[id];
        if slot.is_busy() {
            return;
        }
        let model = slot.model;
        match slot.state {
            SlotState::Ready(ReadyPhase::Draining) => {
                let cause = slot.leaving.clone().unwrap_or(LeaveCause::Unload);
                self.stop_slot(id, cause);
            }
            // Requests wait while the slot pauses after a loss; `resume` continues with them.
            SlotState::Ready(ReadyPhase::Serving) if self.queue.len_of(model) == 0 => {
                if let Some(cause) = self.why_leave(model, id) {
                    let mut reasons = vec![cause.to_string()];
                    if cause == LeaveCause::Idle {
                        self.idle_sweeps += 1;
                        reasons.push(format!("{} models left for idleness so far", self.idle_sweeps));
                    }
                    self.decisions.record(self.now, Verdict::Unload, self.catalog[model].id(), None, reasons);
                    self.catalog[model].wish = LoadWish::default();
                    self.stop_slot(id, cause);
                } else {
                    self.accounts_changed = true;
                    self.hope_to_stay(id);
                }
            }
            _ => {}
        }
    }

    /// The cause for which an idle slot without waiting requests is evicted now. Without one, sets the timer for the
    /// moment when there will be.
    fn why_leave(&mut self, model: ModelIndex, id: SlotId) -> Option<LeaveCause> {
        let known = &self.catalog[model];
        let slot = &mut self.pool[id];
        if self.life != Life::Serving {
            return Some(LeaveCause::Shutdown);
        }
        if !known.listed {
            return Some(LeaveCause::Removed);
        }
        if slot.stale || slot.revision != known.description.revision {
            return Some(LeaveCause::Replaced);
        }
        let stays = if known.is_pinned() {
            KeepAlive::Forever
        } else {
            stay_warm(&self.settings, &known.description, slot.keep_alive)
        };
        let unload_at = match stays {
            KeepAlive::Forever => None,
            KeepAlive::For(span) => Some(slot.last_used + span),
        };
        slot.unload_at = unload_at;
        match unload_at {
            None => self.timers.clear(Timer::Unload(id)),
            // While the ledger is unreachable the model could not be loaded again, so it is not unloaded.
            Some(at) if at <= self.now && !self.is_ledger_open() => {
                self.timers.set(Timer::Unload(id), self.now + self.settings.reevaluate_every.max(LEAST_LEASE_WAIT));
            }
            Some(at) if at <= self.now => return Some(LeaveCause::Idle),
            Some(at) => self.timers.set(Timer::Unload(id), at),
        }
        None
    }

    /// Ends the pause after a loss if no exit of the worker was reported.
    pub(super) fn resume(&mut self, id: SlotId) {
        let slot = &mut self.pool[id];
        if slot.paused_until.take().is_some() {
            let model = slot.model;
            self.pump(model);
        }
    }

    /// Ends the slot's service for its model. A second copy that is loading becomes the model's load.
    fn vacate(&mut self, id: SlotId) {
        let model = self.pool[id].model;
        if self.catalog[model].serving != Some(id) {
            return;
        }
        let coming = self.second_copy(model).filter(|copy| *copy != id);
        self.catalog[model].serving = coming;
        self.queue.set_residency(model, if coming.is_some() { LoadState::Coming } else { LoadState::Absent });
        if coming.is_none() {
            self.fail_move(model, "its copy went away");
        }
    }

    /// The slot became IDLE: its bytes are free again.
    fn emptied(&mut self, id: SlotId) {
        let slot = &mut self.pool[id];
        let parts = std::mem::take(&mut slot.parts);
        slot.leaving = None;
        slot.pid = None;
        slot.port = None;
        slot.exclusive.clear();
        self.alone.remove(&id);
        self.devices.discharge(id, &parts);
        for claim in self.claims.values_mut() {
            claim.victims.retain(|victim| *victim != id);
        }
        self.pool.left(id);
        self.departed(id);
        self.gone_for_second_try(id);
        self.not_used_any_more(self.pool[id].model);
    }

    /// Answers the callers who waited for this slot to be empty.
    fn departed(&mut self, id: SlotId) {
        let mut done = Vec::new();
        for (request, slots) in &mut self.unloads {
            if slots.remove(&id) && slots.is_empty() {
                done.push(*request);
            }
        }
        for request in done {
            self.unloads.remove(&request);
            self.out.push(Effect::Done { request });
        }
    }
}
