//! Offers of room: a model's room at once, room after evictions, or the reason to wait (RC-6, RC-18, RC-22, MM-1,
//! MM-5, MM-7). The functions here read the state and change none of it.

use model_boss_protocol::{ByteCount, DeviceId, Priority, SignedBytes, SlotId};

use super::state::Scheduler;
use crate::catalog::ModelIndex;
use crate::device::Claim;
use crate::eviction::{self, EvictionCandidate, Goal, Hold, Right, SlotUse, Victim};
use crate::need::{Need, Parts};
use crate::phase::{LoadPhase, ReadyPhase, StopPhase};
use crate::placement::{PlacementError, Site};
use crate::queue::{Head, OrderKey};
use crate::reason::{LeaveCause, Protection};
use crate::slot::SlotState;
use crate::{LayerOptions, SizeEstimate, split};

/// A model that needs room.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) model: ModelIndex,
    /// The device to load on; `auto` for any.
    pub(super) device: DeviceId,
    /// The context to load with; `None` for the manifest's.
    pub(super) context: Option<u64>,
    /// The residency of the layers, as a load requires it.
    pub(super) layers: LayerOptions,
    /// The estimated size where none was learned.
    pub(super) estimate: SizeEstimate,
    /// The requests that the load is for, in their order. Without a request, no slot is evicted.
    pub(super) heads: Vec<Head>,
}

/// The best offer of the devices.
pub(super) enum Offer {
    /// The model fits now.
    Now(Parts),
    /// The slots evicted for the model have not stopped yet.
    Coming,
    /// The model fits after these evictions.
    After(Plan),
    /// The model has to wait, for these reasons by site.
    No(Vec<(Site, NoRoom)>),
}

/// The reason why a site has no offer now.
pub(super) enum NoRoom {
    /// The device's memory is not known.
    Unknown(DeviceId),
    /// It is another model's turn on the device.
    Turn(DeviceId, ModelIndex),
    /// Slots that are stopping already will make enough room.
    Coming,
    /// No slot may be evicted, or too few.
    Blocked {
        by: eviction::Blocked,
        /// Pinned models that alone prevent the eviction.
        pins: Vec<SlotId>,
    },
}

/// A site for a model, with the slots to evict and the request that they are evicted for.
pub(super) struct Plan {
    pub(super) asker: Head,
    pub(super) site: Site,
    /// The bytes that the model will hold on each device of the site.
    pub(super) held: Vec<ByteCount>,
    /// The bytes that the model will take on each device, margins included.
    pub(super) takes: Vec<SignedBytes>,
    pub(super) victims: Vec<Victim>,
    /// Slots that are stopping already and whose bytes are counted on.
    pub(super) coming: Vec<SlotId>,
    /// Whether leases of other holders have to be revoked as well.
    pub(super) asks: bool,
}

/// The state of a site before any eviction.
struct Footing<'a> {
    /// The memory that the ask needs at this site.
    need: Need,
    /// The bytes left on each device.
    rooms: Vec<SignedBytes>,
    /// Loads at the site that no request waits for.
    unwanted: Vec<SlotId>,
    rivals: Vec<Rival<'a>>,
    conflicts: Vec<SlotId>,
    /// The model's parts if it fits without evictions, and the bytes then left.
    room: Option<(SignedBytes, Parts)>,
}

impl Plan {
    /// The bytes that the model will hold on each device.
    pub(super) fn parts(&self) -> Parts {
        let parts = self.site.iter().cloned().zip(self.held.iter().copied());
        parts.filter(|(_, bytes)| bytes.0 > 0).collect()
    }

    /// The cost for ranking plans: busy victims first, whose requests have to end, then all victims, which have to be
    /// loaded again.
    fn cost(&self) -> (usize, usize) {
        (self.victims.iter().filter(|victim| victim.usage == SlotUse::Busy).count(), self.victims.len())
    }
}

impl Scheduler {
    /// The ask of a model for its waiting requests.
    pub(super) fn ask_of(&self, model: ModelIndex) -> Ask {
        let mut heads: Vec<Head> = self.queue.heads(model, self.now).collect();
        heads.sort_unstable_by_key(|head| head.key);
        let known = &self.catalog[model];
        Ask {
            model,
            device: known.wish.device.as_ref().unwrap_or(&known.description.device).clone(),
            context: known.wish.context,
            layers: known.wish.layers,
            estimate: known.wish.size.as_ref().unwrap_or(&known.description.size).clone(),
            heads,
        }
    }

    /// The best offer for an ask.
    pub(super) fn offer(&self, ask: &Ask) -> Result<Offer, PlacementError> {
        Ok(self.offer_at(ask, self.sites(ask)?))
    }

    /// The best offer of these sites: the room with the least left over first, then the least eviction.
    pub(super) fn offer_at(&self, ask: &Ask, sites: Vec<Site>) -> Offer {
        let mut now: Option<(usize, SignedBytes, Parts)> = None;
        let mut full = Vec::new();
        let mut blocked = Vec::with_capacity(sites.len());
        for site in sites {
            match self.footing(ask, &site) {
                Err(why) => blocked.push((site, why)),
                Ok(Footing { room: Some((left, parts)), unwanted, .. }) if unwanted.is_empty() => {
                    let offer = (site.len(), left, parts);
                    if now.as_ref().is_none_or(|best| offer < *best) {
                        now = Some(offer);
                    }
                }
                Ok(footing) => full.push((site, footing)),
            }
        }
        if let Some((_, _, parts)) = now {
            return Offer::Now(parts);
        }
        if self.is_room_coming(ask) {
            return Offer::Coming;
        }
        let mut after: Option<Plan> = None;
        for (site, footing) in full {
            match self.make_plan(ask, &site, footing) {
                Ok(plan) if after.as_ref().is_none_or(|least| plan.cost() < least.cost()) => after = Some(plan),
                Ok(_) => {}
                Err(why) => blocked.push((site, why)),
            }
        }
        // The coordinator's own idle models are evicted before other holders' leases are revoked.
        let after = after.or_else(|| self.plan_with_others(ask));
        after.map_or(Offer::No(blocked), Offer::After)
    }

    /// The cheapest plan in which leases of other holders are revoked too.
    fn plan_with_others(&self, ask: &Ask) -> Option<Plan> {
        let head = *ask.heads.iter().min_by_key(|head| head.base)?;
        self.yielding(head.base).next()?;
        let ask = Ask { heads: vec![head], ..ask.clone() };
        let mut least: Option<Plan> = None;
        for site in self.sites(&ask).ok()? {
            let yields: Vec<SignedBytes> = site.iter().map(|device| self.could_yield(device, head.base)).collect();
            if yields.iter().all(|bytes| *bytes == SignedBytes::ZERO) {
                continue;
            }
            let Ok(mut footing) = self.footing(&ask, &site) else { continue };
            footing.rooms.iter_mut().zip(yields).for_each(|(room, bytes)| *room += bytes);
            if let Ok(plan) = self.make_plan(&ask, &site, footing)
                && least.as_ref().is_none_or(|least| plan.cost() < least.cost())
            {
                least = Some(Plan { asks: true, ..plan });
            }
        }
        least
    }

    /// The state of a site with regard to an ask.
    fn footing(&self, ask: &Ask, site: &[DeviceId]) -> Result<Footing<'_>, NoRoom> {
        let mut unwanted = Vec::new();
        for name in site {
            let Some(device) = self.devices.get(name) else { return Err(NoRoom::Unknown(name.clone())) };
            match device.loading {
                Some(slot) if self.is_unwanted(slot) => unwanted.push(slot),
                Some(slot) => return Err(NoRoom::Turn(name.clone(), self.pool[slot].model)),
                None => {}
            }
        }
        let mut rooms = Vec::with_capacity(site.len());
        for name in site {
            let Some(device) = self.devices.get(name) else { return Err(NoRoom::Unknown(name.clone())) };
            let balance = device.balance().ok_or_else(|| NoRoom::Unknown(name.clone()))?;
            rooms.push(balance - self.taken_first(ask, name));
        }
        let need = self.size_at(ask, site).need;
        let alone = self.exclusive_on(ask.model, site);
        let rivals = self.rivals(ask.model, site, &alone);
        let conflicts = self.conflicts(site, &alone);
        let free: Vec<SignedBytes> =
            site.iter().zip(&rooms).map(|(name, &room)| room - self.promised(&rivals, name)).collect();
        let parts = split::shares(&need, &free).filter(|_| {
            conflicts.is_empty()
                && !rivals.iter().any(|rival| rival.excludes)
                && self.places_missing(ask.model, |_| false) == 0
        });
        let room = parts.map(|parts| {
            let left = free.iter().copied().sum::<SignedBytes>() - need.total().signed();
            let parts = site.iter().cloned().zip(parts).filter(|(_, part)| site.len() == 1 || part.0 > 0);
            (left, parts.collect())
        });
        Ok(Footing { need, rooms, unwanted, rivals, conflicts, room })
    }

    /// The evictions that a full site would need.
    fn make_plan(&self, ask: &Ask, site: &[DeviceId], footing: Footing<'_>) -> Result<Plan, NoRoom> {
        let Footing { need, rooms, unwanted, rivals, conflicts, room } = footing;
        if let Some((_, parts)) = room {
            // A load that no request waits for evicts nothing (RC-11).
            let Some(&asker) = ask.heads.first() else {
                return Err(NoRoom::Turn(site[0].clone(), self.pool[unwanted[0]].model));
            };
            let usage = SlotUse::Idle;
            let victims = unwanted.into_iter().map(|slot| Victim { slot, usage, right: Right::Unwanted }).collect();
            let (site, held): (Site, Vec<ByteCount>) = parts.into_iter().unzip();
            let takes = split::takes(&need, &held);
            return Ok(Plan { asker, held, takes, site, victims, coming: Vec::new(), asks: false });
        }
        let first = |head: &Head| rivals.iter().all(|rival| head.base < rival.claim.standing);
        let heads: Vec<Head> = ask.heads.iter().copied().filter(first).collect();
        if let Some(rival) = rivals.first().filter(|_| heads.is_empty()) {
            return Err(NoRoom::Turn(site[0].clone(), rival.model));
        }
        self.room_after(ask, site, (need, rooms), &conflicts, &heads)
    }

    /// The victims that the requests of a model may evict.
    fn room_after(
        &self,
        ask: &Ask,
        site: &[DeviceId],
        (need, mut rooms): (Need, Vec<SignedBytes>),
        conflicts: &[SlotId],
        heads: &[Head],
    ) -> Result<Plan, NoRoom> {
        let places = self.places_missing(ask.model, |slot| self.is_leaving(slot));
        let of_category = if self.limit_of(ask.model).is_some() { self.loaded_beside(ask.model) } else { Vec::new() };
        let on_site = site.iter().filter_map(|name| self.devices.get(name)).flat_map(|device| &device.slots).copied();
        let mut involved: Vec<SlotId> = on_site.chain(conflicts.iter().copied()).collect();
        involved.extend(of_category.iter().copied());
        involved.sort_unstable();
        involved.dedup();
        let mut coming = Vec::new();
        let mut candidates = Vec::with_capacity(involved.len());
        for slot in involved {
            if self.is_leaving(slot) {
                for (room, name) in rooms.iter_mut().zip(site) {
                    *room += self.bytes(slot, name);
                }
                coming.push(slot);
            } else if self.pool[slot].model != ask.model || conflicts.contains(&slot) {
                let mut candidate = self.candidate(slot, site);
                candidate.excluded = conflicts.contains(&slot);
                candidate.frees_place = of_category.contains(&slot) && !self.has_second_copy(slot);
                candidates.push(candidate);
            }
        }
        let goal = Goal { need, rooms, places, away_until: self.catalog[ask.model].away_until };
        let mut by = eviction::Blocked::default();
        for asker in heads {
            match eviction::plan(asker, &goal, &candidates, self.now, &self.settings) {
                Ok(victims) => {
                    let after = |place: usize, name| {
                        goal.rooms[place] + victims.iter().map(|v| self.bytes(v.slot, name)).sum::<SignedBytes>()
                    };
                    let free: Vec<SignedBytes> =
                        site.iter().enumerate().map(|(place, name)| after(place, name)).collect();
                    let held = split::shares(&need, &free).unwrap_or_default();
                    let (site, takes) = (site.to_vec(), split::takes(&need, &held));
                    return Ok(Plan { asker: *asker, site, held, takes, victims, coming, asks: false });
                }
                Err(blocked) => {
                    by.look_again = [by.look_again, blocked.look_again].into_iter().flatten().min();
                    // The blockers of the first request are those that are shown.
                    if by.blockers.is_empty() {
                        (by.blockers, by.lacking) = (blocked.blockers, blocked.lacking);
                    }
                }
            }
        }
        let nobody_else = heads.is_empty() && !candidates.iter().any(|candidate| candidate.excluded);
        if nobody_else && goal.places == 0 && split::holds(&goal.need, &goal.rooms) {
            return Err(NoRoom::Coming);
        }
        let pins = self.pins_in_the_way(ask, site, &need, &candidates);
        Err(NoRoom::Blocked { by, pins })
    }

    /// The pinned slots that alone prevent room, if no eviction of other slots could make it.
    fn pins_in_the_way(
        &self,
        ask: &Ask,
        site: &[DeviceId],
        need: &Need,
        candidates: &[EvictionCandidate],
    ) -> Vec<SlotId> {
        let pinned: Vec<&EvictionCandidate> =
            candidates.iter().filter(|candidate| candidate.hold == Hold::Always(Protection::Pinned)).collect();
        let without = |pins: &[&EvictionCandidate]| -> Option<Vec<SignedBytes>> {
            let held = |name| pins.iter().map(|pin| self.bytes(pin.slot, name)).sum::<SignedBytes>();
            site.iter().map(|name| Some(self.devices.get(name)?.room_for_models()? - held(name))).collect()
        };
        let holds = |rooms: Option<Vec<SignedBytes>>| rooms.is_some_and(|rooms| split::holds(need, &rooms));
        let no_memory = holds(without(&[])) && !holds(without(&pinned));
        let of_category = pinned.iter().filter(|pin| pin.frees_place).count();
        let no_place = self.limit_of(ask.model).is_some_and(|limit| of_category >= limit);
        let slots = |wanted: &dyn Fn(&EvictionCandidate) -> bool| -> Vec<SlotId> {
            pinned.iter().filter(|pin| wanted(pin)).map(|pin| pin.slot).collect()
        };
        let excluded = slots(&|pin| pin.excluded);
        if !excluded.is_empty() {
            excluded
        } else if no_place {
            slots(&|pin| pin.frees_place)
        } else if no_memory {
            slots(&|pin| site.iter().any(|name| self.bytes(pin.slot, name).is_positive()))
        } else {
            Vec::new()
        }
    }

    pub(super) fn candidate(&self, id: SlotId, site: &[DeviceId]) -> EvictionCandidate {
        let slot = &self.pool[id];
        let known = &self.catalog[slot.model];
        let mut queued: Option<(OrderKey, Priority)> = None;
        for head in self.queue.heads(slot.model, self.now) {
            let (key, base) = queued.unwrap_or((head.key, head.base));
            queued = Some((key.min(head.key), base.min(head.base)));
        }
        let hold = match slot.state {
            _ if known.is_pinned() => Hold::Always(Protection::Pinned),
            _ if self.is_unwanted(id) => Hold::Unwanted,
            SlotState::Ready(_) if slot.cause.is_none() => {
                Hold::Until(slot.ready_at + slot.hold(self.settings.min_hold))
            }
            SlotState::Ready(_) => Hold::Always(Protection::CauseWaits),
            _ => Hold::Always(Protection::Loading),
        };
        let claims = self.claims.values().filter(|claim| claim.victims.contains(&id));
        EvictionCandidate {
            slot: id,
            bytes: site.first().map(|name| self.bytes(id, name)).unwrap_or_default(),
            further: site.iter().skip(1).map(|name| self.bytes(id, name)).collect(),
            excluded: false,
            frees_place: false,
            claimed: claims.map(|claim| claim.standing).min(),
            hold,
            rank: slot.rank(self.now, self.settings.aging_step),
            usage: if slot.is_busy() { SlotUse::Busy } else { SlotUse::Idle },
            work: slot.running.len() + self.queue.len_of(slot.model),
            last_used: slot.last_used,
            last_priority: slot.last_priority,
            queued,
        }
    }

    pub(super) fn bytes(&self, slot: SlotId, device: &DeviceId) -> SignedBytes {
        self.pool[slot].bytes_on(device).signed()
    }

    /// Whether a slot is loading and no request waits for it any more.
    pub(super) fn is_unwanted(&self, id: SlotId) -> bool {
        let slot = &self.pool[id];
        let known = &self.catalog[slot.model];
        matches!(slot.state, SlotState::Loading(_))
            && !known.is_pinned()
            && self.queue.len_of(slot.model) == 0
            && self.second_copy(slot.model) != Some(id)
    }

    /// Whether the bytes of this slot will become free without further action.
    pub(super) fn is_leaving(&self, id: SlotId) -> bool {
        let slot = &self.pool[id];
        match slot.state {
            SlotState::Stopping(StopPhase::AwaitingLease | StopPhase::Terminating | StopPhase::Releasing) => true,
            SlotState::Ready(ReadyPhase::Draining) => !matches!(slot.leaving, Some(LeaveCause::Eviction { .. })),
            _ => false,
        }
    }

    /// Whether the slots that are stopping already will satisfy this model's claim.
    pub(super) fn is_room_coming(&self, ask: &Ask) -> bool {
        let Some(claim) = self.claims.get(&ask.model) else { return false };
        let mut free = Vec::with_capacity(claim.site.len());
        for name in &claim.site {
            let Some((device, balance)) = self.devices.get(name).and_then(|d| Some((d, d.balance()?))) else {
                return false;
            };
            if device.loading.is_some_and(|slot| self.is_unwanted(slot)) {
                return false;
            }
            let coming = self.asked_back(ask.model, name) - self.taken_first(ask, name);
            free.push(
                balance + coming + claim.victims.iter().map(|&victim| self.bytes(victim, name)).sum::<SignedBytes>(),
            );
        }
        let alone = self.exclusive_on(ask.model, &claim.site);
        split::holds(&self.size_at(ask, &claim.site).need, &free)
            && self.conflicts(&claim.site, &alone).iter().all(|slot| claim.victims.contains(slot))
            && self.places_missing(ask.model, |slot| claim.victims.contains(&slot)) == 0
    }

    /// The devices that a model at this site needs for itself alone (MM-5).
    pub(super) fn exclusive_on(&self, model: ModelIndex, site: &[DeviceId]) -> Vec<DeviceId> {
        let alone = |name: &&DeviceId| self.devices.get(name).is_some_and(|device| device.observation.exclusive);
        let mut devices: Vec<DeviceId> = site.iter().filter(alone).cloned().collect();
        for device in &self.catalog[model].description.exclusive_devices {
            if !devices.contains(device) {
                devices.push(device.clone());
            }
        }
        devices
    }

    /// Slots that cannot share their devices with a model at this site that needs `alone` for itself (MM-5).
    fn conflicts(&self, site: &[DeviceId], alone: &[DeviceId]) -> Vec<SlotId> {
        if alone.is_empty() && self.alone.is_empty() {
            return Vec::new();
        }
        let clashes = |slot: &&crate::slot::ModelSlot| {
            let held = || slot.parts.iter().map(|(device, _)| device);
            alone.iter().any(|device| slot.exclusive.contains(device) || held().any(|held| held == device))
                || slot.exclusive.iter().any(|device| site.contains(device))
        };
        self.pool.in_use().filter(clashes).map(|slot| slot.id).collect()
    }

    /// Claims of other models that conflict with this site.
    fn rivals(&self, model: ModelIndex, site: &[DeviceId], alone: &[DeviceId]) -> Vec<Rival<'_>> {
        let others = self.claims.iter().filter(|(claimant, _)| **claimant != model);
        others
            .filter_map(|(&model, claim)| {
                let theirs = self.exclusive_on(model, &claim.site);
                let excludes = alone.iter().any(|device| theirs.contains(device) || claim.site.contains(device))
                    || theirs.iter().any(|device| site.contains(device));
                let shares = claim.site.iter().any(|device| site.contains(device));
                (excludes || shares).then_some(Rival { model, claim, excludes })
            })
            .collect()
    }

    /// The part of a device's free bytes that the claims need beside the bytes of their victims.
    fn promised(&self, rivals: &[Rival<'_>], device: &DeviceId) -> SignedBytes {
        let counts_on = |rival: &Rival<'_>| {
            let place = rival.claim.site.iter().position(|name| name == device)?;
            let takes = rival.claim.takes.get(place).copied().unwrap_or_default();
            let coming: SignedBytes = rival.claim.victims.iter().map(|&victim| self.bytes(victim, device)).sum();
            Some((takes - coming).max(SignedBytes::ZERO))
        };
        rivals.iter().filter_map(counts_on).sum()
    }

    /// The load phase of a slot; `None` when it is not loading.
    pub(super) fn load_phase(&self, id: SlotId) -> Option<LoadPhase> {
        match self.pool[id].state {
            SlotState::Loading(phase) => Some(phase),
            _ => None,
        }
    }
}

/// A claim of another model that conflicts with a site.
struct Rival<'a> {
    model: ModelIndex,
    claim: &'a Claim,
    /// Whether the two models exclude each other (MM-5), even if both fit.
    excludes: bool,
}
