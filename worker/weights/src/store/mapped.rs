//! A store of mapped files, which are copied piece by piece. Copied pages are unmapped and dropped from the page cache.
//! It is for file systems on which positioned reads are slow or wrong.

use std::fs::File;
use std::path::PathBuf;

use memmap2::{Advice, Mmap};

use super::error::{WeightStoreError, unreadable};
use super::read::WeightStore;
use super::runs::Run;
use super::system::{Identity, SLICE, file_system, forget, still_the_same};

/// Files as the kernel maps them.
#[derive(Debug)]
pub struct MappedStore {
    files: Vec<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    path: PathBuf,
    file: File,
    identity: Identity,
    map: Mmap,
    is_memory: bool,
}

impl MappedStore {
    /// Maps the files, whose positions are their numbers.
    pub fn open(paths: &[PathBuf]) -> Result<Self, WeightStoreError> {
        let open = |path: &PathBuf| {
            let file = File::open(path).map_err(unreadable(path, 0))?;
            let identity = Identity::of(&file.metadata().map_err(unreadable(path, 0))?);
            #[allow(unsafe_code)]
            // SAFETY: the bytes are only read. A writer that changes the file meanwhile can cause wrong results, or end
            // this process by SIGBUS if it shortens the file. This is one reason why a worker is a process of its own.
            let map = unsafe { Mmap::map(&file) }.map_err(unreadable(path, 0))?;
            // Reads are requested slice by slice. Pages that the kernel reads ahead of a slice would stay in its cache,
            // and this advice prevents most of that. An error is ignored.
            let _ = map.advise(Advice::Random);
            let is_memory = file_system(&file).is_memory;
            Ok(Mapped { path: path.clone(), file, identity, map, is_memory })
        };
        Ok(Self { files: paths.iter().map(open).collect::<Result<_, _>>()? })
    }
}

impl WeightStore for MappedStore {
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), WeightStoreError> {
        let file = run.extent.file;
        let file = self.files.get(file).ok_or(WeightStoreError::NoFile { file })?;
        still_the_same(&file.path, &file.file, &file.identity)?;
        let start = usize::try_from(run.extent.offset).unwrap_or(usize::MAX).min(file.map.len());
        let mut at = start;
        for (into, bytes) in into.chunks_mut(SLICE).zip(file.map[start..].chunks(SLICE)) {
            let len = into.len().min(bytes.len());
            let _ = file.map.advise_range(Advice::WillNeed, at, len);
            into[..len].copy_from_slice(&bytes[..len]);
            file.let_go(at, len);
            at += len;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        "mapped".to_owned()
    }
}

impl Mapped {
    /// Unmaps pages that were copied. Mapped pages count as in use, so the page cache can drop them only afterwards.
    fn let_go(&self, offset: usize, len: usize) {
        if self.is_memory || len == 0 {
            return;
        }
        #[allow(unsafe_code)]
        // SAFETY: the map is read-only and of a file, so dropped pages are read again with the same bytes.
        let given_back = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len) };
        if given_back.is_ok() {
            forget(&self.file, offset as u64, len.next_multiple_of(super::PAGE));
        }
    }
}
