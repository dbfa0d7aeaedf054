//! A second try of a load that failed, after all other models are evicted (MM-4).

use std::collections::BTreeSet;
use std::time::Duration;

use model_boss_protocol::{ModelId, SlotId, WorkerExit};

use super::state::{Reconsider, Scheduler, SecondTry};
use crate::catalog::ModelIndex;
use crate::phase::LoadPhase;
use crate::reason::LeaveCause;
use crate::settings::LoadFailurePolicy;
use crate::slot::SlotState;
use crate::{ExitReport, Verdict, WaitReason};

/// The shortest time between two second tries of one model.
const AT_MOST_EVERY: Duration = Duration::from_secs(600);

impl Scheduler {
    /// Evicts every unpinned model, if that may help a load that failed in state `before`. Busy slots finish their
    /// requests first; loading ones serve the request that they load for. Returns whether there will be a second try.
    pub(super) fn try_without_others(&mut self, model: ModelIndex, before: SlotState, exit: &ExitReport) -> bool {
        let at_fault = match exit.reason {
            Some(WorkerExit::BadModel | WorkerExit::BadSpec | WorkerExit::PortInUse) => true,
            Some(WorkerExit::ReadFailed | WorkerExit::DeviceLost) => true,
            Some(WorkerExit::OutOfMemory | WorkerExit::Clean) | None => false,
        };
        let lately = self.catalog[model].second_try_at.is_some_and(|at| self.now < at + AT_MOST_EVERY);
        // A process that could not even be started did not fail for lack of memory.
        let loading = before == SlotState::Loading(LoadPhase::Weights);
        if self.settings.load_failure_policy == LoadFailurePolicy::Fail
            || at_fault
            || lately
            || !loading
            || self.second_try.is_some()
            || !self.is_ledger_open()
            || self.queue.len_of(model) == 0
        {
            return false;
        }
        let others = |slot: &&crate::slot::ModelSlot| {
            slot.model != model
                && !self.catalog[slot.model].is_pinned()
                && matches!(slot.state, SlotState::Ready(_) | SlotState::Loading(_))
        };
        let leaving: BTreeSet<SlotId> = self.pool.in_use().filter(others).map(|slot| slot.id).collect();
        let loads_on = |slot: &SlotId| self.loads_or_owes(*slot);
        let finishing: BTreeSet<SlotId> = leaving.iter().copied().filter(loads_on).collect();
        if leaving.is_empty() {
            return false;
        }
        self.catalog[model].second_try_at = Some(self.now);
        let room_for = self.catalog[model].id().clone();
        let at_once: Vec<SlotId> = leaving.difference(&finishing).copied().collect();
        self.second_try = Some(SecondTry { model, leaving, finishing });
        for slot in at_once {
            self.make_way_for_second_try(slot, &room_for);
        }
        true
    }

    /// Whether a slot is loading, or was loaded for a request that has not been dispatched yet.
    fn loads_or_owes(&self, slot: SlotId) -> bool {
        let slot = &self.pool[slot];
        matches!(slot.state, SlotState::Loading(_)) || slot.cause.is_some()
    }

    fn make_way_for_second_try(&mut self, slot: SlotId, room_for: &ModelId) {
        let what = if self.pool[slot].is_busy() { Verdict::Drain } else { Verdict::Evict };
        let reason = format!("'{room_for}' failed to load and is tried once more with nothing else loaded");
        self.decisions.record(self.now, what, &self.name_of(slot), None, vec![reason]);
        self.send_away(slot, LeaveCause::SecondTry { room_for: room_for.clone() });
    }

    /// Cancels the second try: slots that drain for it keep serving. A model whose second try did not begin may have
    /// one later.
    pub(super) fn call_off_second_try(&mut self) {
        let Some(second) = self.second_try.take() else { return };
        self.catalog[second.model].second_try_at = None;
        let cause = LeaveCause::SecondTry { room_for: self.catalog[second.model].id().clone() };
        for slot in second.leaving {
            self.keep_slot_that_leaves_for(slot, &cause);
        }
        self.reconsider_at_least(Reconsider::Kinds);
    }

    /// Evicts slots that were loading when a second try began and that have served their request by now. A slot
    /// pinned meanwhile stays.
    pub(super) fn tend_second_try(&mut self) {
        let Some(second) = &self.second_try else { return };
        let owes_nothing = |slot: &SlotId| !self.loads_or_owes(*slot);
        let through: Vec<SlotId> = second.finishing.iter().copied().filter(owes_nothing).collect();
        let room_for = self.catalog[second.model].id().clone();
        for slot in through {
            if let Some(second) = &mut self.second_try {
                second.finishing.remove(&slot);
            }
            if self.catalog[self.pool[slot].model].is_pinned() {
                self.gone_for_second_try(slot);
            } else if matches!(self.pool[slot].state, SlotState::Ready(_)) {
                self.make_way_for_second_try(slot, &room_for);
            }
        }
    }

    /// Whether this model's load has to wait for the ledger, or for a second try of any model.
    pub(super) fn is_held_up(&self, model: ModelIndex) -> bool {
        !self.is_ledger_open() || self.is_held_by_second_try(model)
    }

    fn is_held_by_second_try(&self, model: ModelIndex) -> bool {
        self.second_try.as_ref().is_some_and(|second| second.model != model || !second.leaving.is_empty())
    }

    pub(super) fn why_held_up(&self, model: ModelIndex) -> Option<WaitReason> {
        if let Some(reason) = self.why_no_ledger() {
            return Some(reason);
        }
        let second = self.second_try.as_ref().filter(|_| self.is_held_by_second_try(model))?;
        let victims = second.leaving.iter().map(|&slot| self.name_of(slot)).collect();
        Some(WaitReason::SecondTry { model: self.catalog[second.model].id().clone(), victims })
    }

    /// Notes an emptied slot that a second try may have waited for.
    pub(super) fn gone_for_second_try(&mut self, slot: SlotId) {
        if let Some(second) = &mut self.second_try
            && second.leaving.remove(&slot)
            && second.leaving.is_empty()
        {
            let model = second.model;
            self.consider(model);
        }
    }

    /// Ends the second try of this model, successful or not. Returns whether there was one.
    pub(super) fn end_second_try(&mut self, model: ModelIndex) -> bool {
        if self.second_try.as_ref().is_none_or(|second| second.model != model) {
            return false;
        }
        self.second_try = None;
        self.reconsider_at_least(Reconsider::Kinds);
        true
    }
}
