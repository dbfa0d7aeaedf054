//! How a cold model gets its memory: where it is loaded, whose turn it is, who leaves for it (RC-6, RC-7, RC-18, MM-7).

use model_boss_protocol::{ApiError, DeviceId, ErrorCode, ModelId, Priority, RequestId, SlotId};

use super::{Life, Reconsider, Scheduler, Timer};
use crate::catalog::ModelIndex;
use crate::device::{Claim, Device};
use crate::eviction::{self, Candidate, Hold, Usage, Victim};
use crate::placement;
use crate::queue::{Head, Residency};
use crate::reason::{Blocker, LeaveCause, Protection};
use crate::slot::{Filling, SlotState};
use crate::{Verdict, WaitReason};

/// What a device offers a model now.
pub(super) enum Room {
    /// It fits; this much is left beside it.
    Now { left: i128 },
    /// It fits when these have left.
    After { asker: Head, victims: Vec<Victim> },
    /// It has to wait.
    No(NoRoom),
}

/// Why a device offers nothing now.
pub(super) enum NoRoom {
    /// Its memory is not known.
    Unknown,
    /// Another model has its turn there.
    Turn(ModelIndex),
    /// Nobody there may be sent away, or too few.
    Blocked {
        by: eviction::Blocked,
        /// Without its pinned models there would be room.
        only_pins: bool,
    },
}

/// Who leaves which device for whose request.
struct Plan {
    device: DeviceId,
    asker: Head,
    victims: Vec<Victim>,
}

impl Plan {
    /// Requests that have to end first weigh most, then the models that have to be loaded again.
    fn cost(&self) -> (usize, usize) {
        (self.victims.iter().filter(|victim| victim.usage == Usage::Busy).count(), self.victims.len())
    }
}

impl Scheduler {
    /// `get_or_load`'s second half: a model that somebody waits for and no slot serves gets a load, or room for one, or
    /// waits on. Why it waits is worked out when somebody asks ([`Self::why_no_load`]).
    pub(super) fn consider(&mut self, model: ModelIndex) {
        self.queue.refresh(model, self.now);
        let wanted = self.queue.residency(model) == Residency::Absent && self.queue.best(model, self.now).is_some();
        if !wanted || self.life != Life::Serving || self.must_rest(model) {
            return;
        }
        let description = &self.catalog[model].description;
        let devices = match placement::candidates(description, &self.devices) {
            Ok(devices) => devices,
            Err(error) => {
                return match error.refusal(description) {
                    Some(refusal) => self.refuse_for_good(model, &refusal),
                    None => self.drop_claim(model),
                };
            }
        };
        let mut now = None;
        let mut after: Option<Plan> = None;
        let mut blocked = Vec::new();
        for device in devices {
            match self.room(model, &device) {
                Room::Now { left } => now = now.into_iter().chain([(left, device)]).min(),
                Room::After { asker, victims } => {
                    let plan = Plan { device, asker, victims };
                    if after.as_ref().is_none_or(|least| plan.cost() < least.cost()) {
                        after = Some(plan);
                    }
                }
                Room::No(why) => blocked.push((device, why)),
            }
        }
        if let Some((_, device)) = now {
            self.start_load(model, &device);
        } else if self.is_room_coming(model) {
            // What was asked to leave is still leaving.
        } else if let Some(plan) = after {
            self.make_room(model, plan);
        } else {
            self.drop_claim(model);
            self.wait_for_room(model, &blocked);
        }
    }

    /// What a model that wants a load waits for.
    pub(super) fn why_no_load(&self, model: ModelIndex) -> WaitReason {
        let known = &self.catalog[model];
        if self.is_room_coming(model)
            && let Some((device, claim)) = known.claim.as_ref().zip(self.claim_of(model))
            && !claim.victims.is_empty()
        {
            return WaitReason::Reclaiming {
                device: device.clone(),
                victims: claim.victims.iter().map(|&victim| self.name_of(victim)).collect(),
            };
        }
        let Ok(devices) = placement::candidates(&known.description, &self.devices) else {
            let device = known.description.device.clone();
            return match self.devices.get(&device) {
                Some(found) if found.closed => WaitReason::DeviceClosed { device },
                _ => WaitReason::DeviceUnknown { device },
            };
        };
        let reason = |device: DeviceId| match self.room(model, &device) {
            Room::No(NoRoom::Unknown) => Some(WaitReason::DeviceUnknown { device }),
            Room::No(NoRoom::Turn(other)) => Some(WaitReason::Turn { device, model: self.catalog[other].id().clone() }),
            Room::No(NoRoom::Blocked { by, .. }) => {
                let blocker = |&(slot, why): &(SlotId, Protection)| Blocker {
                    model: self.name_of(slot),
                    bytes: self.pool[slot].bytes_on(&device),
                    why,
                };
                Some(WaitReason::Capacity {
                    needs: known.description.size.bytes,
                    free: self.devices.get(&device).and_then(Device::free).unwrap_or_default(),
                    blockers: by.blockers.iter().map(blocker).collect(),
                    device,
                })
            }
            // Time has passed since it was looked at; the next look takes it.
            Room::Now { .. } | Room::After { .. } => None,
        };
        devices.into_iter().find_map(reason).unwrap_or(WaitReason::Queued)
    }

    /// A failed model and a refused lease are not tried again before their time.
    pub(super) fn must_rest(&mut self, model: ModelIndex) -> bool {
        let known = &mut self.catalog[model];
        let failed = known.failures.waits_until(self.now);
        if known.lease_refusal.as_ref().is_some_and(|refusal| refusal.until <= self.now) {
            known.lease_refusal = None;
        }
        let refused = known.lease_refusal.as_ref().map(|refusal| refusal.until);
        match failed.max(refused) {
            None => false,
            Some(until) => {
                self.timers.set(Timer::Consider(model), until);
                self.drop_claim(model);
                true
            }
        }
    }

    fn wait_for_room(&mut self, model: ModelIndex, blocked: &[(DeviceId, NoRoom)]) {
        let only_pins = |(_, why): &(DeviceId, NoRoom)| matches!(why, NoRoom::Blocked { only_pins: true, .. });
        if !blocked.is_empty() && blocked.iter().all(only_pins) {
            let error = self.slots_pinned(model, blocked);
            return self.refuse_for_good(model, &error);
        }
        let look_again = blocked.iter().filter_map(|(_, why)| match why {
            NoRoom::Blocked { by, .. } => by.look_again,
            _ => None,
        });
        match look_again.min() {
            Some(at) => self.timers.set(Timer::Consider(model), at),
            None => self.timers.clear(Timer::Consider(model)),
        }
    }

    fn slots_pinned(&self, model: ModelIndex, blocked: &[(DeviceId, NoRoom)]) -> ApiError {
        let mut pins = Vec::new();
        for (device, why) in blocked {
            let NoRoom::Blocked { by, .. } = why else { continue };
            let pinned = by.blockers.iter().filter(|(_, why)| *why == Protection::Pinned);
            pins.extend(pinned.map(|&(slot, _)| format!("'{}' on {device}", self.name_of(slot))));
        }
        let known = &self.catalog[model];
        let message = format!(
            "model '{}' needs {}, and only pinned models could make room: {}; unpin one of them",
            known.id(),
            known.description.size.bytes,
            pins.join(", ")
        );
        ApiError::new(ErrorCode::SlotsPinned, message)
    }

    fn refuse_for_good(&mut self, model: ModelIndex, error: &ApiError) {
        self.decisions.record(
            self.now,
            Verdict::Refuse,
            self.catalog[model].id(),
            self.queue.best(model, self.now).map(|head| head.id),
            vec![error.message.clone()],
        );
        self.refuse_all(model, error);
    }

    pub(super) fn room(&self, model: ModelIndex, name: &DeviceId) -> Room {
        let Some(device) = self.devices.get(name) else { return Room::No(NoRoom::Unknown) };
        let Some(balance) = device.balance() else { return Room::No(NoRoom::Unknown) };
        let need = i128::from(self.catalog[model].description.size.bytes.0);
        let other = device.claim.as_ref().filter(|claim| claim.model != model);
        let promised = other.map_or(0, |claim| self.counts_on_free(name, claim));
        let left = balance - promised - need;
        match device.loading {
            None if left >= 0 => return Room::Now { left },
            None => {}
            Some(slot) if !self.is_unwanted(slot) => return Room::No(NoRoom::Turn(self.pool[slot].model)),
            // A load for nobody makes way for whoever wants the device (RC-11).
            Some(slot) if left >= 0 => {
                let Some(asker) = self.queue.best(model, self.now) else {
                    return Room::No(NoRoom::Turn(self.pool[slot].model));
                };
                let victim = Victim { slot, usage: Usage::Idle, right: eviction::Right::Unwanted };
                return Room::After { asker, victims: vec![victim] };
            }
            Some(_) => {}
        }
        let mut heads: Vec<Head> = self.queue.heads(model, self.now).collect();
        if let Some(claim) = other {
            heads.retain(|head| head.base < claim.standing);
            if heads.is_empty() {
                return Room::No(NoRoom::Turn(claim.model));
            }
        }
        heads.sort_unstable_by_key(|head| head.key);
        self.plan(model, name, device, need - balance, &heads)
    }

    /// Whom the requests of a model may send away to get `missing` bytes.
    fn plan(&self, model: ModelIndex, name: &DeviceId, device: &Device, missing: i128, heads: &[Head]) -> Room {
        let mut coming = 0;
        let mut candidates = Vec::with_capacity(device.slots.len());
        for &slot in &device.slots {
            if self.is_leaving(slot) {
                coming += self.bytes(slot, name);
            } else {
                candidates.push(self.candidate(slot, name));
            }
        }
        let mut by = eviction::Blocked::default();
        for asker in heads {
            match eviction::plan(asker, missing - coming, &candidates, self.now, &self.settings) {
                Ok(victims) => return Room::After { asker: *asker, victims },
                Err(blocked) => {
                    by.look_again = [by.look_again, blocked.look_again].into_iter().flatten().min();
                    // What stands in the way of the first request is what is shown.
                    if by.blockers.is_empty() {
                        by.blockers = blocked.blockers;
                    }
                }
            }
        }
        let pinned = candidates.iter().filter(|candidate| candidate.hold == Hold::Always(Protection::Pinned));
        let pinned: i128 = pinned.map(|candidate| candidate.bytes).sum();
        let need = i128::from(self.catalog[model].description.size.bytes.0);
        let only_pins = device.room_for_models().is_some_and(|room| room >= need && room - pinned < need);
        Room::No(NoRoom::Blocked { by, only_pins })
    }

    /// Whether a slot is being loaded and nobody waits for it any more.
    pub(super) fn is_unwanted(&self, id: SlotId) -> bool {
        let slot = &self.pool[id];
        let known = &self.catalog[slot.model];
        matches!(slot.state, SlotState::Loading(_)) && !known.is_pinned() && self.queue.len_of(slot.model) == 0
    }

    fn candidate(&self, id: SlotId, device: &DeviceId) -> Candidate {
        let slot = &self.pool[id];
        let pinned = self.catalog[slot.model].is_pinned();
        let mut queued: Option<(crate::queue::OrderKey, model_boss_protocol::Priority)> = None;
        for head in self.queue.heads(slot.model, self.now) {
            let (key, base) = queued.unwrap_or((head.key, head.base));
            queued = Some((key.min(head.key), base.min(head.base)));
        }
        let hold = match slot.state {
            _ if pinned => Hold::Always(Protection::Pinned),
            _ if self.is_unwanted(id) => Hold::Unwanted,
            SlotState::Ready(_) if slot.cause.is_none() => {
                Hold::Until(slot.ready_at + slot.hold(self.settings.min_hold))
            }
            SlotState::Ready(_) => Hold::Always(Protection::CauseWaits),
            _ => Hold::Always(Protection::Loading),
        };
        Candidate {
            slot: id,
            bytes: self.bytes(id, device),
            hold,
            rank: slot.rank(self.now, self.settings.aging_step),
            usage: if slot.is_busy() { Usage::Busy } else { Usage::Idle },
            last_used: slot.last_used,
            last_priority: slot.last_priority,
            queued,
        }
    }

    fn bytes(&self, slot: SlotId, device: &DeviceId) -> i128 {
        i128::from(self.pool[slot].bytes_on(device).0)
    }

    /// How much of what is free now a claim needs beside what its victims will give back.
    fn counts_on_free(&self, device: &DeviceId, claim: &Claim) -> i128 {
        let coming: i128 = claim.victims.iter().map(|&victim| self.bytes(victim, device)).sum();
        (i128::from(claim.need.0) - coming).max(0)
    }

    /// Whether this model's claim will be met by what is leaving already.
    fn is_room_coming(&self, model: ModelIndex) -> bool {
        let known = &self.catalog[model];
        let Some(name) = &known.claim else { return false };
        let Some(device) = self.devices.get(name) else { return false };
        let (Some(claim), Some(balance)) = (&device.claim, device.balance()) else { return false };
        if device.loading.is_some_and(|slot| self.is_unwanted(slot)) {
            return false;
        }
        let coming: i128 = claim.victims.iter().map(|&victim| self.bytes(victim, name)).sum();
        balance + coming >= i128::from(known.description.size.bytes.0)
    }

    fn name_of(&self, slot: SlotId) -> ModelId {
        self.catalog[self.pool[slot].model].id().clone()
    }

    /// Sends the victims away and keeps the turn and the room for this model.
    fn make_room(&mut self, model: ModelIndex, plan: Plan) {
        let Plan { device: name, asker, victims } = plan;
        self.drop_claim(model);
        let asking = self.catalog[model].id().clone();
        let mut leaving: Vec<SlotId> = victims.iter().map(|victim| victim.slot).collect();
        let Some(device) = self.devices.get_mut(&name) else { return };
        let ousted = device.claim.take();
        if let Some(other) = &ousted {
            self.catalog[other.model].claim = None;
        }
        let on_device: Vec<SlotId> =
            self.devices.get(&name).map(|d| d.slots.iter().copied().collect()).unwrap_or_default();
        leaving.extend(on_device.into_iter().filter(|&slot| self.is_leaving(slot)));
        let claim = Claim {
            model,
            asker: asker.id,
            standing: eviction::standing(&asker, &victims),
            need: self.catalog[model].description.size.bytes,
            victims: leaving.clone(),
        };
        if let Some(device) = self.devices.get_mut(&name) {
            device.claim = Some(claim);
        }
        self.catalog[model].claim = Some(name);
        for victim in &victims {
            let name = self.name_of(victim.slot);
            let what = if victim.usage == Usage::Busy { Verdict::Drain } else { Verdict::Evict };
            let reasons = vec![format!("room for '{asking}' (priority {})", asker.base), victim.right.to_string()];
            self.decisions.record(self.now, what, &name, Some(asker.id), reasons);
            let cause = match victim.right {
                eviction::Right::Unwanted => LeaveCause::Unwanted,
                _ => LeaveCause::Eviction { room_for: asking.clone() },
            };
            match victim.usage {
                Usage::Idle => self.stop_slot(victim.slot, cause),
                Usage::Busy => self.drain_slot(victim.slot, cause),
            }
        }
        if let Some(other) = ousted {
            for slot in other.victims {
                if !leaving.contains(&slot) {
                    self.keep_slot(slot, other.model);
                }
            }
            self.reconsider_at_least(Reconsider::First);
        }
    }

    /// Gives up the turn; victims that still drain for it stay.
    pub(super) fn drop_claim(&mut self, model: ModelIndex) {
        let Some(name) = self.catalog[model].claim.take() else { return };
        let Some(device) = self.devices.get_mut(&name) else { return };
        let Some(claim) = device.claim.take() else { return };
        for victim in claim.victims {
            self.keep_slot(victim, model);
        }
    }

    pub(super) fn claim_of(&self, model: ModelIndex) -> Option<&Claim> {
        let device = self.catalog[model].claim.as_ref()?;
        self.devices.get(device)?.claim.as_ref()
    }

    fn start_load(&mut self, model: ModelIndex, device: &DeviceId) {
        if let Some(cause) = self.queue.best(model, self.now) {
            self.begin_load(model, device, Some(cause.id), cause.base);
        }
    }

    /// Begins a load where there is room, for a request or for nobody yet.
    pub(super) fn begin_load(
        &mut self,
        model: ModelIndex,
        device: &DeviceId,
        cause: Option<RequestId>,
        priority: Priority,
    ) {
        self.drop_claim(model);
        self.timers.clear(Timer::Consider(model));
        let description = &self.catalog[model].description;
        let size = description.size.clone();
        let filling = Filling { request: cause, priority, revision: description.revision };
        let free = self.devices.get(device).and_then(Device::free).unwrap_or_default();
        let id = self.pool.vacant(model, &self.catalog[model].slots);
        let parts = vec![(device.clone(), size.bytes)];
        let Some(order) = self.pool[id].fill(self.now, parts, filling) else { return };
        self.pool.entered();
        self.devices.charge(id, &self.pool[id].parts);
        let known = &mut self.catalog[model];
        if !known.slots.contains(&id) {
            known.slots.push(id);
        }
        known.serving = Some(id);
        self.queue.set_residency(model, Residency::Coming);
        let reasons = vec![
            match cause {
                Some(_) => format!("a request of priority {priority} waits for it"),
                None => format!("a request of priority {priority} came too late for it, the next may be in time"),
            },
            format!("{} on {device} (size by rule '{}'), {free} free there", size.bytes, size.rule),
        ];
        self.decisions.record(self.now, Verdict::Load, self.catalog[model].id(), cause, reasons);
        self.give_order(id, order);
    }
}
