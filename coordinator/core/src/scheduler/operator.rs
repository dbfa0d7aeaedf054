//! Orders about models: load, unload, pin, invalidate; a changed catalog, and shutdown.

use std::time::Duration;

use model_boss_protocol::{DeviceId, KeepAlive, ModelId, Priority, RequestId, SlotId};

use super::requests::draining;
use super::state::{Life, Reconsider, Scheduler, Timer};
use crate::catalog::{LoadWish, ModelIndex};
use crate::client::ClientIndex;
use crate::phase::ReadyPhase;
use crate::queue::{Purpose, Waiting};
use crate::reason::LeaveCause;
use crate::refusal::{Refusal, RefusalReason, Subject};
use crate::slot::SlotState;
use crate::{Effect, LayerOptions, LoadOptions, ModelDescription, Principal, Verdict};

/// A load that was admitted.
#[derive(Clone, Copy)]
pub(super) struct LoadRequest<'a> {
    pub(super) id: RequestId,
    pub(super) client: ClientIndex,
    pub(super) priority: Priority,
    pub(super) options: &'a LoadOptions,
}

impl Scheduler {
    /// Queues a load like a request (MM-3), without a time limit while its caller stays connected (MM-7). An
    /// operator's load gives a failed model another try.
    pub(super) fn load(&mut self, request: RequestId, by: &Principal, name: &ModelId, options: &LoadOptions) {
        if self.is_known(request) {
            return;
        }
        let (client, priority) = self.client_and_priority(by, options.priority);
        let model = match self.admit_load(by, client, priority, name) {
            Ok(model) => model,
            Err(error) => return self.refuse(request, error),
        };
        let wanted = LoadRequest { id: request, client, priority, options };
        if *by == Principal::Operator {
            self.catalog[model].failures.forget();
            self.catalog[model].lease_refusal = None;
            self.timers.clear(Timer::Consider(model));
            self.back_in_line(model);
        }
        let slot = self.catalog[model].serving;
        if slot.is_none_or(|slot| self.serves_with(slot, options)) {
            if slot.is_none() {
                self.wish_for(model, options);
            }
            return self.wait_for_load(model, &wanted);
        }
        self.load_otherwise(model, &wanted);
    }

    fn admit_load(
        &mut self,
        by: &Principal,
        client: ClientIndex,
        priority: Priority,
        name: &ModelId,
    ) -> Result<ModelIndex, Refusal> {
        let model = self.admit_model(name.as_str())?;
        let known = &self.catalog[model];
        if *by != Principal::Operator
            && let Some(error) = known.failures.refusal(known.id(), self.now, &self.settings)
        {
            return Err(error);
        }
        self.admit_to_queue(model, priority)?;
        self.admit_client(client)?;
        Ok(model)
    }

    fn wait_for_load(&mut self, model: ModelIndex, wanted: &LoadRequest<'_>) {
        self.enqueue_load(model, wanted);
        self.arrived(model, wanted.id);
    }

    fn enqueue_load(&mut self, model: ModelIndex, wanted: &LoadRequest<'_>) {
        let arrival = self.queue.arrive(self.now);
        self.enqueue(Waiting {
            id: wanted.id,
            model,
            purpose: Purpose::Load,
            client: wanted.client,
            priority: wanted.priority,
            arrival,
            deadline: None,
            keep_alive: wanted.options.keep_alive,
            work: None,
            retries: 0,
            climb: None,
        });
    }

    /// Whether the slot, loaded or loading, satisfies all options of a load. A slot is never reloaded for less (RC-29).
    fn serves_with(&self, id: SlotId, options: &LoadOptions) -> bool {
        let slot = &self.pool[id];
        let described = &self.catalog[slot.model].description;
        let given = described.context_length;
        // A worker may serve a shorter context than its load requested; a second load would not change that.
        let context = slot.context.or(given).max(slot.context_length);
        let there = |device: &DeviceId| *device == DeviceId::Auto || slot.computes_on(device);
        let held = slot.computing().iter().map(|&(_, bytes)| bytes).sum();
        options.context.is_none_or(|wanted| context.is_some_and(|context| context >= wanted))
            && options.device.as_ref().is_none_or(there)
            && slot.engine.satisfies(&options.engine, &described.engine)
            && slot.layers.satisfy(&options.layers, held)
    }

    /// Stores the options of a load and returns those that held before.
    fn wish_for(&mut self, model: ModelIndex, options: &LoadOptions) -> LoadWish {
        self.queue.doubt_likeness(model);
        let wish = &mut self.catalog[model].wish;
        let before = wish.clone();
        wish.engine.adopt(&options.engine);
        if let Some(device) = &options.device {
            wish.device = Some(device.clone());
        }
        if options.context > wish.context || !options.layers.is_empty() {
            wish.context = wish.context.max(options.context);
            wish.layers = options.layers.over(wish.layers);
            wish.size.clone_from(&options.size);
        }
        before
    }

    /// Options of earlier loads that still hold: context, and residency of layers.
    pub fn wished(&self, model: &ModelId) -> (Option<u64>, LayerOptions) {
        let known = self.catalog.resolve_any(model).map(|model| &self.catalog[model].wish);
        known.map(|wish| (wish.context, wish.layers)).unwrap_or_default()
    }

    /// A load with more context or on another device than the loaded copy has (RC-29). A second copy takes over where
    /// there is room for both. Otherwise the first copy finishes its requests and stops before the load.
    fn load_otherwise(&mut self, model: ModelIndex, wanted: &LoadRequest<'_>) {
        let LoadRequest { id: request, options, .. } = *wanted;
        let Some(slot) = self.catalog[model].serving else { return };
        if let Some(error) = self.refuse_during_move(model) {
            return self.refuse(request, error);
        }
        if !self.is_ledger_open() {
            let error = self.no_ledger(model);
            return self.refuse(request, error);
        }
        let before = self.wish_for(model, options);
        let mut ask = self.ask_of(model);
        ask.heads.clear();
        if let (None, [(device, _)]) = (&options.device, self.pool[slot].computing()) {
            ask.device = device.clone();
        }
        if let Err(error) = self.sites(&ask) {
            self.catalog[model].wish = before;
            let refusal = error.refusal(self.catalog[model].id());
            let name = self.catalog[model].id();
            let later = || Refusal::new(RefusalReason::DeviceUnavailable, format!("model '{name}': {error}"));
            let refusal = refusal.unwrap_or_else(later);
            return self.refuse(request, refusal);
        }
        match self.pool[slot].state {
            SlotState::Ready(ReadyPhase::Serving) => {
                if self.reload_beside(wanted, &ask, before) {
                    return;
                }
                self.enqueue_load(model, wanted);
                let reason = LeaveCause::Reload.to_string();
                let id = self.catalog[model].id().clone();
                self.decisions.record(self.now, Verdict::Unload, &id, Some(request), vec![reason]);
                self.send_away(slot, LeaveCause::Reload);
            }
            SlotState::Loading(_) => {
                self.enqueue_load(model, wanted);
                self.stop_slot(slot, LeaveCause::Reload);
            }
            // The slot is stopping already; the next load follows the new wish.
            _ => self.wait_for_load(model, wanted),
        }
    }

    /// Unloads one model after its running requests. Requests that wait for the model wait for its next load.
    pub(super) fn unload_one(&mut self, request: RequestId, by: &Principal, name: &ModelId) {
        if self.is_known(request) {
            return;
        }
        match self.admit_unload(by, name) {
            Ok(Some(model)) => self.unload(request, vec![model]),
            Ok(None) => self.out.push(Effect::Done { request }),
            Err(error) => self.refuse(request, error),
        }
    }

    /// Unloads all models.
    pub(super) fn unload_all(&mut self, request: RequestId) {
        if self.is_known(request) {
            return;
        }
        let models = self.catalog.iter().map(|(index, _)| index).filter(|&model| self.is_loaded(model)).collect();
        self.unload(request, models);
    }

    /// A slot that stops in order to be reloaded counts as loaded.
    fn is_loaded(&self, model: ModelIndex) -> bool {
        self.catalog[model].serving.is_some() || self.catalog[model].returns.is_some()
    }

    /// The model to unload; `None` when it unloads by itself once no other client uses it.
    fn admit_unload(&mut self, by: &Principal, name: &ModelId) -> Result<Option<ModelIndex>, Refusal> {
        let error = |code, message: String| Err(Refusal::new(code, message).about(Subject::Model));
        let Some(model) = self.catalog.resolve(name.as_str()) else {
            let message = format!("the model '{name}' was not found; GET /v1/models lists all");
            return error(RefusalReason::UnknownModel, message);
        };
        if *by != Principal::Operator {
            let (client, _) = self.client_and_priority(by, None);
            self.admit_client(client)?;
        }
        if !self.is_loaded(model) {
            return error(RefusalReason::NotLoaded, format!("model '{name}' is not loaded"));
        }
        if *by == Principal::Operator {
            return Ok(Some(model));
        }
        if self.catalog[model].is_pinned() {
            let message = format!("model '{name}' is pinned: only the operator unloads it");
            return error(RefusalReason::Pinned, message);
        }
        let is_serving = |slot: SlotId| self.pool[slot].state == SlotState::Ready(ReadyPhase::Serving);
        let Some(slot) = self.catalog[model].serving.filter(|&slot| is_serving(slot)) else { return Ok(None) };
        if self.pool[slot].is_busy() || self.queue.len_of(model) > 0 {
            self.pool[slot].keep_alive = Some(KeepAlive::For(Duration::ZERO));
            return Ok(None);
        }
        Ok(Some(model))
    }

    fn unload(&mut self, request: RequestId, models: Vec<ModelIndex>) {
        let mut slots: Vec<SlotId> = models.iter().filter_map(|&model| self.catalog[model].serving).collect();
        for model in models {
            if self.catalog[model].returns.take().is_some() {
                slots.extend(&self.catalog[model].slots);
            }
            self.catalog[model].wish = LoadWish::default();
            slots.extend(self.second_copy(model).filter(|copy| !slots.contains(copy)));
            self.fail_move(model, "it was unloaded");
        }
        slots.retain(|&slot| self.pool[slot].state != SlotState::Idle);
        if slots.is_empty() {
            self.out.push(Effect::Done { request });
            return;
        }
        self.unloads.insert(request, slots.iter().copied().collect());
        for slot in slots {
            let model = self.catalog[self.pool[slot].model].id().clone();
            let reason = LeaveCause::Unload.to_string();
            self.decisions.record(self.now, Verdict::Unload, &model, Some(request), vec![reason]);
            self.send_away(slot, LeaveCause::Unload);
        }
    }

    /// Marks the loaded copy of a model as out of date. It finishes its requests and stops when idle; the next load
    /// is new (BC-5).
    pub(super) fn invalidate(&mut self, request: RequestId, name: &ModelId) {
        let Some(model) = self.operate_on(request, name) else { return };
        self.catalog[model].failures.forget();
        self.timers.clear(Timer::Consider(model));
        self.back_in_line(model);
        if let Some(slot) = self.catalog[model].serving {
            self.pool[slot].stale = true;
            self.rest_if_idle(slot);
        }
        self.reconsider_at_least(Reconsider::Kinds);
        self.out.push(Effect::Done { request });
    }

    /// Pins or unpins a model in place of its manifest's setting, or restores that setting (RC-19).
    pub(super) fn pin(&mut self, request: RequestId, name: &ModelId, pinned: Option<bool>) {
        let Some(model) = self.operate_on(request, name) else { return };
        self.catalog[model].pinned = pinned;
        self.pins_changed(model);
        self.reconsider_at_least(Reconsider::Kinds);
        self.out.push(Effect::Done { request });
    }

    /// The model that an operator named; refuses the order when there is none.
    pub(super) fn operate_on(&mut self, request: RequestId, name: &ModelId) -> Option<ModelIndex> {
        if self.is_known(request) {
            return None;
        }
        match self.admit_model(name.as_str()) {
            Ok(model) => Some(model),
            Err(error) => {
                self.refuse(request, error);
                None
            }
        }
    }

    /// Stops a loading or idle slot now, and a busy one after its requests.
    pub(super) fn send_away(&mut self, slot: SlotId, cause: LeaveCause) {
        match self.pool[slot].state {
            SlotState::Ready(_) => self.drain_slot(slot, cause),
            _ => self.stop_slot(slot, cause),
        }
    }

    /// Applies a changed catalog. New models are added, and failed ones that changed get another try. Loaded ones
    /// that changed are replaced when idle. Models no longer listed finish their requests and stop.
    pub(super) fn catalog_changed(&mut self, models: Vec<ModelDescription>) {
        let change = self.catalog.replace(models, self.now);
        for model in change.changed {
            self.catalog[model].failures.forget();
            self.catalog[model].wish = LoadWish::default();
            self.queue.doubt_likeness(model);
            self.timers.clear(Timer::Consider(model));
            self.back_in_line(model);
            // The model may now need room on other devices.
            self.drop_claim(model);
        }
        for model in change.removed {
            let name = self.catalog[model].id().clone();
            let message = format!("model '{name}' was removed while the request waited for it");
            self.refuse_all(model, &Refusal::new(RefusalReason::UnknownModel, message).about(Subject::Model));
            self.catalog[model].wish = LoadWish::default();
            self.fail_move(model, "it was removed");
            if let Some(slot) = self.catalog[model].serving {
                let reason = LeaveCause::Removed.to_string();
                self.decisions.record(self.now, Verdict::Unload, &name, None, vec![reason]);
                self.send_away(slot, LeaveCause::Removed);
            }
        }
        // Pins, stay-warm times and numbers of concurrent requests may have changed with or without the revision.
        let serving: Vec<(ModelIndex, SlotId)> =
            self.catalog.iter().filter_map(|(index, model)| Some((index, model.serving?))).collect();
        for (model, _) in serving {
            self.pins_changed(model);
        }
        self.forget_path_models();
        self.forget_models_that_left();
        self.reconsider_at_least(Reconsider::Kinds);
    }

    /// Applies changes of a model's pin, stay-warm time or concurrency.
    fn pins_changed(&mut self, model: ModelIndex) {
        let Some(slot) = self.catalog[model].serving else { return };
        match self.pool[slot].state {
            SlotState::Ready(ReadyPhase::Serving) => self.pump(model),
            SlotState::Ready(ReadyPhase::Draining) if self.catalog[model].is_pinned() => self.keep_pinned(slot),
            _ => {}
        }
    }

    /// Keeps serving a slot that drains for another model, if it was pinned meanwhile (RC-19).
    fn keep_pinned(&mut self, slot: SlotId) {
        let Some(LeaveCause::Eviction { room_for }) = &self.pool[slot].leaving else { return };
        if let Some(claimant) = self.catalog.resolve_any(room_for) {
            self.drop_claim(claimant);
        }
    }

    /// Starts the shutdown; no further request is accepted. Running requests finish, and so do accepted ones whose
    /// model is ready. All others are refused now, because a load would only delay the end.
    pub(super) fn drain(&mut self) {
        if self.life != Life::Serving {
            return;
        }
        self.life = Life::Draining;
        self.end_moves();
        self.second_try = None;
        let models: Vec<ModelIndex> = self.catalog.iter().map(|(index, _)| index).collect();
        for &model in &models {
            self.drop_claim(model);
        }
        for model in models {
            self.refuse_what_cannot_run(model);
            let Some(slot) = self.catalog[model].serving else { continue };
            match self.pool[slot].state {
                SlotState::Ready(ReadyPhase::Serving) => self.pump(model),
                SlotState::Ready(_) => self.rest_if_idle(slot),
                _ => self.stop_slot(slot, LeaveCause::Shutdown),
            }
        }
    }

    /// During shutdown, refuses the requests that wait for a model that is not ready.
    pub(super) fn refuse_what_cannot_run(&mut self, model: ModelIndex) {
        if !self.is_serving(model) {
            self.refuse_all(model, &draining());
        }
    }

    /// Whether a slot of this model accepts requests.
    pub(super) fn is_serving(&self, model: ModelIndex) -> bool {
        let state = self.catalog[model].serving.map(|slot| self.pool[slot].state);
        state == Some(SlotState::Ready(ReadyPhase::Serving))
    }
}
