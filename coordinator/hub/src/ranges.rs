//! Sets of bytes of a file, as sorted ranges that do not touch.

use std::ops::Range;

/// A set of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByteRanges(Vec<Range<u64>>);

impl ByteRanges {
    /// The set of these ranges, which may overlap.
    pub(crate) fn of(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut set = Self::default();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }

    /// Adds a range.
    pub(crate) fn insert(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let from = self.0.partition_point(|known| known.end < range.start);
        let until = self.0.partition_point(|known| known.start <= range.end);
        if let (Some(first), Some(last)) = (self.0.get(from), until.checked_sub(1).and_then(|last| self.0.get(last)))
            && from < until
        {
            range = range.start.min(first.start)..range.end.max(last.end);
        }
        self.0.splice(from..until.max(from), [range]);
    }

    /// Removes and returns the first bytes of the set, at most `most`.
    pub(crate) fn take_first(&mut self, most: u64) -> Option<Range<u64>> {
        let first = self.0.first_mut()?;
        let end = first.end.min(first.start.saturating_add(most));
        let taken = first.start..end;
        if end == first.end {
            self.0.remove(0);
        } else {
            first.start = end;
        }
        Some(taken)
    }

    /// The bytes below `size` that are not in the set.
    pub(crate) fn missing(&self, size: u64) -> Self {
        let mut missing = Vec::new();
        let mut at = 0;
        for range in &self.0 {
            missing.push(at..range.start.min(size));
            at = range.end;
        }
        missing.push(at..size);
        Self::of(missing.into_iter().filter(|range| range.start < range.end))
    }

    /// The number of bytes.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|range| range.end.saturating_sub(range.start)).sum()
    }

    /// The ranges as pairs, for a file.
    pub(crate) fn pairs(&self) -> Vec<(u64, u64)> {
        self.0.iter().map(|range| (range.start, range.end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_where_they_touch() {
        let mut set = ByteRanges::of([10..20, 30..40, 0..0]);
        assert_eq!(set.pairs(), [(10, 20), (30, 40)]);
        set.insert(20..25);
        assert_eq!(set.pairs(), [(10, 25), (30, 40)]);
        set.insert(0..1);
        set.insert(24..30);
        assert_eq!(set.pairs(), [(0, 1), (10, 40)]);
        set.insert(0..100);
        assert_eq!((set.pairs(), set.count()), (vec![(0, 100)], 100));
    }

    #[test]
    fn missing_bytes_are_those_between() {
        let set = ByteRanges::of([10..20, 30..40]);
        assert_eq!(set.missing(50).pairs(), [(0, 10), (20, 30), (40, 50)]);
        assert_eq!(set.missing(40).pairs(), [(0, 10), (20, 30)]);
        assert_eq!(ByteRanges::default().missing(0).pairs(), []);
        let mut missing = ByteRanges::default().missing(25);
        assert_eq!((missing.take_first(10), missing.take_first(100)), (Some(0..10), Some(10..25)));
        assert_eq!(missing.take_first(1), None);
    }

    #[test]
    fn a_set_holds_the_bytes_that_were_added_in_any_order() {
        let (mut set, mut bytes) = (ByteRanges::default(), [false; 64]);
        let mut dice = 12_345_u64;
        for _ in 0..300 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let start = (dice >> 33) % 64;
            let end = (start + (dice >> 50) % 8).min(64);
            set.insert(start..end);
            bytes[start as usize..end as usize].fill(true);
            let expected = bytes.iter().filter(|byte| **byte).count() as u64;
            assert_eq!((set.count(), set.missing(64).count()), (expected, 64 - expected));
        }
    }
}
