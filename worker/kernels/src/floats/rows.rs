//! Rows of a matrix of floats as they are stored.

use pulp::bytemuck::{Zeroable, bytes_of_mut, cast_slice};

use super::kinds::FloatKind;
use crate::lanes::{LANES, Lanes};

/// Whole groups of a row, and the remaining bytes.
#[inline(always)]
pub(super) fn groups<K: FloatKind>(row: &[u8]) -> (&[K::Group], &[u8]) {
    let (whole, rest) = row.split_at(row.len() - row.len() % size_of::<K::Group>());
    (cast_slice(whole), rest)
}

/// A group that ends with zeros.
#[inline(always)]
pub(super) fn padded<K: FloatKind>(rest: &[u8]) -> K::Group {
    let mut group = K::Group::zeroed();
    bytes_of_mut(&mut group)[..rest.len()].copy_from_slice(rest);
    group
}

/// Elements as f32.
#[inline(always)]
pub(super) fn widen<L: Lanes, K: FloatKind>(lanes: L, narrow: &[u8], wide: &mut [f32]) {
    let (groups, rest) = groups::<K>(narrow);
    let (whole, left) = wide.as_chunks_mut::<LANES>();
    for (group, wide) in groups.iter().zip(whole.chunks_mut(K::STEPS)) {
        for (step, wide) in wide.iter_mut().enumerate() {
            lanes.store(K::load(lanes, group, step), wide);
        }
    }
    if !left.is_empty() {
        let mut last = [0.0; LANES];
        lanes.store(K::load(lanes, &padded::<K>(rest), 0), &mut last);
        left.copy_from_slice(&last[..left.len()]);
    }
}
