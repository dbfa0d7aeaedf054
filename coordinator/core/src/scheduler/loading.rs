//! Loads of cold models: at once, after evictions, or in their turn (RC-6, RC-7, MM-7).

use model_boss_protocol::{ByteCount, DeviceId, ModelId, Priority, RequestId, SlotId};

use super::room::{Ask, NoRoom, Offer};
use super::state::{FAMILIES_KEPT, FamilyKey, Life, Looked, Scheduler, Timer};
use crate::catalog::ModelIndex;
use crate::device::ScheduledDevice;
use crate::eviction::Lacking;
use crate::placement::{PlacementError, Site};
use crate::queue::LoadState;
use crate::reason::{Blocker, Protection};
use crate::refusal::{Refusal, RefusalReason};
use crate::slot::Filling;
use crate::{Verdict, WaitReason};

/// Why a model is loaded.
pub(super) struct LoadCause {
    /// The request that waits for it, if there is one.
    pub(super) request: Option<RequestId>,
    /// The priority of the load.
    pub(super) priority: Priority,
    /// The reason, for people.
    pub(super) reason: String,
}

impl Scheduler {
    /// The second half of `get_or_load`, for a model with waiting requests and no slot that serves. It gets a load,
    /// or room for one, or waits on. The reason for a wait is computed only on demand, by [`Self::why_no_load`].
    pub(super) fn consider(&mut self, model: ModelIndex) -> Looked {
        self.queue.refresh(model, self.now);
        let wanted = self.queue.residency(model) == LoadState::Absent && self.queue.best(model, self.now).is_some();
        if wanted && !self.is_ledger_open() {
            self.begin_patience();
        }
        if !wanted || self.life != Life::Serving {
            return Looked::Passed;
        }
        let rests = self.must_rest(model);
        self.queue.set_aside(model, rests || self.claims.contains_key(&model));
        if rests || self.is_held_up(model) {
            return Looked::Passed;
        }
        let ask = self.ask_of(model);
        let sites = self.sites(&ask);
        self.note_likeness(&ask, sites.as_deref().unwrap_or_default());
        // A model that has its turn at no site gets no offer.
        let offer = |sites: Vec<Site>| {
            if self.is_no_turn_at(&ask, &sites) { Offer::No(Vec::new()) } else { self.offer_at(&ask, sites) }
        };
        match sites.map(offer) {
            Err(error) => match error.refusal(self.catalog[model].id()) {
                Some(refusal) => self.refuse_for_good(model, &refusal),
                None => {
                    self.drop_claim(model);
                    return Looked::Blocked;
                }
            },
            Ok(Offer::Now(parts)) => self.start_load(&ask, parts),
            Ok(Offer::Coming) => {}
            Ok(Offer::After(plan)) => self.make_room(&ask, plan),
            Ok(Offer::No(blocked)) => {
                self.drop_claim(model);
                if let Some(error) = self.refuse_in_default(&ask) {
                    self.refuse_for_good(model, &error);
                    return Looked::Alone;
                }
                self.wait_in_line(&ask, &blocked);
                self.wait_for_room(&ask, &blocked);
                return Looked::Blocked;
            }
        }
        Looked::Alone
    }

    /// Groups a model that wants a load with the models whose loads meet the same conditions.
    fn note_likeness(&mut self, ask: &Ask, sites: &[Site]) {
        let known = &self.catalog[ask.model].description;
        let streams = ask.estimate.streamed.is_some();
        let alone = !streams && sites.iter().all(|site| site.len() == 1);
        let key = FamilyKey {
            device: ask.device.clone(),
            category: known.category,
            alone_on: if alone { sites.concat() } else { Vec::new() },
            splittable: known.splittable,
            streams,
            exclusive: known.exclusive_devices.clone(),
        };
        if self.families.len() > FAMILIES_KEPT {
            self.families.clear();
        }
        let family = *self.families.entry(key).or_insert_with(|| {
            self.next_family = self.next_family.wrapping_add(1);
            self.next_family
        });
        let bytes = self.whole_at(ask, std::slice::from_ref(&ask.device)).bytes;
        let least = ask.estimate.streamed.map_or(bytes, |streaming| streaming.least.min(bytes));
        self.queue.set_likeness(ask.model, family, least);
    }

    /// The wait reason of a model that wants a load.
    pub(super) fn why_no_load(&self, model: ModelIndex) -> WaitReason {
        let ask = self.ask_of(model);
        if let Some(reason) = self.why_held_up(model) {
            return reason;
        }
        if self.is_room_coming(&ask)
            && let Some(claim) = self.claim_of(model)
            && let Some(device) = claim.site.first()
        {
            if claim.victims.is_empty() {
                return self.why_revoking(model, &claim.site).unwrap_or(WaitReason::Queued);
            }
            return WaitReason::Reclaiming {
                device: device.clone(),
                victims: claim.victims.iter().map(|&victim| self.name_of(victim)).collect(),
            };
        }
        match self.offer(&ask) {
            Err(error) => self.why_no_place(&ask, error),
            Ok(Offer::No(blocked)) => {
                let reason = blocked.into_iter().next().map(|(site, why)| self.reason(&ask, &site, why));
                reason.unwrap_or(WaitReason::Queued)
            }
            // The situation changed since the model was last considered; the next consideration begins the load.
            Ok(Offer::Now(_) | Offer::Coming | Offer::After(_)) => WaitReason::Queued,
        }
    }

    /// The wait reason when no device can take the model at present.
    pub(super) fn why_no_place(&self, ask: &Ask, error: PlacementError) -> WaitReason {
        match error {
            PlacementError::Closed { device } => WaitReason::DeviceClosed { device },
            PlacementError::Lost { device, .. } => WaitReason::DeviceLost { device },
            _ => WaitReason::DeviceUnknown { device: ask.device.clone() },
        }
    }

    pub(super) fn reason(&self, ask: &Ask, site: &[DeviceId], why: NoRoom) -> WaitReason {
        let by = match why {
            NoRoom::Unknown(device) => return WaitReason::DeviceUnknown { device },
            NoRoom::Coming => return WaitReason::Queued,
            NoRoom::Turn(device, other) => {
                return WaitReason::Turn { device, model: self.catalog[other].id().clone() };
            }
            NoRoom::Blocked { by, .. } => by,
        };
        let held = |slot: SlotId| -> ByteCount { site.iter().map(|device| self.pool[slot].bytes_on(device)).sum() };
        let blocker =
            |&(slot, why): &(SlotId, Protection)| Blocker { model: self.name_of(slot), bytes: held(slot), why };
        let blockers: Vec<Blocker> = by.blockers.iter().map(blocker).collect();
        let category = self.catalog[ask.model].description.category;
        match (by.lacking, self.limit_of(ask.model)) {
            (Lacking::Place, Some(limit)) => WaitReason::Limit { category, limit, blockers },
            (Lacking::Device, _) => {
                let device = self.exclusive_on(ask.model, site).into_iter().next().unwrap_or_default();
                WaitReason::Exclusive { device, blockers }
            }
            _ => WaitReason::Capacity {
                needs: self.size_at(ask, site).need.total(),
                free: site.iter().filter_map(|device| self.devices.get(device).and_then(ScheduledDevice::free)).sum(),
                blockers,
                leases: self.in_the_way(ask, site),
                foreign: site.iter().filter_map(|device| self.devices.get(device)?.observation.foreign).sum(),
                device: site.first().cloned().unwrap_or_default(),
            },
        }
    }

    /// Whether a model is in backoff after a failed load or a refused lease.
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

    fn wait_for_room(&mut self, ask: &Ask, blocked: &[(Site, NoRoom)]) {
        let model = ask.model;
        let pins: Vec<&[SlotId]> = blocked
            .iter()
            .map(|(_, why)| match why {
                NoRoom::Blocked { pins, .. } => pins.as_slice(),
                _ => &[],
            })
            .collect();
        if !pins.is_empty() && pins.iter().all(|pins| !pins.is_empty()) {
            let error = self.slots_pinned(ask, &pins.concat());
            return self.refuse_for_good(model, &error);
        }
        let look_again = blocked.iter().filter_map(|(_, why)| match why {
            NoRoom::Blocked { by, .. } => by.look_again,
            _ => None,
        });
        // Preemption rights that a slot's age grants hold for all models of a kind. A right by a request's age holds
        // for that request alone.
        if let Some(at) = look_again.min() {
            self.timers.set_if_earlier(Timer::Rights, at);
        }
        let max_wait = self.settings.max_wait;
        let overdue = ask.heads.iter().map(|head| head.key.arrival.at + max_wait).filter(|at| *at > self.now);
        match overdue.min().filter(|_| !max_wait.is_zero()) {
            Some(at) => self.timers.set(Timer::Consider(model), at),
            None => self.timers.clear(Timer::Consider(model)),
        }
    }

    fn slots_pinned(&self, ask: &Ask, pins: &[SlotId]) -> Refusal {
        let place = |slot: SlotId| match self.pool[slot].parts.first() {
            Some((device, _)) => format!("'{}' on {device}", self.name_of(slot)),
            None => format!("'{}'", self.name_of(slot)),
        };
        let mut places: Vec<String> = pins.iter().map(|&slot| place(slot)).collect();
        places.sort_unstable();
        places.dedup();
        let message = format!(
            "model '{}' needs {}, and only pinned models could make room: {}; unpin one of them",
            self.catalog[ask.model].id(),
            ask.estimate.bytes,
            places.join(", ")
        );
        Refusal::new(RefusalReason::Pinned, message)
    }

    fn refuse_for_good(&mut self, model: ModelIndex, error: &Refusal) {
        self.decisions.record(
            self.now,
            Verdict::Refuse,
            self.catalog[model].id(),
            self.queue.best(model, self.now).map(|head| head.id),
            vec![error.message.clone()],
        );
        self.drop_claim(model);
        self.refuse_all(model, error);
    }

    pub(super) fn name_of(&self, slot: SlotId) -> ModelId {
        self.catalog[self.pool[slot].model].id().clone()
    }

    fn start_load(&mut self, ask: &Ask, parts: Vec<(DeviceId, ByteCount)>) {
        if let Some(cause) = ask.heads.first() {
            let reason = format!("a request of priority {} waits for it", cause.base);
            self.begin_load(ask, parts, LoadCause { request: Some(cause.id), priority: cause.base, reason });
        }
    }

    /// Begins a load for which memory is free, for a request or ahead of one.
    pub(super) fn begin_load(&mut self, ask: &Ask, parts: Vec<(DeviceId, ByteCount)>, cause: LoadCause) {
        // The model leaves its queue before its claim is cancelled, so that it does not join the queue again in
        // between.
        self.queue.set_residency(ask.model, LoadState::Coming);
        match self.begin_filling(ask, parts, cause) {
            Some(slot) => self.catalog[ask.model].serving = Some(slot),
            None => self.queue.set_residency(ask.model, LoadState::Absent),
        }
    }

    /// Charges the parts to their devices and requests a lease from the ledger.
    pub(super) fn begin_filling(
        &mut self,
        ask: &Ask,
        parts: Vec<(DeviceId, ByteCount)>,
        LoadCause { request, priority, reason }: LoadCause,
    ) -> Option<SlotId> {
        let model = ask.model;
        self.drop_claim(model);
        self.timers.clear(Timer::Consider(model));
        let site: Site = parts.iter().map(|(device, _)| device.clone()).collect();
        let size = self.size_at(ask, &site);
        let size_rule = size.rule;
        let place = |(device, bytes): &(DeviceId, ByteCount)| {
            let free = self.devices.get(device).and_then(ScheduledDevice::free).unwrap_or_default();
            format!("{bytes} on {device}, {free} free there")
        };
        let places: Vec<String> = parts.iter().map(place).collect();
        let filling = Filling {
            request,
            priority,
            revision: self.catalog[model].description.revision,
            context: ask.context,
            layers: self.layers_of(ask, &size),
            exclusive: self.exclusive_on(model, &site),
            size_rule,
        };
        let id = self.pool.vacant(model, &self.catalog[model].slots);
        let order = self.pool[id].fill(self.now, parts, filling)?;
        self.pool[id].engine = self.catalog[model].wish.engine.clone();
        self.catalog[model].returns = None;
        self.pool.entered(id);
        if !self.pool[id].exclusive.is_empty() {
            self.alone.insert(id);
        }
        self.devices.charge(id, &self.pool[id].parts);
        let known = &mut self.catalog[model];
        if !known.slots.contains(&id) {
            known.slots.push(id);
        }
        let mut reasons = vec![reason, format!("{} (size by rule '{size_rule}')", places.join("; "))];
        if let Some(why) = self.layers_view(ask, &site, &size).why {
            reasons.push(format!("its layers come and go: {why}"));
        }
        self.decisions.record(self.now, Verdict::Load, self.catalog[model].id(), request, reasons);
        self.give_order(id, order);
        Some(id)
    }
}
