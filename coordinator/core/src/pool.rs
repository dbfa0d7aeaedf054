//! All slots, with their models and the number in use. Eviction, memory and requests are handled by other modules.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use model_boss_protocol::SlotId;

use crate::catalog::ModelIndex;
use crate::slot::{ModelSlot, SlotState};
use crate::slot_key::SlotKey;

/// The pool: slots are created when a model needs one, and reused for the same model until it is forgotten.
#[derive(Debug, Default)]
pub(crate) struct ModelPool {
    slots: Vec<ModelSlot>,
    /// IDLE slots of forgotten models.
    spare: Vec<SlotId>,
    in_use: BTreeSet<SlotId>,
}

impl ModelPool {
    /// An idle slot of this model among `known`, or a new one.
    pub(crate) fn vacant(&mut self, model: ModelIndex, known: &[SlotId]) -> SlotId {
        if let Some(&slot) = known.iter().find(|&&slot| self[slot].state == SlotState::Idle) {
            return slot;
        }
        if let Some(slot) = self.spare.pop() {
            // Late events of the slot's earlier model have an older generation, and are ignored.
            let generation = self[slot].generation;
            self[slot] = ModelSlot::new(slot, model);
            self[slot].generation = generation;
            return slot;
        }
        let slot = SlotId(self.slots.len() as u64);
        self.slots.push(ModelSlot::new(slot, model));
        slot
    }

    /// Takes back the slots of a model that is forgotten.
    pub(crate) fn give_up(&mut self, slots: Vec<SlotId>) {
        self.spare.extend(slots);
    }

    /// The number of slots, in use or not.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot, if this generation is its present one.
    pub(crate) fn current(&mut self, key: SlotKey) -> Option<&mut ModelSlot> {
        let index = usize::try_from(key.id.0).ok()?;
        self.slots.get_mut(index).filter(|slot| slot.key() == key)
    }

    /// Counts a slot that left IDLE.
    pub(crate) fn entered(&mut self, slot: SlotId) {
        self.in_use.insert(slot);
    }

    /// Counts a slot that is IDLE again.
    pub(crate) fn left(&mut self, slot: SlotId) {
        self.in_use.remove(&slot);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_use.is_empty()
    }

    pub(crate) fn is_in_use(&self, slot: SlotId) -> bool {
        self.in_use.contains(&slot)
    }

    /// All slots that are not IDLE.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = &ModelSlot> {
        self.in_use.iter().map(|&slot| &self[slot])
    }
}

impl Index<SlotId> for ModelPool {
    type Output = ModelSlot;
    fn index(&self, slot: SlotId) -> &ModelSlot {
        &self.slots[slot.0 as usize]
    }
}

impl IndexMut<SlotId> for ModelPool {
    fn index_mut(&mut self, slot: SlotId) -> &mut ModelSlot {
        &mut self.slots[slot.0 as usize]
    }
}
