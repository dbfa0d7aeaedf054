//! The workers' last figures on streamed layers (RS-9). Each runner writes those of its own generation; views read
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use model_boss_protocol::{Generation, ModelId, SlotId, StreamStats};

/// The figures of streaming, by slot. The handle is cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<RwLock<StreamFigures>>);

#[derive(Debug, Default)]
struct StreamFigures {
    now: BTreeMap<SlotId, (Generation, ModelId, StreamStats)>,
    /// Every model that has streamed since the start, so that its metrics do not vanish between scrapes.
    ever: BTreeSet<ModelId>,
}

impl Streams {
    /// The figures of this generation of the slot.
    pub(crate) fn of(&self, slot: SlotId, generation: Generation) -> Option<StreamStats> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.now.get(&slot).filter(|(of, ..)| *of == generation).map(|(_, _, stats)| stats.clone())
    }

    /// Every model that has streamed; without figures if it does not stream now.
    pub(crate) fn models(&self) -> Vec<(ModelId, Option<StreamStats>)> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let of = |id: &ModelId| known.now.values().rfind(|(_, model, _)| model == id).map(|(.., stats)| stats.clone());
        known.ever.iter().map(|id| (id.clone(), of(id))).collect()
    }

    pub(super) fn told(&self, slot: SlotId, generation: Generation, model: &ModelId, stats: StreamStats) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if !known.ever.contains(model) {
            known.ever.insert(model.clone());
        }
        known.now.insert(slot, (generation, model.clone(), stats));
    }

    pub(super) fn gone(&self, slot: SlotId, generation: Generation) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.now.get(&slot).is_some_and(|(of, ..)| *of == generation) {
            known.now.remove(&slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_filling_said_is_not_shown_for_a_later_one() {
        let (streams, slot) = (Streams::default(), SlotId(3));
        let stats = |steps| StreamStats { steps, ..StreamStats::default() };
        let model = ModelId::from("m");
        streams.told(slot, Generation(1), &model, stats(7));
        assert_eq!(streams.of(slot, Generation(1)), Some(stats(7)));
        assert_eq!(streams.of(slot, Generation(2)), None);
        streams.told(slot, Generation(2), &model, stats(1));
        // The end of the first generation is reported late.
        streams.gone(slot, Generation(1));
        assert_eq!(streams.models(), [(model.clone(), Some(stats(1)))]);
        streams.gone(slot, Generation(2));
        assert_eq!(streams.models(), [(model, None)]);
    }
}
