//! Maps whose keys are numbers that we hand out ourselves, one after another, or enums of such: nobody can choose them so
//! that they collide, so they need no hashing that is proof against that.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Looked up by number.
pub(crate) type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Multiplicative hashing (Knuth, The Art of Computer Programming, 6.4).
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl NumberHasher {
    /// 2⁶⁴ divided by the golden ratio, made odd.
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    /// The product's best bits are its highest; a map takes its place from the lowest.
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

    /// Which variant of an enum.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use super::*;

    /// A map takes an entry's place from the lowest bits of its hash, and tells neighbours apart by the seven highest.
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
}
