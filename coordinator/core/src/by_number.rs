//! Hash maps with a fast hash. Their keys are numbers that the scheduler assigns in sequence, or enums of such
//! numbers. No client can choose keys that collide, so the hash need not resist attacks.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with keys assigned by the scheduler.
pub(crate) type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Multiplicative hashing (Knuth, The Art of Computer Programming, 6.4).
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl NumberHasher {
    /// 2⁶⁴ divided by the golden ratio, made odd.
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    /// The product's highest bits are the most random, and a hash map takes the bucket from the lowest.
    const HIGHEST: u32 = 26;
}

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    /// The discriminant of an enum.
    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.unsigned_abs() as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(Self::FACTOR);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(Self::HIGHEST)
    }
}

/// A map for very many entries, split into parts, so that no single insertion moves all of them to a larger table.
#[derive(Debug)]
pub(crate) struct InParts<V> {
    parts: Vec<ByNumber<u64, V>>,
    length: usize,
}

impl<V> Default for InParts<V> {
    fn default() -> Self {
        Self { parts: (0..Self::PARTS).map(|_| ByNumber::default()).collect(), length: 0 }
    }
}

impl<V> InParts<V> {
    /// The number of parts: 100,000 entries are about 400 in each.
    const PARTS: u64 = 256;

    /// Consecutive numbers go to different parts.
    const fn part(number: u64) -> usize {
        (number % Self::PARTS) as usize
    }

    pub(crate) fn insert(&mut self, number: u64, value: V) {
        let before = self.parts[Self::part(number)].insert(number, value);
        self.length += usize::from(before.is_none());
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<V> {
        let value = self.parts[Self::part(number)].remove(&number)?;
        self.length -= 1;
        Some(value)
    }

    pub(crate) fn get(&self, number: u64) -> Option<&V> {
        self.parts[Self::part(number)].get(&number)
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// All values, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.parts.iter().flat_map(HashMap::values)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;

    /// A hash map takes an entry's bucket from the lowest bits of its hash, and compares the seven highest first.
    #[test]
    fn numbers_in_a_row_get_places_far_apart() {
        let hasher = BuildHasherDefault::<NumberHasher>::default();
        for first in [0, 1 << 20, 1 << 40] {
            let hashes: Vec<u64> = (first..first + 4_096_u64).map(|number| hasher.hash_one(number)).collect();
            let places: BTreeSet<u64> = hashes.iter().map(|hash| hash % 4_096).collect();
            let marks: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(places.len() > 2_048, "{} places", places.len());
            assert_eq!(marks.len(), 128);
        }
    }

    #[test]
    fn what_is_kept_in_parts_is_found_counted_and_taken_out() {
        let mut map = InParts::default();
        for number in 0..10_000 {
            map.insert(number, number);
        }
        map.insert(7, 8);
        assert_eq!((map.len(), map.get(7), map.get(9_999)), (10_000, Some(&8), Some(&9_999)));
        assert_eq!((map.remove(7), map.remove(7), map.get(7), map.len()), (Some(8), None, None, 9_999));
        assert_eq!(map.values().count(), 9_999);
        let largest = map.parts.iter().map(HashMap::capacity).max();
        assert!(largest.is_some_and(|largest| largest < 100), "{largest:?} entries would move at once");
    }
}
