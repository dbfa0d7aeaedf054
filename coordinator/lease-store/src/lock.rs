//! Files that one process at a time may lock. The kernel releases the lock when the process ends, however it ends.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::getuid;

use crate::StoreError;
use crate::state_file::{FileId, StateFileUse, open_state_file};

/// The longest line of a lock file.
const LONGEST_LINE: usize = 4 << 10;

/// A locked file; the lock ends with this value or with the process.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    id: FileId,
    _file: File,
}

impl LockFile {
    /// Locks a state folder.
    pub(crate) fn of_state_dir(state_dir: &Path) -> Result<Self, StoreError> {
        let path = state_dir.join("lock");
        let io = |act| {
            let path = path.clone();
            move |source| StoreError::Io { act, path, source }
        };
        let mut file = open_state_file(&path, StateFileUse::Update).map_err(io("open"))?;
        let id = FileId::of(&file).map_err(io("inspect"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(source)) => return Err(io("lock")(source)),
            Err(TryLockError::WouldBlock) => {
                let what = format!("the state folder {}", state_dir.display());
                let holder = match read(&mut file) {
                    Ok(line) if !line.trim().is_empty() => line.trim().to_owned(),
                    _ => "another process".to_owned(),
                };
                return Err(StoreError::InUse { what, holder, advice: "stop it, or give this one another state_dir" });
            }
        }
        let line = format!("process {} (state folder {})\n", std::process::id(), state_dir.display());
        write(&mut file, &line).map_err(io("write"))?;
        Ok(Self { path, id, _file: file })
    }

    /// Whether the locked file is still the one at its path, which other processes would lock.
    pub(crate) fn is_in_place(&self) -> bool {
        self.id.is_at(&self.path)
    }
}

/// Overwrites the line. The file is not truncated: the rest of a longer line is filled with blanks.
fn write(file: &mut File, line: &str) -> std::io::Result<()> {
    let before = usize::try_from(file.metadata()?.len()).unwrap_or(0).min(LONGEST_LINE);
    let line = format!("{line:before$}");
    file.rewind()?;
    file.write_all(line.as_bytes())
}

fn read(file: &mut File) -> std::io::Result<String> {
    let mut line = String::new();
    file.rewind()?;
    file.read_to_string(&mut line)?;
    Ok(line)
}

/// Creates the folder for this user alone, if it does not exist.
pub(crate) fn private_folder(path: &Path) -> Result<PathBuf, StoreError> {
    let io = |act| move |source| StoreError::Io { act, path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("create"))?;
    path.canonicalize().map_err(io("find"))
}

/// Creates the folder in the same way, and checks that this user owns it. It may be in a folder where every user can
/// create one.
pub(crate) fn own_folder(path: &Path) -> Result<PathBuf, StoreError> {
    let path = private_folder(path)?;
    let owner =
        std::fs::metadata(&path).map_err(|source| StoreError::Io { act: "inspect", path: path.clone(), source })?.uid();
    if owner == getuid().as_raw() { Ok(path) } else { Err(StoreError::ForeignFolder(path)) }
}
