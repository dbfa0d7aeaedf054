//! The workers' last figures on streamed layers (RS-9). Each runner writes those of its own generation; views read
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use model_boss_core::SlotKey;
use model_boss_protocol::{ModelId, StreamStats};

/// The figures of streaming, by slot. The handle is cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<RwLock<StreamFigures>>);

#[derive(Debug, Default)]
struct StreamFigures {
    now: BTreeMap<SlotKey, (ModelId, StreamStats)>,
    /// Every model that has streamed since the start, so that its metrics do not vanish between scrapes.
    ever: BTreeSet<ModelId>,
}

impl Streams {
    /// The figures of this generation of the slot.
    pub(crate) fn of(&self, slot: SlotKey) -> Option<StreamStats> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.now.get(&slot).map(|(_, stats)| stats.clone())
    }

    /// Every model that has streamed; without figures if it does not stream now.
    pub(crate) fn models(&self) -> Vec<(ModelId, Option<StreamStats>)> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let of = |id: &ModelId| known.now.values().rfind(|(model, _)| model == id).map(|(_, stats)| stats.clone());
        known.ever.iter().map(|id| (id.clone(), of(id))).collect()
    }

    pub(super) fn told(&self, slot: SlotKey, model: &ModelId, stats: StreamStats) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if !known.ever.contains(model) {
            known.ever.insert(model.clone());
        }
        known.now.insert(slot, (model.clone(), stats));
    }

    pub(super) fn gone(&self, slot: SlotKey) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).now.remove(&slot);
    }
}

#[cfg(test)]
mod tests {
    use model_boss_protocol::{Generation, SlotId};

    use super::*;

    #[test]
    fn what_an_earlier_filling_said_is_not_shown_for_a_later_one() {
        let streams = Streams::default();
        let slot = |generation| SlotKey { id: SlotId(3), generation: Generation(generation) };
        let stats = |steps| StreamStats { steps, ..StreamStats::default() };
        let model = ModelId::from("m");
        streams.told(slot(1), &model, stats(7));
        assert_eq!(streams.of(slot(1)), Some(stats(7)));
        assert_eq!(streams.of(slot(2)), None);
        streams.told(slot(2), &model, stats(1));
        // The end of the first generation is reported late.
        streams.gone(slot(1));
        assert_eq!(streams.models(), [(model.clone(), Some(stats(1)))]);
        streams.gone(slot(2));
        assert_eq!(streams.models(), [(model, None)]);
    }
}
