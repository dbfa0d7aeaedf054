//! Stores: where the bytes of layers come from when they are pulled again and again. Files read past the page cache
//! ([`DirectStore`]), mapped files ([`MappedStore`]), and memory that holds what another store gave ([`MemoryStore`]).
//! None of them leaves a second copy in the page cache. Knows ranges, not their meaning.

mod buffer;
mod direct;
mod mapped;
mod memory;
mod runs;
mod system;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

pub use buffer::{HostBuffer, HostMemory, PAGE, prefer_large_pages};
pub use direct::DirectStore;
pub use mapped::MappedStore;
pub use memory::{MemoryStore, evenly_within};
pub use runs::{Extent, Reads, Run};

/// Gives pieces of files, from any thread.
pub trait WeightStore: Send + Sync {
    /// Fills the beginning of `into` with a run's bytes. `into` is as long as the run; what lies behind the end of the
    /// file is left as it is.
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), StoreError>;

    /// What it does and why, in a few words for people: `direct (ext4)`.
    fn describe(&self) -> String;
}

/// Which store is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreChoice {
    /// Direct reads where the file system has them, else reads through the page cache, which is told to forget.
    #[default]
    Auto,
    /// Direct reads, or none.
    Direct,
    /// Mapped files.
    Map,
    /// As [`StoreChoice::Auto`], with as much held in memory as there is room for. Who loads knows the room and
    /// makes a [`MemoryStore`].
    Memory,
}

/// Opens files, whose positions are their numbers.
///
/// # Errors
/// When a file cannot be opened, or when direct reads are asked for where the file system refuses them.
pub fn open(paths: &[PathBuf], choice: StoreChoice) -> Result<Arc<dyn WeightStore>, StoreError> {
    Ok(match choice {
        StoreChoice::Auto | StoreChoice::Memory => Arc::new(DirectStore::open(paths)?),
        StoreChoice::Direct => Arc::new(DirectStore::open(paths)?.or_refuse()?),
        StoreChoice::Map => Arc::new(MappedStore::open(paths)?),
    })
}

/// Reads that are under way at the same time: a disk that waits for the next one while it ends the last gives a tenth less.
const TOGETHER: usize = 2;
/// Bytes of each of them: whole pages.
const PIECE: usize = 8 << 20;

/// Reads everything that was planned, several pieces at a time where there is much to read.
pub fn read_all(store: &dyn WeightStore, reads: &Reads, into: &mut [u8]) -> Result<(), StoreError> {
    let (needs, has) = (reads.buffer(), into.len());
    let (mut rest, mut at) = (into, 0);
    let mut pieces = Vec::new();
    for run in reads.runs() {
        // Runs stand in the order of the buffer, one behind the other.
        let short = || StoreError::TooShort { needs, has };
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
    let read = || -> Result<(), StoreError> {
        while let Some((run, into)) = next() {
            store.read(&run, into)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        // Without a second thread one reads it all.
        let helpers: Vec<_> =
            (0..helpers).filter_map(|_| thread::Builder::new().spawn_scoped(scope, read).ok()).collect();
        let own = read();
        let others = helpers.into_iter().map(|helper| helper.join().unwrap_or(Err(StoreError::Panicked)));
        others.fold(own, Result::and)
    })
}

/// A piece could not be had.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{} cannot be read at byte {offset}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// Its reason.
        source: io::Error,
    },
    /// The file is no longer what it was: it was written, cut or lengthened.
    #[error("{} was changed while it is served; load the model again", path.display())]
    Changed {
        /// Which file.
        path: PathBuf,
    },
    /// Direct reads were asked for.
    #[error("{} cannot be read past the page cache: {why}; `store = \"auto\"` reads it through the cache", path.display())]
    NotDirect {
        /// Which file.
        path: PathBuf,
        /// Whose fault it is.
        why: String,
    },
    /// No memory to hold bytes in.
    #[error("no memory to hold {bytes} bytes of weights: {source}")]
    Memory {
        /// How many.
        bytes: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// A piece of a file that the store does not have.
    #[error("there is no file {file}")]
    NoFile {
        /// Its number.
        file: usize,
    },
    /// A fault of the program: what went wrong stands on standard error.
    #[error("a thread that read weights ended early")]
    Panicked,
    /// A fault of the caller.
    #[error("a buffer has {has} bytes where {needs} are needed")]
    TooShort {
        /// Bytes needed.
        needs: usize,
        /// Bytes there are.
        has: usize,
    },
}

fn unreadable(path: &Path, offset: u64) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Read { path: path.to_owned(), offset, source }
}

#[cfg(test)]
mod tests;
