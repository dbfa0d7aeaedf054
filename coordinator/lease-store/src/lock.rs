//! Files that one process at a time may lock. The kernel releases the lock when the process ends, however it ends.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model_boss_lease::DeviceKey;
use nix::unistd::getuid;

use crate::StoreError;

/// A locked file; the lock ends with this value or with the process.
#[derive(Debug)]
pub(crate) struct LockFile {
    _file: File,
}

impl LockFile {
    /// Locks a state folder.
    pub(crate) fn of_state_dir(state_dir: &Path) -> Result<Self, StoreError> {
        let what = format!("the state folder {}", state_dir.display());
        Self::take(&state_dir.join("lock"), state_dir, what, "stop it, or give this one another state_dir")
    }

    /// Locks a device for this host: two state folders never count one device twice.
    pub(crate) fn of_device(
        runtime_dir: &Path,
        device: &DeviceKey,
        name: &str,
        state_dir: &Path,
    ) -> Result<Self, StoreError> {
        let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let file: String = device.as_str().chars().map(safe).collect();
        let path = runtime_dir.join(format!("device-{file}.lock"));
        Self::take(
            &path,
            state_dir,
            format!("device {name}"),
            "stop it: two ledgers would promise the same memory twice",
        )
    }

    fn take(path: &Path, state_dir: &Path, what: String, advice: &'static str) -> Result<Self, StoreError> {
        let io = |act| move |source| StoreError::Io { act, path: path.to_owned(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(io("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let read = file.read_to_string(&mut holder);
                let holder = match read {
                    Ok(_) if !holder.trim().is_empty() => holder.trim().to_owned(),
                    _ => "another process".to_owned(),
                };
                return Err(StoreError::InUse { what, holder, advice });
            }
            Err(TryLockError::Error(source)) => return Err(io("lock")(source)),
        }
        let holder = format!("process {} (state folder {})\n", std::process::id(), state_dir.display());
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(holder.as_bytes()))
            .map_err(io("write"))?;
        Ok(Self { _file: file })
    }
}

/// Makes the folder if it is not there, for this user alone.
pub(crate) fn private_folder(path: &Path) -> Result<PathBuf, StoreError> {
    let io = |act| move |source| StoreError::Io { act, path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("create"))?;
    path.canonicalize().map_err(io("find"))
}

/// The same, and makes sure that it is this user's: it may lie below a folder in which everybody can create.
pub(crate) fn own_folder(path: &Path) -> Result<PathBuf, StoreError> {
    let path = private_folder(path)?;
    let owner =
        std::fs::metadata(&path).map_err(|source| StoreError::Io { act: "inspect", path: path.clone(), source })?.uid();
    if owner == getuid().as_raw() { Ok(path) } else { Err(StoreError::ForeignFolder(path)) }
}
