//! The contract of a store, and reading several of its pieces at the same time.

use std::sync::{Mutex, PoisonError};
use std::thread;

use super::error::WeightStoreError;
use super::runs::{Extent, Reads, Run};

/// Reads pieces of files, from any thread.
pub trait WeightStore: Send + Sync {
    /// Fills the beginning of `into` with a run's bytes. `into` is as long as the run; its part after the end of the
    /// file is not changed.
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), WeightStoreError>;

    /// The store's kind of reads and the reason, in a few words: `direct (ext4)`.
    fn describe(&self) -> String;
}

/// The number of reads in progress at the same time. A disk that has to wait for the next read delivers a tenth less.
const TOGETHER: usize = 2;
/// The bytes of each read: whole pages.
const PIECE: usize = 8 << 20;

/// Reads all planned runs, several at a time if they are many bytes.
pub fn read_all(store: &dyn WeightStore, reads: &Reads, into: &mut [u8]) -> Result<(), WeightStoreError> {
    let (needs, has) = (reads.buffer(), into.len());
    let (mut rest, mut at) = (into, 0);
    let mut pieces = Vec::new();
    for run in reads.runs() {
        // Runs are in the order of the buffer, without gaps.
        let short = || WeightStoreError::TooShort { needs, has };
        rest = rest.split_at_mut_checked(run.at - at).ok_or_else(short)?.1;
        let (of_run, behind) = rest.split_at_mut_checked(run.extent.len as usize).ok_or_else(short)?;
        for (index, piece) in of_run.chunks_mut(PIECE).enumerate() {
            let first = index * PIECE;
            let extent = Extent { offset: run.extent.offset + first as u64, len: piece.len() as u64, ..run.extent };
            pieces.push((Run { extent, at: run.at + first }, piece));
        }
        (rest, at) = (behind, run.at + run.extent.len as usize);
    }
    let helpers = pieces.len().min(TOGETHER).saturating_sub(1);
    let pieces = Mutex::new(pieces.into_iter());
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    let read = || -> Result<(), WeightStoreError> {
        while let Some((run, into)) = next() {
            store.read(&run, into)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        // If no helper thread can be started, this thread reads all runs.
        let helpers: Vec<_> =
            (0..helpers).filter_map(|_| thread::Builder::new().spawn_scoped(scope, read).ok()).collect();
        let own = read();
        let others = helpers.into_iter().map(|helper| helper.join().unwrap_or(Err(WeightStoreError::Panicked)));
        others.fold(own, Result::and)
    })
}
