//! Memory that holds what another store gave: layers that a device without room for them streams from the host's memory
//! at the speed of its link, not of the disk. What does not fit goes on coming from the other store.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::buffer::HostBuffer;
use super::{Reads, Run, StoreError, WeightStore};

/// Some runs in memory, the others where they were.
pub struct MemoryStore {
    behind: Arc<dyn WeightStore>,
    /// By file and first byte: bytes and how many of the buffer they are.
    held: BTreeMap<(usize, u64), (HostBuffer, u64)>,
    bytes: u64,
    /// How many of how many are held whole.
    reads: (usize, usize),
}

impl MemoryStore {
    /// Reads once what is to be held: each of `reads` that fits, whole, into what is left of `limit` bytes, in their order.
    pub fn holding<'a>(
        behind: Arc<dyn WeightStore>,
        reads: impl IntoIterator<Item = &'a Reads>,
        limit: u64,
    ) -> Result<Self, StoreError> {
        let mut store = Self { behind, held: BTreeMap::new(), bytes: 0, reads: (0, 0) };
        for reads in reads {
            store.reads.1 += 1;
            let needs: u64 = reads.runs().iter().map(|run| run.extent.len).sum();
            if needs > limit - store.bytes {
                continue;
            }
            for run in reads.runs() {
                let bytes = run.extent.len;
                let buffer = HostBuffer::new(bytes as usize);
                let mut buffer = buffer.map_err(|source| StoreError::Memory { bytes, source })?;
                store.behind.read(run, &mut buffer)?;
                let key = (run.extent.file, run.extent.offset);
                if store.held.insert(key, (buffer, bytes)).is_none() {
                    store.bytes += bytes;
                }
            }
            store.reads.0 += 1;
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
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), StoreError> {
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
