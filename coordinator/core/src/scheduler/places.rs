//! Places: the limit of loaded models in a category (MM-1), the slots that occupy it, and how many have to be freed.

use std::collections::BTreeSet;

use model_boss_protocol::SlotId;

use super::state::Scheduler;
use crate::catalog::ModelIndex;
use crate::phase::StopPhase;
use crate::slot::SlotState;

impl Scheduler {
    /// The limit of the model's category (MM-1).
    pub(super) fn limit_of(&self, model: ModelIndex) -> Option<usize> {
        self.settings.max_loaded.of(self.catalog[model].description.category)
    }

    /// Slots of other models of the category that count against its limit. Each counts until its process is gone.
    pub(super) fn loaded_beside(&self, model: ModelIndex) -> Vec<SlotId> {
        let category = self.catalog[model].description.category;
        let counts = |slot: &&crate::slot::ModelSlot| {
            slot.model != model
                && !matches!(slot.state, SlotState::Idle | SlotState::Stopping(StopPhase::Releasing))
                && self.catalog[slot.model].description.category == category
        };
        self.pool.in_use().filter(counts).map(|slot| slot.id).collect()
    }

    /// The number of models of the category that have to be evicted before `model` may be loaded (MM-1). Slots for
    /// which `leaving` holds count as evicted. A claim of another model counts as a loaded one.
    pub(super) fn places_missing(&self, model: ModelIndex, leaving: impl Fn(SlotId) -> bool) -> usize {
        let Some(limit) = self.limit_of(model) else { return 0 };
        let category = self.catalog[model].description.category;
        let staying: Vec<SlotId> = self.loaded_beside(model).into_iter().filter(|&slot| !leaving(slot)).collect();
        let models: BTreeSet<ModelIndex> = staying.iter().map(|&slot| self.pool[slot].model).collect();
        let promised = self.claims.iter().filter(|(claimant, claim)| {
            **claimant != model
                && self.catalog[**claimant].description.category == category
                && !models.contains(*claimant)
                && !claim.victims.iter().any(|victim| staying.contains(victim))
        });
        (models.len() + promised.count() + 1).saturating_sub(limit)
    }

    pub(super) fn has_second_copy(&self, id: SlotId) -> bool {
        let model = self.pool[id].model;
        let live = |slot: &&SlotId| {
            **slot != id
                && !matches!(self.pool[**slot].state, SlotState::Idle | SlotState::Stopping(StopPhase::Releasing))
        };
        self.catalog[model].slots.iter().any(|slot| live(&slot))
    }
}
