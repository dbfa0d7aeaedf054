//! Leases of other holders (LE-3). The scheduler plans around them, and takes a place in the ledger's queue before it
//! evicts models. It has leases that allow it revoked for more important requests. In return, it evicts idle models for
//! other holders' more important requests, and releases leases that these revoke.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use model_boss_protocol::{ByteCount, DeviceId, OtherLease, OtherRequest, Priority, SignedBytes, SlotId};

use super::room::{Ask, NoRoom};
use super::state::{LEAST_WAIT, LedgerPlace, Life, Reconsider, Scheduler, Timer};
use crate::catalog::ModelIndex;
use crate::eviction::Lacking;
use crate::need::Parts;
use crate::phase::{LoadPhase, ReadyPhase};
use crate::placement::Site;
use crate::queue::LoadState;
use crate::reason::LeaveCause;
use crate::refusal::{Refusal, RefusalReason};
use crate::slot::{SlotEvent, SlotState};
use crate::slot_key::SlotKey;
use crate::{AskedLease, Effect, LeaseShare, Verdict, WaitReason, split};

/// The default pause before the next attempt of a request that waited in vain for the release of a revoked lease.
const AFTER_DEFAULT: Duration = Duration::from_secs(30);

impl Scheduler {
    pub(super) fn others_changed(&mut self, leases: Vec<OtherLease>, requests: Vec<OtherRequest>) {
        let asked = |leases: &[OtherLease]| -> Vec<(bool, bool)> {
            leases.iter().map(|lease| (lease.may_be_asked, lease.in_default)).collect()
        };
        let others = &mut self.others;
        let mut changed = others.requests != requests || asked(&others.leases) != asked(&leases);
        (others.leases, others.requests) = (leases, requests);
        let leases = &self.others.leases;
        changed |= self.devices.lease_out(|device| leases.iter().map(|lease| lease.on(device)).sum());
        // The remaining time of a lease changes no decision.
        if changed {
            self.accounts_changed = true;
            self.memory_changed();
        }
    }

    /// The leases of other holders on these devices, and their requests with precedence, largest first.
    pub(super) fn shares(&self, site: &[DeviceId]) -> Vec<LeaseShare> {
        let mut shares: Vec<LeaseShare> = self
            .others
            .leases
            .iter()
            .map(|lease| LeaseShare {
                lease: Some(lease.lease.clone()),
                ..share_of(&lease.label, lease.priority, site, |d| lease.on(d))
            })
            .filter(|share| share.bytes > ByteCount::ZERO)
            .collect();
        shares.sort_by_key(|share| Reverse(share.bytes));
        shares
    }

    /// Other holders' requests on these devices that have precedence over one of this priority.
    fn first(&self, site: &[DeviceId], priority: Priority) -> Vec<LeaseShare> {
        let first = self.others.requests.iter().filter(|request| request.priority <= priority);
        first
            .map(|request| share_of(&request.label, request.priority, site, |d| request.on(d)))
            .filter(|share| share.bytes > ByteCount::ZERO)
            .collect()
    }

    /// All leases and requests of other holders that occupy memory which an ask needs.
    pub(super) fn in_the_way(&self, ask: &Ask, site: &[DeviceId]) -> Vec<LeaseShare> {
        let mut shares = self.shares(site);
        shares.extend(self.first(site, importance(ask)));
        shares
    }

    /// The bytes of a device that other holders' requests with precedence will occupy before an ask.
    pub(super) fn taken_first(&self, ask: &Ask, device: &DeviceId) -> SignedBytes {
        let priority = importance(ask);
        let first = self.others.requests.iter().filter(|request| request.priority <= priority);
        first.map(|request| request.on(device).signed()).sum()
    }

    /// Leases on these devices that a request of this priority may preempt, or has preempted already.
    pub(super) fn yielding(&self, priority: Priority) -> impl Iterator<Item = &OtherLease> {
        let may = move |lease: &&OtherLease| {
            lease.revoking.is_some() || (lease.may_be_asked && !lease.in_default && lease.priority > priority)
        };
        self.others.leases.iter().filter(may)
    }

    pub(super) fn askable(&self, site: &[DeviceId], priority: Priority) -> Vec<LeaseShare> {
        let share = |lease: &OtherLease| LeaseShare {
            lease: Some(lease.lease.clone()),
            ..share_of(&lease.label, lease.priority, site, |d| lease.on(d))
        };
        self.yielding(priority).map(share).filter(|share| share.bytes > ByteCount::ZERO).collect()
    }

    /// The bytes that a device regains if all leases that may be preempted are released.
    pub(super) fn could_yield(&self, device: &DeviceId, priority: Priority) -> SignedBytes {
        self.yielding(priority).map(|lease| lease.on(device).signed()).sum()
    }

    /// The bytes of a device that will be free once the leases revoked for this model are released.
    pub(super) fn asked_back(&self, model: ModelIndex, device: &DeviceId) -> SignedBytes {
        match self.others.places.get(&model) {
            Some(place) if place.preempt => self.could_yield(device, place.priority),
            _ => SignedBytes::ZERO,
        }
    }

    /// The wait reason of a model for which leases of other holders were revoked.
    pub(super) fn why_revoking(&self, model: ModelIndex, site: &[DeviceId]) -> Option<WaitReason> {
        let place = self.others.places.get(&model).filter(|place| place.preempt)?;
        let here = |lease: &&OtherLease| site.iter().any(|device| lease.on(device) > ByteCount::ZERO);
        let leases: Vec<&OtherLease> = self.yielding(place.priority).filter(here).collect();
        let is_asked = leases.iter().any(|lease| lease.revoking.is_some());
        let asked = leases.into_iter().filter(|lease| !is_asked || lease.revoking.is_some()).map(|lease| AskedLease {
            lease: lease.lease.clone(),
            label: lease.label.clone(),
            left: lease.revoking,
        });
        Some(WaitReason::LeaseRevoking { device: site.first()?.clone(), asked: asked.collect() })
    }

    /// Takes or keeps a place in the ledger's queue.
    pub(super) fn stand_in_line(&mut self, model: ModelIndex, parts: Parts, priority: Priority, preempt: bool) {
        let place = LedgerPlace { parts: parts.clone(), priority, preempt };
        if self.others.places.get(&model) != Some(&place) {
            self.others.places.insert(model, place);
            let model = self.catalog[model].id().clone();
            self.out.push(Effect::AwaitLease { model, parts, priority, preempt });
        }
    }

    /// Notes a request to the ledger for bytes. If it is refused, the model has a place in the ledger's queue.
    pub(super) fn asks_ledger(&mut self, model: ModelIndex, parts: Parts, priority: Priority) {
        self.others.places.insert(model, LedgerPlace { parts, priority, preempt: false });
    }

    /// Notes that the ledger granted the lease, so that the model's place in its queue is gone.
    pub(super) fn has_lease(&mut self, model: ModelIndex) {
        self.others.places.remove(&model);
    }

    /// Takes a place in the ledger's queue for a model that waits for other holders' memory, so that later requests
    /// do not overtake it.
    pub(super) fn wait_in_line(&mut self, ask: &Ask, blocked: &[(Site, NoRoom)]) {
        let lacks_memory = |why: &NoRoom| matches!(why, NoRoom::Blocked { by, .. } if by.lacking == Lacking::Memory);
        let shared = blocked.iter().find(|(site, why)| lacks_memory(why) && !self.in_the_way(ask, site).is_empty());
        let (Some((site, _)), Some(head)) = (shared, ask.heads.first()) else { return };
        let ceiling = |device: &DeviceId| self.devices.get(device).and_then(crate::device::ScheduledDevice::ceiling);
        let most: Vec<SignedBytes> = site.iter().map(|d| ceiling(d).unwrap_or_default().signed()).collect();
        let Some(parts) = split::shares(&self.size_at(ask, site).need, &most) else { return };
        let parts: Parts = site.iter().cloned().zip(parts).filter(|(_, bytes)| bytes.0 > 0).collect();
        self.stand_in_line(ask.model, parts, head.base, false);
    }

    /// The error for a model's requests when leases that were revoked for it were not released in time.
    pub(super) fn refuse_in_default(&mut self, ask: &Ask) -> Option<Refusal> {
        let place = self.others.places.get(&ask.model).filter(|place| place.preempt)?;
        let there = |lease: &&OtherLease| place.parts.iter().any(|(device, _)| lease.on(device) > ByteCount::ZERO);
        let lease = self.others.leases.iter().filter(|lease| lease.in_default).find(there)?;
        let message = format!(
            "model '{}' needs memory that {} ({}) was asked to give back and did not in time",
            self.catalog[ask.model].id(),
            lease.lease,
            lease.label,
        );
        Some(Refusal::new(RefusalReason::NoCapacity, message).retry_after(AFTER_DEFAULT))
    }

    /// Removes the models that wait no longer from the ledger's queue.
    pub(super) fn leave_queue(&mut self) {
        let gone: Vec<ModelIndex> =
            self.others.places.keys().copied().filter(|model| !self.needs_place(*model)).collect();
        for model in gone {
            self.others.places.remove(&model);
            let model = self.catalog[model].id().clone();
            self.out.push(Effect::CancelLease { model });
        }
    }

    fn needs_place(&self, model: ModelIndex) -> bool {
        let asking = |slot: &SlotId| self.load_phase(*slot) == Some(LoadPhase::AwaitingLease);
        let waits = self.queue.residency(model) == LoadState::Absent && self.queue.len_of(model) > 0;
        self.claims.contains_key(&model)
            || self.moves.contains_key(&model)
            || self.catalog[model].slots.iter().any(asking)
            || (waits && self.life == Life::Serving)
    }

    /// Evicts idle models for more important requests of other holders, least important first. Pinned models, busy
    /// ones and those with waiting requests stay. No model is evicted unless the whole request then fits.
    pub(super) fn yield_to_requests(&mut self) {
        let mut promised: BTreeMap<DeviceId, SignedBytes> = BTreeMap::new();
        let mut look_again = false;
        for request in self.others.requests.clone() {
            // The coordinator's own models with precedence over the request get their bytes first.
            let ours = |device: &DeviceId| -> SignedBytes {
                let first = self.others.places.values().filter(|place| place.priority <= request.priority);
                first.flat_map(|place| &place.parts).filter(|(d, _)| d == device).map(|(_, b)| b.signed()).sum()
            };
            let mut lacking: BTreeMap<DeviceId, SignedBytes> = BTreeMap::new();
            for (name, bytes) in &request.parts {
                let Some(balance) = self.devices.get(name).and_then(crate::device::ScheduledDevice::balance) else {
                    continue;
                };
                let leaving: SignedBytes =
                    self.on_device(name).filter(|slot| self.is_leaving(*slot)).map(|slot| self.bytes(slot, name)).sum();
                let before = promised.get(name).copied().unwrap_or_default();
                let short = bytes.signed() - (balance + leaving - before - ours(name));
                if short.is_positive() {
                    lacking.insert(name.clone(), short);
                }
            }
            for (name, bytes) in &request.parts {
                *promised.entry(name.clone()).or_default() += bytes.signed();
            }
            if lacking.is_empty() {
                continue;
            }
            match self.idle_for(&request, lacking) {
                Some(victims) => victims.into_iter().for_each(|slot| self.yield_slot(slot, &request)),
                None => look_again = true,
            }
        }
        if look_again {
            self.timers.set(Timer::Yield, self.now + self.settings.reevaluate_every.max(LEAST_WAIT));
        } else {
            self.timers.clear(Timer::Yield);
        }
    }

    /// The fewest idle models whose eviction covers a request's lack; `None` when all of them together do not.
    fn idle_for(&self, request: &OtherRequest, mut lacking: BTreeMap<DeviceId, SignedBytes>) -> Option<Vec<SlotId>> {
        let mut idle: Vec<SlotId> = lacking.keys().flat_map(|device| self.idle_on(device)).collect();
        idle.sort_unstable();
        idle.dedup();
        idle.retain(|&slot| self.rank_of(slot) > request.priority && !self.is_claimed(slot));
        idle.sort_by_key(|&slot| (Reverse(self.rank_of(slot)), self.pool[slot].last_used, slot));
        let mut victims = Vec::new();
        for slot in idle {
            if lacking.values().all(|short| !short.is_positive()) {
                break;
            }
            if lacking.iter().any(|(device, short)| short.is_positive() && self.bytes(slot, device).is_positive()) {
                for (device, short) in &mut lacking {
                    *short -= self.bytes(slot, device);
                }
                victims.push(slot);
            }
        }
        lacking.values().all(|short| !short.is_positive()).then_some(victims)
    }

    fn yield_slot(&mut self, slot: SlotId, request: &OtherRequest) {
        let OtherRequest { label, priority, .. } = request;
        let reasons = vec![
            format!("room for the lease that '{label}' (priority {priority}) waits for"),
            format!("idle, rank {}", self.rank_of(slot)),
        ];
        self.decisions.record(self.now, Verdict::Evict, &self.name_of(slot), None, reasons);
        self.stop_slot(slot, LeaveCause::Yielded { to: label.clone() });
    }

    fn rank_of(&self, slot: SlotId) -> Priority {
        self.pool[slot].rank(self.now, self.settings.aging_step)
    }

    fn is_claimed(&self, slot: SlotId) -> bool {
        self.claims.values().any(|claim| claim.victims.contains(&slot))
    }

    fn on_device(&self, name: &DeviceId) -> impl Iterator<Item = SlotId> {
        self.devices.get(name).into_iter().flat_map(|device| device.slots.iter().copied())
    }

    /// Handles a more important holder's revocation of a slot's lease. A slot that RC-18 protects stays; a busy slot
    /// finishes its requests.
    pub(super) fn lease_revoked(&mut self, key: SlotKey, by: &str, priority: Priority, remaining: Duration) {
        let id = key.id;
        let Some(slot) = self.pool.current(key) else { return };
        let model = slot.model;
        let protected = slot.state != SlotState::Ready(ReadyPhase::Serving)
            || slot.cause.is_some()
            || self.catalog[model].is_pinned()
            || self.rank_of(id) <= priority;
        if protected {
            return;
        }
        let busy = self.pool[id].is_busy();
        let what = if busy { Verdict::Drain } else { Verdict::Evict };
        let reasons = vec![
            format!("'{by}' (priority {priority}) asked for its memory, {:.0} s left", remaining.as_secs_f64().ceil()),
            format!("its rank is {}", self.rank_of(id)),
        ];
        self.decisions.record(self.now, what, &self.name_of(id), None, reasons);
        let cause = LeaveCause::Revoked { by: by.to_owned(), priority };
        if busy { self.drain_slot(id, cause) } else { self.stop_slot(id, cause) }
    }

    /// Handles a withdrawn revocation: a slot that still drains for it keeps serving.
    pub(super) fn lease_kept(&mut self, key: SlotKey) {
        if self.pool.current(key).is_some() {
            self.keep_revoked(key.id);
        }
    }

    /// Cancels the drain of a slot whose lease was revoked.
    pub(super) fn keep_revoked(&mut self, id: SlotId) {
        let slot = &mut self.pool[id];
        if matches!(slot.leaving, Some(LeaveCause::Revoked { .. })) && slot.apply(SlotEvent::KeepAfterAll).is_some() {
            slot.leaving = None;
            let model = slot.model;
            self.pump(model);
            self.reconsider_at_least(Reconsider::Kinds);
        }
    }
}

/// The priority of an ask in the ledger. A load without a waiting request has the lowest.
fn importance(ask: &Ask) -> Priority {
    ask.heads.iter().map(|head| head.base).min().unwrap_or(Priority::LOWEST)
}

fn share_of(label: &str, priority: Priority, site: &[DeviceId], on: impl Fn(&DeviceId) -> ByteCount) -> LeaseShare {
    LeaseShare { lease: None, label: label.to_owned(), priority, bytes: site.iter().map(on).sum() }
}
