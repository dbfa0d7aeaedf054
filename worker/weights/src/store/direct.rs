//! Positioned reads past the page cache: the disk writes into the buffer, and the file uses no other memory. A file
//! system without such reads gets ordinary ones, after each of which their pages are dropped from the cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

use super::buffer::{HostBuffer, PAGE};
use super::error::{WeightStoreError, unreadable};
use super::read::WeightStore;
use super::runs::Run;
use super::system::{
    FileSystem, Identity, SLICE, file_system, forget, no_more_than_asked, open_direct, still_the_same,
};

/// Files that are read from disk each time.
#[derive(Debug)]
pub struct DirectStore {
    files: Vec<DirectFile>,
}

#[derive(Debug)]
struct DirectFile {
    path: PathBuf,
    system: FileSystem,
    /// The file for reads through the page cache.
    plain: File,
    /// The file for direct reads, or the reason why the file system has none.
    direct: Result<File, String>,
    /// Whether a direct read was refused later: then none is tried again.
    refused: AtomicBool,
    identity: Identity,
}

impl DirectStore {
    /// Opens the files, whose positions are their numbers, and tries a direct read of each.
    pub fn open(paths: &[PathBuf]) -> Result<Self, WeightStoreError> {
        Ok(Self { files: paths.iter().map(|path| DirectFile::open(path)).collect::<Result<_, _>>()? })
    }

    /// Reads through the page cache from now on, as where direct reads are refused.
    #[cfg(test)]
    pub(super) fn without_direct(self) -> Self {
        self.files.iter().for_each(|file| file.refused.store(true, Ordering::Relaxed));
        self
    }

    /// Returns the store itself if every file can be read past the page cache.
    pub(super) fn or_refuse(self) -> Result<Self, WeightStoreError> {
        let refused = self.files.iter().find_map(|file| file.why_not_direct().map(|why| (file.path.clone(), why)));
        refused.map_or(Ok(self), |(path, why)| Err(WeightStoreError::NotDirect { path, why }))
    }
}

impl WeightStore for DirectStore {
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), WeightStoreError> {
        let file = run.extent.file;
        let file = self.files.get(file).ok_or(WeightStoreError::NoFile { file })?;
        let result = file.read(run.extent.offset, into);
        // A file that was cut meanwhile gives a short read: a change of the file is the better message.
        still_the_same(&file.path, &file.plain, &file.identity)?;
        result.map_err(unreadable(&file.path, run.extent.offset))
    }

    fn describe(&self) -> String {
        match self.files.iter().find_map(DirectFile::why_not_direct) {
            Some(why) => format!("through the page cache, which forgets ({why})"),
            None => format!("direct ({})", self.files.first().map_or("no file", |file| file.system.name)),
        }
    }
}

impl DirectFile {
    fn open(path: &Path) -> Result<Self, WeightStoreError> {
        let plain = File::open(path).map_err(unreadable(path, 0))?;
        let identity = Identity::of(&plain.metadata().map_err(unreadable(path, 0))?);
        no_more_than_asked(&plain);
        let system = file_system(&plain);
        let direct = if system.is_memory {
            Err(format!("{} is memory", system.name))
        } else {
            open_direct(path)
                .and_then(try_direct)
                .map_err(|error| format!("{} refuses direct reads: {error}", system.name))
        };
        Ok(Self { path: path.to_owned(), system, plain, direct, refused: AtomicBool::new(false), identity })
    }

    fn why_not_direct(&self) -> Option<String> {
        match &self.direct {
            Ok(_) if self.refused.load(Ordering::Relaxed) => {
                Some(format!("{} refused a direct read", self.system.name))
            }
            Ok(_) => None,
            Err(why) => Some(why.clone()),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let wanted = usize::try_from(self.identity.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let aligned = offset.is_multiple_of(PAGE as u64)
            && into.len().is_multiple_of(PAGE)
            && into.as_ptr().addr().is_multiple_of(PAGE);
        if let Some(direct) = self.direct.as_ref().ok().filter(|_| aligned && !self.refused.load(Ordering::Relaxed)) {
            match read_pages(direct, offset, into, wanted) {
                Err(error) if is_refusal(&error) => {
                    self.refused.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        let mut at = offset;
        for slice in into[..wanted].chunks_mut(SLICE) {
            self.plain.read_exact_at(slice, at)?;
            if !self.system.is_memory {
                forget(&self.plain, at, slice.len().next_multiple_of(PAGE));
            }
            at += slice.len() as u64;
        }
        Ok(())
    }
}

/// Whether the file system does not read past the cache after all, or cannot write into a driver's memory.
fn is_refusal(error: &io::Error) -> bool {
    [Errno::EINVAL, Errno::EFAULT].iter().any(|refusal| error.raw_os_error() == Some(*refusal as i32))
}

/// Tries a direct read, because some file systems open a file for direct reads and refuse the first read.
fn try_direct(file: File) -> io::Result<File> {
    let mut page = HostBuffer::new(PAGE)?;
    file.read_at(&mut page, 0)?;
    Ok(file)
}

/// Reads until the buffer has `wanted` bytes. A read may end early; the next begins at the last whole page.
fn read_pages(file: &File, offset: u64, into: &mut [u8], wanted: usize) -> io::Result<()> {
    let mut done = 0;
    while done < wanted {
        let from = done / PAGE * PAGE;
        let count = match file.read_at(&mut into[from..], offset + from as u64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if from + count <= done {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        done = from + count;
    }
    Ok(())
}
