//! Moves of loaded models between devices (DM-5). A second copy is loaded and takes over in one step; the first copy
//! finishes its requests and stops. A load with a larger context works the same way (RC-29). If the second copy fails,
//! the first one keeps serving.

use std::time::Duration;

use model_boss_protocol::{ByteCount, DeviceId, ModelId, Priority, RequestId, SlotId};

use super::loading::LoadCause;
use super::operator::LoadRequest;
use super::requests::draining;
use super::room::{Ask, NoRoom, Offer};
use super::state::{Life, Move, Reconsider, Scheduler, Timer};
use crate::catalog::{LoadWish, ModelIndex};
use crate::reason::LeaveCause;
use crate::refusal::{Refusal, RefusalReason, Subject};
use crate::slot::SlotState;
use crate::{Effect, Principal, Verdict};

/// The time for which a move repeats its request to a ledger that refuses the second copy's lease.
const LEASE_PATIENCE: Duration = Duration::from_secs(30);

impl Scheduler {
    pub(super) fn move_model(
        &mut self,
        request: RequestId,
        by: &Principal,
        name: &ModelId,
        device: &DeviceId,
        evict: bool,
        priority: Priority,
    ) {
        let Some(model) = self.operate_on(request, name) else { return };
        let (client, priority) = self.client_and_priority(by, Some(priority));
        match self.admit_client(client).and_then(|()| self.admit_move(model, device)) {
            Err(error) => return self.refuse(request, error),
            Ok(MoveAdmission::IsThere) => return self.out.push(Effect::Done { request }),
            Ok(MoveAdmission::Needed) => {}
        }
        if let Some(moving) = self.moves.get_mut(&model) {
            moving.callers.push(request);
            moving.evict |= evict;
            moving.priority = moving.priority.min(priority);
        } else {
            let known = &self.catalog[model];
            let context = known.serving.and_then(|slot| self.pool[slot].context);
            let layers = known.wish.layers;
            let estimate = known.wish.size.as_ref().unwrap_or(&known.description.size).clone();
            let arrival = self.queue.arrive(self.now);
            let moving = Move {
                callers: vec![request],
                asker: request,
                priority,
                arrival,
                device: device.clone(),
                context,
                layers,
                estimate,
                evict,
                began: self.now,
                again_at: None,
                slot: None,
                reload: None,
            };
            self.moves.insert(model, moving);
        }
        self.consider_move(model);
    }

    fn admit_move(&self, model: ModelIndex, device: &DeviceId) -> Result<MoveAdmission, Refusal> {
        let name = self.catalog[model].id();
        let error = |reason, message: String, subject| Err(Refusal::new(reason, message).about(subject));
        if *device == DeviceId::Auto {
            let message = "a move needs the name of a device; 'auto' names none".to_owned();
            return error(RefusalReason::NoDevice, message, Subject::Device);
        }
        let Some(slot) = self.catalog[model].serving.filter(|&slot| !self.is_leaving(slot)) else {
            return error(RefusalReason::NotLoaded, format!("model '{name}' is not loaded"), Subject::Model);
        };
        match self.devices.get(device) {
            None => return Err(self.no_such_device(device)),
            Some(found) if found.closed => {
                let message = format!("device '{device}' was freed for something else");
                return error(RefusalReason::DeviceUnavailable, message, Subject::Device);
            }
            Some(found) if found.lost.is_some() => {
                let message = format!("device '{device}' is gone: its driver does not list it any more");
                return error(RefusalReason::DeviceUnavailable, message, Subject::Device);
            }
            Some(_) => {}
        }
        match self.moves.get(&model) {
            Some(moving) if moving.reload.is_some() || moving.device != *device => {
                let message = format!(
                    "model '{name}' is on its way to {} already and still on {}; try again when it is there",
                    moving.device,
                    self.place_of(slot)
                );
                error(RefusalReason::MoveFailed { by_worker: false }, message, Subject::Device)
            }
            Some(_) => Ok(MoveAdmission::Needed),
            None if matches!(self.pool[slot].computing(), [(only, _)] if only == device) => Ok(MoveAdmission::IsThere),
            None => Ok(MoveAdmission::Needed),
        }
    }

    /// Begins a move that has room, makes room where that is allowed, or ends a move that has none.
    pub(super) fn consider_move(&mut self, model: ModelIndex) {
        let Some(moving) = self.moves.get(&model) else { return };
        let rests = moving.again_at.is_some_and(|at| at > self.now);
        if moving.slot.is_some()
            || rests
            || self.life != Life::Serving
            || self.second_try.is_some()
            || !self.is_ledger_open()
        {
            return;
        }
        match self.catalog[model].serving.map(|slot| self.pool[slot].state) {
            Some(SlotState::Ready(_)) => {}
            Some(_) => return,
            None => return self.fail_move(model, "it is not loaded any more"),
        }
        let asker = self.queue.stand_in(moving.asker, moving.priority, moving.arrival, self.now);
        let ask = Ask {
            model,
            device: moving.device.clone(),
            context: moving.context,
            layers: moving.layers,
            estimate: moving.estimate.clone(),
            heads: if moving.evict { vec![asker] } else { Vec::new() },
        };
        match self.offer(&ask) {
            Err(error) => self.fail_move(model, &error.to_string()),
            Ok(Offer::Now(parts)) => self.begin_move(&ask, parts),
            Ok(Offer::Coming) => {}
            Ok(Offer::After(plan)) => self.make_room(&ask, plan),
            Ok(Offer::No(blocked)) => {
                let stays = blocked.into_iter().find(|(_, why)| !matches!(why, NoRoom::Turn(..) | NoRoom::Coming));
                if let Some((site, why)) = stays {
                    let hint = if ask.heads.is_empty() { "; evict = true would make room if it may" } else { "" };
                    let text = format!("{}{hint}", self.reason(&ask, &site, why));
                    self.fail_move(model, &text);
                }
            }
        }
    }

    fn begin_move(&mut self, ask: &Ask, parts: Vec<(DeviceId, ByteCount)>) {
        let model = ask.model;
        let Some(moving) = self.moves.get(&model) else { return };
        let priority = moving.priority;
        let from = self.catalog[model].serving.map(|slot| self.place_of(slot)).unwrap_or_default();
        let reason = match &moving.reload {
            Some(_) => format!("a load asks for other settings; it serves on {from} until then"),
            None => format!("an operator moves it; it serves on {from} until then"),
        };
        let slot = self.begin_filling(ask, parts, LoadCause { request: None, priority, reason });
        if let Some(moving) = self.moves.get_mut(&model) {
            moving.slot = slot;
        }
    }

    /// Reloads a model that serves with too little context or on another device than wanted (RC-29). The second copy is
    /// loaded beside the first where both fit. Returns whether that load was begun; if not, the first copy has to stop
    /// first.
    pub(super) fn reload_beside(&mut self, wanted: &LoadRequest<'_>, ask: &Ask, before: LoadWish) -> bool {
        let Ok(Offer::Now(parts)) = self.offer(ask) else { return false };
        let LoadRequest { id: request, priority, .. } = *wanted;
        let arrival = self.queue.arrive(self.now);
        let moving = Move {
            callers: vec![request],
            asker: request,
            priority,
            arrival,
            device: ask.device.clone(),
            context: ask.context,
            layers: ask.layers,
            estimate: ask.estimate.clone(),
            evict: false,
            began: self.now,
            again_at: None,
            slot: None,
            reload: Some(before),
        };
        self.moves.insert(ask.model, moving);
        self.begin_move(ask, parts);
        true
    }

    /// Completes a move if the slot that became ready is a second copy: it takes over in this step and the first copy
    /// drains.
    pub(super) fn take_over(&mut self, id: SlotId) {
        let model = self.pool[id].model;
        let Some(moving) = self.moves.get(&model).filter(|moving| moving.slot == Some(id)) else { return };
        let reload = moving.reload.is_some();
        if !reload {
            // After a crash the model is loaded again on the device it was moved to.
            self.catalog[model].wish.device = Some(moving.device.clone());
        }
        let callers = self.moves.remove(&model).map(|moving| moving.callers).unwrap_or_default();
        let old = self.catalog[model].serving.replace(id).filter(|old| *old != id);
        let mut reasons = vec![format!("serves on {} now", self.place_of(id))];
        if let Some(old) = old {
            reasons.push(format!("its copy on {} ends {} requests", self.place_of(old), self.pool[old].running.len()));
            let first = &self.pool[old];
            let (priority, keep_alive) = (first.last_priority, first.keep_alive);
            self.pool[id].last_priority = priority;
            self.pool[id].keep_alive = keep_alive;
        }
        self.decisions.record(self.now, Verdict::Move, self.catalog[model].id(), callers.first().copied(), reasons);
        if let Some(old) = old {
            self.drain_slot(old, if reload { LeaveCause::Reload } else { LeaveCause::Moved });
        }
        self.out.extend(callers.into_iter().map(|request| Effect::Done { request }));
    }

    /// The error for a load with other settings while the model moves: it has to wait for the outcome.
    pub(super) fn refuse_during_move(&self, model: ModelIndex) -> Option<Refusal> {
        let moving = self.moves.get(&model)?;
        let name = self.catalog[model].id();
        let message = format!("model '{name}' is on its way to {} already; try again when it is there", moving.device);
        Some(Refusal::new(RefusalReason::MoveFailed { by_worker: false }, message))
    }

    /// Ends a move that cannot be done; the first copy serves on.
    pub(super) fn fail_move(&mut self, model: ModelIndex, why: &str) {
        let error = self.moves.get(&model).map(|moving| self.move_error(model, moving, why));
        if let Some(error) = error {
            self.end_move(model, &error);
        }
    }

    /// Ends a move whose second copy's worker died. The caller's order was valid, and the error says so (DM-7).
    pub(super) fn fail_move_by_crash(&mut self, model: ModelIndex, why: &str) {
        let error = self.moves.get(&model).map(|moving| self.move_error(model, moving, why));
        if let Some(error) = error {
            let reason = match error.reason {
                RefusalReason::MoveFailed { .. } => RefusalReason::MoveFailed { by_worker: true },
                reason => reason,
            };
            self.end_move(model, &Refusal { reason, ..error });
        }
    }

    fn end_move(&mut self, model: ModelIndex, error: &Refusal) {
        let Some(moving) = self.moves.remove(&model) else { return };
        self.drop_claim(model);
        self.timers.clear(Timer::Move(model));
        if let Some(before) = moving.reload {
            self.catalog[model].wish = before;
        }
        let reasons = vec![error.message.clone()];
        self.decisions.record(self.now, Verdict::MoveFailed, self.catalog[model].id(), Some(moving.asker), reasons);
        if let Some(slot) = moving.slot.filter(|slot| self.load_phase(*slot).is_some()) {
            self.stop_slot(slot, LeaveCause::Moved);
        }
        for request in moving.callers {
            self.refuse(request, error.clone());
        }
        self.reconsider_at_least(Reconsider::Kinds);
    }

    fn move_error(&self, model: ModelIndex, moving: &Move, why: &str) -> Refusal {
        let name = self.catalog[model].id();
        let serving = self.catalog[model].serving.filter(|slot| moving.slot != Some(*slot) && !self.is_leaving(*slot));
        let still_on = match serving {
            Some(slot) => format!("; it is still on {}", self.place_of(slot)),
            None => String::new(),
        };
        let error = match moving.reload {
            Some(_) => Refusal::new(
                RefusalReason::LoadFailed,
                format!("model '{name}' could not be loaded with other settings: {why}{still_on}, as it was"),
            ),
            None => Refusal::new(
                RefusalReason::MoveFailed { by_worker: false },
                format!("model '{name}' was not moved to {}: {why}{still_on}", moving.device),
            ),
        };
        let device = serving.and_then(|slot| Some(self.pool[slot].parts.first()?.0.clone()));
        match device {
            Some(device) => error.about(Subject::Device).still_on(device),
            None => error.about(Subject::Device),
        }
    }

    /// Handles a ledger that refused the second copy's bytes for now.
    pub(super) fn move_lease_refused(&mut self, model: ModelIndex, reason: &str, again: Duration) {
        let Some(moving) = self.moves.get_mut(&model) else { return };
        moving.slot = None;
        if self.now.since(moving.began) >= LEASE_PATIENCE {
            return self.fail_move(model, &format!("the lease ledger does not give the memory: {reason}"));
        }
        moving.again_at = Some(self.now + again);
        self.timers.set(Timer::Move(model), self.now + again);
    }

    /// Makes a move ready for another try at once, after its second copy was lost before it was ready.
    pub(super) fn try_move_again(&mut self, model: ModelIndex) {
        if let Some(moving) = self.moves.get_mut(&model) {
            moving.slot = None;
        }
        self.reconsider_at_least(Reconsider::Kinds);
    }

    /// The slot that is being loaded to take over from the model's first copy.
    pub(super) fn second_copy(&self, model: ModelIndex) -> Option<SlotId> {
        self.moves.get(&model)?.slot
    }

    /// Fails all moves that this device takes part in, as target or as source.
    pub(super) fn fail_moves_to(&mut self, device: &DeviceId, why: &str) {
        let there = |id: SlotId| self.pool[id].parts.iter().any(|(part, _)| part == device);
        let to_it = self.moves.iter().filter(|(_, moving)| moving.device == *device || moving.slot.is_some_and(there));
        let models: Vec<ModelIndex> = to_it.map(|(model, _)| *model).collect();
        for model in models {
            self.fail_move(model, why);
        }
    }

    pub(super) fn consider_moves(&mut self) {
        let models: Vec<ModelIndex> = self.moves.keys().copied().collect();
        for model in models {
            self.consider_move(model);
        }
    }

    /// Ends all moves at shutdown.
    pub(super) fn end_moves(&mut self) {
        let models: Vec<ModelIndex> = self.moves.keys().copied().collect();
        for model in models {
            self.end_move(model, &draining());
        }
    }

    /// Drops a caller that disconnected; its move continues.
    pub(super) fn forget_caller(&mut self, request: RequestId) {
        for moving in self.moves.values_mut() {
            moving.callers.retain(|caller| *caller != request);
        }
    }

    pub(super) fn is_moving_for(&self, request: RequestId) -> bool {
        self.moves.values().any(|moving| moving.asker == request || moving.callers.contains(&request))
    }

    /// The slot's devices, in words.
    pub(super) fn place_of(&self, id: SlotId) -> String {
        let devices: Vec<String> = self.pool[id].computing().iter().map(|(device, _)| device.to_string()).collect();
        devices.join(" + ")
    }
}

/// The outcome for a caller who wants a model on a certain device.
enum MoveAdmission {
    IsThere,
    Needed,
}
