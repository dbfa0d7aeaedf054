//! The models with parked prefixes, and which leave first. Pure: it knows sizes and times, no files and no memory.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use model_boss_protocol::{ModelId, ParkedCounts};

/// The place of parked prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParkedContent {
    /// In memory; also while they are on their way to a file.
    Memory(Bytes),
    /// In the model's file.
    File,
}

/// The parked prefixes of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParkedEntry {
    pub(super) content: ParkedContent,
    pub(super) bytes: u64,
    /// Their blocks and tokens; unknown for a file of an earlier process.
    pub(super) counts: Option<ParkedCounts>,
    /// When they were parked.
    pub(super) at: SystemTime,
}

/// All parked prefixes, and the models whose older ones are not wanted any more.
#[derive(Debug, Default)]
pub(super) struct ParkedBook {
    entries: BTreeMap<ModelId, ParkedEntry>,
    /// How often the prefixes of each model were forgotten.
    forgotten: BTreeMap<ModelId, u64>,
}

impl ParkedBook {
    /// The bytes of all.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.values().map(|entry| entry.bytes).sum()
    }

    /// The bytes of those that are in memory.
    pub(super) fn bytes_in_memory(&self) -> u64 {
        let in_memory = |entry: &&ParkedEntry| matches!(entry.content, ParkedContent::Memory(_));
        self.entries.values().filter(in_memory).map(|entry| entry.bytes).sum()
    }

    pub(super) fn get(&self, model: &ModelId) -> Option<&ParkedEntry> {
        self.entries.get(model)
    }

    pub(super) fn get_mut(&mut self, model: &ModelId) -> Option<&mut ParkedEntry> {
        self.entries.get_mut(model)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&ModelId, &ParkedEntry)> {
        self.entries.iter()
    }

    /// Adds a model's prefixes, in place of older ones. The bounds are the caller's matter.
    pub(super) fn add(&mut self, model: ModelId, entry: ParkedEntry) {
        self.entries.insert(model, entry);
    }

    pub(super) fn remove(&mut self, model: &ModelId) -> Option<ParkedEntry> {
        self.entries.remove(model)
    }

    /// Removes entries until there are at most so many bytes, the ones parked first in front. The entry of `last`
    /// leaves after all others.
    pub(super) fn shrink(&mut self, most: u64, last: Option<&ModelId>) -> Vec<(ModelId, ParkedEntry)> {
        let mut removed = Vec::new();
        while self.bytes() > most {
            let coldest = self.entries.iter().min_by_key(|(model, entry)| (Some(*model) == last, entry.at));
            let Some(model) = coldest.map(|(model, _)| model.clone()) else { break };
            removed.extend(self.entries.remove_entry(&model));
        }
        removed
    }

    /// Removes entries for which this is true.
    pub(super) fn remove_where(
        &mut self,
        mut leaves: impl FnMut(&ModelId, &ParkedEntry) -> bool,
    ) -> Vec<(ModelId, ParkedEntry)> {
        let leaving = self.entries.iter().filter(|(model, entry)| leaves(model, entry)).map(|(model, _)| model.clone());
        let leaving: Vec<ModelId> = leaving.collect();
        leaving.iter().filter_map(|model| self.entries.remove_entry(model)).collect()
    }

    /// Removes entries that are older than this.
    pub(super) fn expire(&mut self, now: SystemTime, keep: Duration) -> Vec<(ModelId, ParkedEntry)> {
        self.remove_where(|_, entry| now.duration_since(entry.at).is_ok_and(|age| age > keep))
    }

    /// Prefixes of workers that run now are not wanted either.
    pub(super) fn forget(&mut self, model: &ModelId) -> Option<ParkedEntry> {
        *self.forgotten.entry(model.clone()).or_default() += 1;
        self.entries.remove(model)
    }

    /// How often the model's prefixes were forgotten: a worker that started before the last time parks none.
    pub(super) fn era(&self, model: &ModelId) -> u64 {
        self.forgotten.get(model).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(second)).unwrap()
    }

    fn entry(bytes: u64, second: u64) -> ParkedEntry {
        ParkedEntry { content: ParkedContent::Memory(Bytes::new()), bytes, counts: None, at: at(second) }
    }

    fn book(entries: &[(&str, u64, u64)]) -> ParkedBook {
        let mut book = ParkedBook::default();
        entries.iter().for_each(|(model, bytes, second)| book.add((*model).into(), entry(*bytes, *second)));
        book
    }

    fn names(removed: &[(ModelId, ParkedEntry)]) -> Vec<&str> {
        removed.iter().map(|(model, _)| model.as_str()).collect()
    }

    #[test]
    fn en_3_the_prefixes_that_were_parked_first_leave_first() {
        let all = [("a", 10, 3), ("b", 20, 1), ("c", 30, 2)];
        assert_eq!(names(&book(&all).shrink(60, None)), [""; 0]);
        assert_eq!(names(&book(&all).shrink(59, None)), ["b"]);
        assert_eq!(names(&book(&all).shrink(39, None)), ["b", "c"]);
        assert_eq!(names(&book(&all).shrink(0, None)), ["b", "c", "a"]);
        assert_eq!(
            names(&book(&all).shrink(0, Some(&"b".into()))),
            ["c", "a", "b"],
            "the model that is loaded is last"
        );
    }

    #[test]
    fn en_3_prefixes_leave_by_age() {
        let mut book = book(&[("a", 10, 100), ("b", 20, 200)]);
        let hour = Duration::from_secs(3_600);
        assert_eq!(names(&book.expire(at(3_700), hour)), [""; 0]);
        assert_eq!(names(&book.expire(at(3_701), hour)), ["a"]);
        assert_eq!(names(&book.expire(at(0), hour)), [""; 0], "a clock that was set back drops nothing");
        assert_eq!(book.bytes(), 20);
    }

    #[test]
    fn en_3_forgotten_prefixes_belong_to_an_earlier_era() {
        let mut book = book(&[("a", 10, 1)]);
        let before = book.era(&"a".into());
        assert!(book.forget(&"a".into()).is_some() && book.forget(&"a".into()).is_none());
        assert!(book.era(&"a".into()) > before && book.era(&"b".into()) == 0);
    }
}
