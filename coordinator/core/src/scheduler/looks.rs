//! Which waiting models are considered for a load after an event, within the budget of that event (RC-6). It is the
//! next in line, the first of each kind, or all.

use model_boss_protocol::{Priority, SlotId};

use super::room::Ask;
use super::state::{EventBudget, Life, Looked, Reconsider, Scheduler};
use crate::catalog::ModelIndex;
use crate::device::{Claim, ScheduledDevice};
use crate::placement::Site;
use crate::queue::{Likeness, Wanting};
use crate::{MaxLoaded, eviction};

/// The greatest number of kinds of models that are all examined at once.
const KINDS_AT_ONCE: usize = 16;

impl Scheduler {
    pub(super) fn look_at_all_kinds(&mut self) {
        self.unlooked.kinds.clear();
        self.unlooked.kinds.extend(self.queue.kinds());
        self.unlooked.models.clear();
        self.unlooked.models.extend(self.claims.keys());
    }

    /// Examines the models that may replace a slot which ended a request. If its load and importance are as before,
    /// only the next model in the queue may now precede the requests for the slot's model. Otherwise any model may
    /// replace the slot. No other slot changed, so models that may not replace this one are skipped.
    pub(super) fn look_who_may_take(&mut self, id: SlotId, as_before: bool) {
        if !self.may_make_way(id) {
            return;
        }
        let (candidate, turn) = (self.candidate(id, &[]), self.turn_beside(id));
        let may_take = |scheduler: &Self, model| {
            let mut heads = scheduler.queue.heads(model, scheduler.now);
            let away_until = scheduler.catalog[model].away_until;
            heads.any(|head| {
                turn.is_none_or(|standing| head.base < standing)
                    && eviction::has_right(&head, away_until, &candidate, scheduler.now, &scheduler.settings)
            })
        };
        if as_before {
            if let Some((_, model)) = self.queue.first_wanting(self.now)
                && may_take(self, model)
            {
                self.unlooked.models.insert(model);
                self.reconsider_at_least(Reconsider::Rest);
            }
            return;
        }
        // With very many kinds it is cheaper to examine some now and the others in later ticks.
        if self.queue.kinds().nth(KINDS_AT_ONCE).is_some() {
            return self.reconsider_at_least(Reconsider::Kinds);
        }
        for kind in self.queue.kinds().collect::<Vec<_>>() {
            if let Some((_, model)) = self.queue.first_alike(self.now, kind)
                && may_take(self, model)
            {
                self.unlooked.kinds.insert(kind);
                self.reconsider_at_least(Reconsider::Rest);
            }
        }
    }

    /// The importance of the claim on a slot's devices: only more important models have precedence over it. A place
    /// among the models of a category may be had without that claim's room.
    fn turn_beside(&self, id: SlotId) -> Option<Priority> {
        let here = |claim: &&Claim| self.pool[id].parts.iter().any(|(device, _)| claim.site.contains(device));
        let claims = self.claims.values().filter(|_| self.settings.max_loaded == MaxLoaded::Auto);
        claims.filter(here).map(|claim| claim.standing).min()
    }

    /// Considers one model for which the passing of time changed something, and no other model.
    pub(super) fn look_at_by_itself(&mut self, model: ModelIndex) {
        self.back_in_line(model);
        self.unlooked.models.insert(model);
        self.reconsider_at_least(Reconsider::Rest);
    }

    pub(super) fn first_of(&self, model: ModelIndex) -> Option<Wanting> {
        self.queue.best(model, self.now).map(|head| (head.key, model))
    }

    /// The model no longer waits for a condition of its own, and joins its line again.
    pub(super) fn back_in_line(&mut self, model: ModelIndex) {
        self.queue.set_aside(model, self.claims.contains_key(&model));
    }

    /// Considers the remaining kinds, the next in line first, and then the next models of the round.
    pub(super) fn look_on(&mut self, budget: &mut EventBudget) {
        if (!self.unlooked.is_empty() || self.round.is_some()) && self.all_are_held_up() {
            self.round = None;
            return self.unlooked.clear();
        }
        while budget.is_left() && !self.unlooked.is_empty() {
            if !self.has_a_turn() {
                // The end of each running load triggers the next examination.
                return self.unlooked.clear();
            }
            self.look_at_first_unlooked(budget);
        }
        // Two models count as alike by an approximation; a round through all models catches what it overlooks.
        while budget.is_left()
            && let Some(from) = self.round
        {
            let next = if self.has_a_turn() { self.queue.next_cold(from) } else { None };
            self.round = next.map(ModelIndex::next);
            if let Some(model) = next {
                self.spend(model, budget);
            }
        }
    }

    /// Whether no model can get a load now, independent of free memory. The event that ends this state triggers the
    /// next examination.
    fn all_are_held_up(&mut self) -> bool {
        if !self.is_ledger_open() && self.queue.anyone_waits_for_a_load() {
            self.begin_patience();
        }
        if let Some(only) = self.second_try.as_ref().map(|second| second.model) {
            self.consider(only);
        }
        self.life != Life::Serving || !self.is_ledger_open() || self.second_try.is_some()
    }

    /// Examines the first model of the queue among those that were not examined yet.
    pub(super) fn look_at_first_unlooked(&mut self, budget: &mut EventBudget) {
        let mut first: Option<(Wanting, Option<Likeness>)> = None;
        let queue = &mut self.queue;
        self.unlooked.kinds.retain(|&kind| {
            let next = queue.first_alike(self.now, kind);
            if let Some(next) = next
                && first.is_none_or(|(least, _)| next < least)
            {
                first = Some((next, Some(kind)));
            }
            next.is_some()
        });
        let own = self.unlooked.models.iter().filter_map(|&model| self.first_of(model)).min();
        if let Some(own) = own
            && first.is_none_or(|(least, _)| own < least)
        {
            first = Some((own, None));
        }
        let Some(((_, model), kind)) = first else { return self.unlooked.clear() };
        self.unlooked.models.remove(&model);
        match self.spend(model, budget) {
            Looked::Blocked => {
                let like = self.queue.likeness(model);
                self.unlooked.kinds.retain(|other| !like.is_some_and(|like| like.covers(*other)));
            }
            Looked::Passed | Looked::Alone => {}
        }
        // The examination did not help a model that is still the first of its kind.
        if let Some(kind) = kind
            && self.queue.first_alike(self.now, kind).is_some_and(|(_, first)| first == model)
        {
            self.unlooked.kinds.remove(&kind);
        }
    }

    /// Examines a model and charges that to the budget.
    pub(super) fn spend(&mut self, model: ModelIndex, budget: &mut EventBudget) -> Looked {
        let looked = self.consider(model);
        match looked {
            Looked::Passed => budget.passes = budget.passes.saturating_sub(1),
            Looked::Blocked => budget.looks = budget.looks.saturating_sub(1),
            // An eviction costs more than an examination, so it uses up the budget.
            Looked::Alone => budget.looks = 0,
        }
        looked
    }

    /// Whether any device can begin a load now, as far as turns are concerned.
    pub(super) fn has_a_turn(&self) -> bool {
        self.devices.iter().any(|(_, device)| self.is_its_turn(device))
    }

    fn is_its_turn(&self, device: &ScheduledDevice) -> bool {
        device.loading.is_none_or(|slot| self.is_unwanted(slot))
    }

    /// Whether each of these sites has a device that is loading another model, and the ask has no turn of its own.
    pub(super) fn is_no_turn_at(&self, ask: &Ask, sites: &[Site]) -> bool {
        let waits = |name| self.devices.get(name).is_some_and(|device| !self.is_its_turn(device));
        !self.claims.contains_key(&ask.model) && sites.iter().all(|site| site.iter().any(waits))
    }

    /// Whether any model could now get a load in place of this slot, as far as turns are concerned. If not, the end of
    /// the load that has the turn triggers the next examination.
    pub(super) fn may_make_way(&self, id: SlotId) -> bool {
        let slot = &self.pool[id];
        let devices = slot.parts.iter().map(|(device, _)| device).chain(&slot.exclusive);
        self.settings.max_loaded != MaxLoaded::Auto
            || devices.filter_map(|name| self.devices.get(name)).any(|device| self.is_its_turn(device))
    }
}
