//! Counts of a client's requests by model.

use model_boss_protocol::ModelId;

use crate::catalog::ModelIndex;

/// The number of models counted for each client; beyond it the one with the fewest requests is dropped.
const MODELS: usize = 64;

/// The number of requests by model. Every end of a request reads the counts, so indices and counts are stored apart
/// from the names.
#[derive(Debug, Default)]
pub(crate) struct ModelCounts {
    indices: Vec<ModelIndex>,
    counts: Vec<u64>,
    names: Vec<ModelId>,
}

impl ModelCounts {
    /// Counts a request.
    pub(super) fn add(&mut self, index: ModelIndex, name: &ModelId) {
        let place = match self.indices.iter().position(|known| *known == index) {
            // A forgotten model's index may be another's now.
            Some(place) if self.names[place] == *name => {
                self.counts[place] += 1;
                return;
            }
            Some(place) => place,
            None if self.counts.len() < MODELS => {
                self.indices.push(index);
                self.counts.push(1);
                self.names.push(name.clone());
                return;
            }
            None => {
                let least = self.counts.iter().enumerate().min_by_key(|(_, count)| **count);
                least.map_or(0, |(place, _)| place)
            }
        };
        self.indices[place] = index;
        self.counts[place] = 1;
        self.names[place] = name.clone();
    }

    /// The models with their counts, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ModelId, u64)> {
        self.names.iter().zip(self.counts.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn all(counts: &ModelCounts) -> BTreeMap<String, u64> {
        counts.iter().map(|(name, count)| (name.to_string(), count)).collect()
    }

    #[test]
    fn the_model_with_the_fewest_requests_is_dropped_for_a_new_one() {
        let mut counts = ModelCounts::default();
        let name = |number: usize| ModelId::from(format!("m{number}").as_str());
        for number in 0..MODELS {
            for _ in 0..if number == 7 { 1 } else { 2 } {
                counts.add(ModelIndex::new(number), &name(number));
            }
        }
        assert_eq!((all(&counts).len(), all(&counts)["m7"], all(&counts)["m8"]), (MODELS, 1, 2));
        counts.add(ModelIndex::new(100), &name(100));
        assert_eq!((all(&counts).len(), all(&counts).get("m7"), all(&counts)["m100"]), (MODELS, None, 1));
    }

    #[test]
    fn a_model_with_the_index_of_a_forgotten_one_has_a_count_of_its_own() {
        let mut counts = ModelCounts::default();
        for name in ["a", "a", "b"] {
            counts.add(ModelIndex::new(3), &name.into());
        }
        assert_eq!(all(&counts), BTreeMap::from([("b".to_owned(), 1)]));
    }
}
