//! A file as the operating system reports it: whether it has changed, its file system, and the pages to drop from the
//! page cache.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::error::WeightStoreError;

/// Bytes that pass through the page cache before it is asked to drop them.
pub(super) const SLICE: usize = 4 << 20;

/// The identity of a file, to see whether it is still the one that was opened, as far as the system shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) len: u64,
    modified: (i64, i64),
}

impl Identity {
    pub(super) fn of(about: &Metadata) -> Self {
        Self { len: about.len(), modified: (about.mtime(), about.mtime_nsec()) }
    }
}

pub(super) fn still_the_same(path: &Path, file: &File, identity: &Identity) -> Result<(), WeightStoreError> {
    match file.metadata() {
        Ok(about) if Identity::of(&about) == *identity => Ok(()),
        _ => Err(WeightStoreError::Changed { path: path.to_owned() }),
    }
}

/// Turns read-ahead off: pages that the kernel read by itself would be left in its cache.
pub(super) fn no_more_than_asked(file: &File) {
    #[cfg(target_os = "linux")]
    {
        use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
        let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// The page cache must not become a second copy of the model.
pub(super) fn forget(file: &File, offset: u64, len: usize) {
    #[cfg(target_os = "linux")]
    if let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) {
        use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
        // The call is only advice. Where it has no effect, the kernel drops the pages when it needs memory.
        let _ = posix_fadvise(file, offset, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, len);
}

/// Opens a file for reads that bypass the page cache.
#[cfg(target_os = "linux")]
pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).custom_flags(nix::fcntl::OFlag::O_DIRECT.bits()).open(path)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn open_direct(_path: &Path) -> io::Result<File> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileSystem {
    pub(super) name: &'static str,
    /// Whether files are memory. Then they can only be read through the page cache, which takes no additional memory.
    pub(super) is_memory: bool,
}

/// The file system of a file.
pub(super) fn file_system(file: &File) -> FileSystem {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if let Ok(about) = nix::sys::statfs::fstatfs(file) {
        use nix::sys::statfs;
        let known = [
            (statfs::EXT4_SUPER_MAGIC, "ext4"),
            (statfs::XFS_SUPER_MAGIC, "xfs"),
            (statfs::BTRFS_SUPER_MAGIC, "btrfs"),
            (statfs::F2FS_SUPER_MAGIC, "f2fs"),
            (statfs::OVERLAYFS_SUPER_MAGIC, "overlay"),
            (statfs::NFS_SUPER_MAGIC, "nfs"),
            (statfs::SMB_SUPER_MAGIC, "smb"),
            (statfs::FUSE_SUPER_MAGIC, "fuse"),
            (statfs::TMPFS_MAGIC, "tmpfs"),
            (statfs::HUGETLBFS_MAGIC, "hugetlbfs"),
        ];
        let kind = about.filesystem_type();
        if let Some((_, name)) = known.into_iter().find(|(magic, _)| *magic == kind) {
            return FileSystem { name, is_memory: kind == statfs::TMPFS_MAGIC || kind == statfs::HUGETLBFS_MAGIC };
        }
    }
    let _ = file;
    FileSystem { name: "its file system", is_memory: false }
}
