//! A store in memory that holds the bytes of another store. Layers held there are streamed at the speed of the device's
//! link, not of the disk. Blocks that do not fit are read from the other store.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::buffer::HostBuffer;
use super::error::WeightStoreError;
use super::read::WeightStore;
use super::runs::{Reads, Run};

/// A store with some runs in memory, and the others in their files.
pub struct MemoryStore {
    behind: Arc<dyn WeightStore>,
    /// Held blocks by file and first byte: their buffer, and the number of its bytes that are filled.
    held: BTreeMap<(usize, u64), (HostBuffer, u64)>,
    bytes: u64,
    /// The number of reads that are held whole, and the number of all.
    reads: (usize, usize),
}

impl MemoryStore {
    /// Reads the runs to hold once, within `limit` bytes: those of `reads` that [`evenly_within`] chooses.
    pub fn holding(
        behind: Arc<dyn WeightStore>,
        reads: &[Reads],
        last: &[usize],
        limit: u64,
    ) -> Result<Self, WeightStoreError> {
        let bytes: Vec<u64> = reads.iter().map(|reads| reads.buffer() as u64).collect();
        let held = evenly_within(&bytes, last, limit);
        let mut store = Self { behind, held: BTreeMap::new(), bytes: 0, reads: (held.len(), reads.len()) };
        for run in held.into_iter().flat_map(|block| reads[block].runs()) {
            let bytes = run.extent.len;
            let buffer = HostBuffer::new(bytes as usize);
            let mut buffer = buffer.map_err(|source| WeightStoreError::Memory { bytes, source })?;
            store.behind.read(run, &mut buffer)?;
            let key = (run.extent.file, run.extent.offset);
            if store.held.insert(key, (buffer, bytes)).is_none() {
                store.bytes += bytes;
            }
        }
        Ok(store)
    }

    /// A run, or a part of one, that is held.
    fn held(&self, run: &Run, len: usize) -> Option<&[u8]> {
        let ((file, offset), (buffer, bytes)) = self.held.range(..=(run.extent.file, run.extent.offset)).next_back()?;
        let first = run.extent.offset - offset;
        let inside = *file == run.extent.file && first + len as u64 <= *bytes;
        inside.then(|| buffer.get(first as usize..first as usize + len)).flatten()
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl WeightStore for MemoryStore {
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), WeightStoreError> {
        match self.held(run, into.len()) {
            Some(held) => into.copy_from_slice(held),
            None => self.behind.read(run, into)?,
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let (held, all) = self.reads;
        let bytes = self.bytes >> 20;
        let behind = if held < all { format!(", the others {}", self.behind.describe()) } else { String::new() };
        format!("memory ({held} of {all} blocks, {bytes} MiB{behind})")
    }
}

/// The blocks that are held within `limit` bytes. As many are held as fit, chosen evenly, so that the others are read
/// while these compute. Those of `last` are in device memory already, and are held only once all others are.
pub fn evenly_within(bytes: &[u64], last: &[usize], limit: u64) -> Vec<usize> {
    let (later, first): (Vec<usize>, Vec<usize>) = (0..bytes.len()).partition(|block| last.contains(block));
    let (mut held, left) = evenly_among(bytes, &first, limit);
    if held.len() == first.len() {
        held.extend(evenly_among(bytes, &later, left).0);
        held.sort_unstable();
    }
    held
}

/// Chooses as many of the blocks as fit within the limit, evenly; returns them and the bytes that are left.
fn evenly_among(bytes: &[u64], blocks: &[usize], limit: u64) -> (Vec<usize>, u64) {
    let all = blocks.len();
    let evenly = |count: usize| {
        let chosen = (0..all).filter(move |at| (at + 1) * count / all > at * count / all);
        let held: Vec<usize> = chosen.map(|at| blocks[at]).collect();
        let takes = held.iter().fold(0_u64, |sum, block| sum.saturating_add(bytes[*block]));
        limit.checked_sub(takes).map(|left| (held, left))
    };
    (0..=all).rev().find_map(evenly).unwrap_or((Vec::new(), limit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn takes(held: &[usize], bytes: &[u64]) -> u64 {
        held.iter().map(|block| bytes[*block]).sum()
    }

    #[test]
    fn those_that_are_in_memory_elsewhere_come_last() {
        assert_eq!(evenly_within(&[1; 6], &[1, 4], 2), [2, 5]);
        assert_eq!(evenly_within(&[1; 6], &[1, 4], 4), [0, 2, 3, 5]);
        assert_eq!(evenly_within(&[1; 6], &[1, 4], 5), [0, 2, 3, 4, 5]);
        assert_eq!(evenly_within(&[1; 6], &[1, 4], 9), [0, 1, 2, 3, 4, 5]);
        assert_eq!(evenly_within(&[], &[], 9), [0_usize; 0]);
    }

    proptest! {
        #[test]
        fn as_many_as_fit_stand_evenly_between_the_others(
            blocks in 1..60_usize, size in 1..1_000_u64, room in 0..70_u64,
        ) {
            let bytes = vec![size; blocks];
            let held = evenly_within(&bytes, &[], room * size + size / 2);
            prop_assert_eq!(held.len(), blocks.min(room as usize));
            // Steps read the blocks in a circle, so the distances between neighbouring held blocks differ by at most
            // one.
            let next = held.iter().skip(1).chain(held.first());
            let far: Vec<usize> = held.iter().zip(next).map(|(from, to)| (to + blocks - from - 1) % blocks).collect();
            let (least, most) = (far.iter().min(), far.iter().max());
            prop_assert!(least.zip(most).is_none_or(|(least, most)| most - least <= 1), "{:?}: {:?}", held, far);
        }

        #[test]
        fn a_limit_is_kept_and_no_room_for_another_is_left(
            bytes in proptest::collection::vec(0..1_000_u64, 0..40), last in proptest::collection::vec(0..40_usize, 0..10),
            limit in 0..20_000_u64,
        ) {
            let held = evenly_within(&bytes, &last, limit);
            prop_assert!(takes(&held, &bytes) <= limit);
            prop_assert!(held.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", held);
            let others = (0..bytes.len()).filter(|block| !last.contains(block));
            let all_others = others.clone().all(|block| held.contains(&block));
            prop_assert!(all_others || held.iter().all(|block| !last.contains(block)), "{:?}", held);
            let all: u64 = bytes.iter().sum();
            prop_assert!(all > limit || held.len() == bytes.len());
        }
    }
}
