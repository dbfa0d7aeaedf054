//! Positioned reads past the page cache: the disk writes straight into the buffer, and the file takes no memory beside
//! it. Where a file system cannot do that, ordinary reads, after each of which the cache is asked to forget.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::buffer::PAGE;
use super::{Identity, Run, StoreError, WeightStore, still_the_same};

/// Files that are read from disk each time.
#[derive(Debug)]
pub struct DirectStore {
    files: Vec<Opened>,
}

#[derive(Debug)]
struct Opened {
    path: PathBuf,
    /// For reads through the cache.
    plain: File,
    /// For reads past it, where the file system has them.
    direct: Option<File>,
    /// Whether a direct read was refused: then none is tried again.
    refused: AtomicBool,
    identity: Identity,
}

impl DirectStore {
    /// Opens the files, whose positions are their numbers.
    pub fn open(paths: &[PathBuf]) -> Result<Self, StoreError> {
        Ok(Self { files: paths.iter().map(|path| Opened::open(path)).collect::<Result<_, _>>()? })
    }

    /// Whether every file so far was read past the page cache.
    pub fn is_direct(&self) -> bool {
        self.files.iter().all(|file| file.direct.is_some() && !file.refused.load(Ordering::Relaxed))
    }
}

impl WeightStore for DirectStore {
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), StoreError> {
        let file = run.extent.file;
        let file = self.files.get(file).ok_or(StoreError::NoFile { file })?;
        let result = file.read(run.extent.offset, into);
        // A file that was cut meanwhile gives a short read: what happened to it says more.
        still_the_same(&file.path, &file.plain, &file.identity)?;
        result.map_err(|source| StoreError::Read { path: file.path.clone(), offset: run.extent.offset, source })
    }

    fn name(&self) -> &'static str {
        if self.is_direct() { "direct" } else { "buffered" }
    }
}

impl Opened {
    fn open(path: &Path) -> Result<Self, StoreError> {
        let fail = |source| StoreError::Read { path: path.to_owned(), offset: 0, source };
        let plain = File::open(path).map_err(fail)?;
        let identity = Identity::of(&plain.metadata().map_err(fail)?);
        let direct = open_direct(path).ok();
        Ok(Self { path: path.to_owned(), plain, direct, refused: AtomicBool::new(false), identity })
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let wanted = usize::try_from(self.identity.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let aligned = offset.is_multiple_of(PAGE as u64)
            && into.len().is_multiple_of(PAGE)
            && into.as_ptr().addr().is_multiple_of(PAGE);
        if let Some(direct) = self.direct.as_ref().filter(|_| aligned && !self.refused.load(Ordering::Relaxed)) {
            match read_pages(direct, offset, into, wanted) {
                Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => {
                    self.refused.store(true, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        self.plain.read_exact_at(&mut into[..wanted], offset)?;
        self.forget(offset, wanted);
        Ok(())
    }

    /// The page cache must not become a second copy of the model.
    fn forget(&self, offset: u64, len: usize) {
        #[cfg(target_os = "linux")]
        if let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) {
            use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
            // Advice: where it is not taken, the kernel forgets when it has to.
            let _ = posix_fadvise(&self.plain, offset, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, len);
    }
}

#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlag::O_DIRECT.bits()).open(path)
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_path: &Path) -> io::Result<File> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Reads until `wanted` bytes are there. A read may end early; the next begins at the last whole page.
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
