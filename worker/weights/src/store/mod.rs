//! Stores: where the bytes of layers come from when they are pulled again and again. Three of them: files read past the
//! page cache ([`DirectStore`]), mapped files ([`MappedStore`]), and memory ([`MemoryStore`]). Knows ranges, not their meaning.

mod buffer;
mod direct;
mod runs;

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

pub use buffer::{HostBuffer, HostMemory, PAGE};
pub use direct::DirectStore;
pub use runs::{Extent, Reads, Run};

/// Gives pieces of files, from any thread.
pub trait WeightStore: Send + Sync {
    /// Fills the beginning of `into` with a run's bytes. `into` is as long as the run; what lies behind the end of the
    /// file is left as it is.
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), StoreError>;

    /// In a word, for people.
    fn name(&self) -> &'static str;
}

/// Reads everything that was planned.
pub fn read_all(store: &dyn WeightStore, reads: &Reads, into: &mut [u8]) -> Result<(), StoreError> {
    for run in reads.runs() {
        let end = run.at.saturating_add(run.extent.len as usize);
        let Some(into) = into.get_mut(run.at..end) else {
            return Err(StoreError::TooShort { needs: reads.buffer(), has: into.len() });
        };
        store.read(run, into)?;
    }
    Ok(())
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
    /// A piece of a file that the store does not have.
    #[error("there is no file {file}")]
    NoFile {
        /// Its number.
        file: usize,
    },
    /// A fault of the caller.
    #[error("a buffer has {has} bytes where {needs} are needed")]
    TooShort {
        /// Bytes needed.
        needs: usize,
        /// Bytes there are.
        has: usize,
    },
}

/// Tells whether a file is still the one that was opened, as far as the system tells.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    len: u64,
    modified: (i64, i64),
}

impl Identity {
    fn of(about: &Metadata) -> Self {
        Self { len: about.len(), modified: (about.mtime(), about.mtime_nsec()) }
    }
}

/// Mapped files: bytes come from the page cache, which counts against a memory limit and is read anew when it is short.
#[derive(Debug)]
pub struct MappedStore {
    files: Vec<(PathBuf, File, Identity, Mmap)>,
}

impl MappedStore {
    /// Maps the files, whose positions are their numbers.
    pub fn open(paths: &[PathBuf]) -> Result<Self, StoreError> {
        let open = |path: &PathBuf| {
            let fail = |source| StoreError::Read { path: path.clone(), offset: 0, source };
            let file = File::open(path).map_err(fail)?;
            let identity = Identity::of(&file.metadata().map_err(fail)?);
            #[allow(unsafe_code)]
            // SAFETY: the bytes are only read. A writer that changes the file meanwhile can make us compute nonsense or,
            // by shortening it, end this process by SIGBUS; a worker is a process of its own for this reason too.
            let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
            Ok((path.clone(), file, identity, map))
        };
        Ok(Self { files: paths.iter().map(open).collect::<Result<_, _>>()? })
    }
}

impl WeightStore for MappedStore {
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), StoreError> {
        let file = run.extent.file;
        let (path, file, identity, map) = self.files.get(file).ok_or(StoreError::NoFile { file })?;
        still_the_same(path, file, identity)?;
        copy_from(map, run, into);
        Ok(())
    }

    fn name(&self) -> &'static str {
        "mapped"
    }
}

/// Files that are in memory.
#[derive(Debug)]
pub struct MemoryStore {
    files: Vec<Vec<u8>>,
}

impl MemoryStore {
    /// Their positions are their numbers.
    pub fn new(files: Vec<Vec<u8>>) -> Self {
        Self { files }
    }
}

impl WeightStore for MemoryStore {
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), StoreError> {
        let file = run.extent.file;
        copy_from(self.files.get(file).ok_or(StoreError::NoFile { file })?, run, into);
        Ok(())
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}

fn copy_from(bytes: &[u8], run: &Run, into: &mut [u8]) {
    let start = usize::try_from(run.extent.offset).unwrap_or(usize::MAX).min(bytes.len());
    let there = &bytes[start..];
    let count = there.len().min(into.len());
    into[..count].copy_from_slice(&there[..count]);
}

fn still_the_same(path: &Path, file: &File, identity: &Identity) -> Result<(), StoreError> {
    match file.metadata() {
        Ok(about) if Identity::of(&about) == *identity => Ok(()),
        _ => Err(StoreError::Changed { path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
