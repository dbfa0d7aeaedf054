//! Files that one process at a time may lock. The kernel releases the lock when the process ends, however it ends.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use model_boss_lease::DeviceKey;
use nix::unistd::getuid;

use crate::StoreError;
use crate::state_file::{FileId, StateFileUse, open_state_file};

/// What a lock file says is no longer.
const LONGEST_LINE: usize = 4 << 10;

/// For whom something is locked.
#[derive(Clone, Debug)]
pub(crate) enum Claim {
    /// For this process alone, with what tells it apart.
    Alone(String),
    /// For every process that uses this ledger.
    Shared(String),
}

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
        let what = format!("the state folder {}", state_dir.display());
        let claim = Claim::Alone(format!("state folder {}", state_dir.display()));
        Self::take(&state_dir.join("lock"), &claim, what, "stop it, or give this one another state_dir")
    }

    /// Locks a device for this host's ledger: two ledgers never count one device twice.
    pub(crate) fn of_device(
        runtime_dir: &Path,
        device: &DeviceKey,
        name: &str,
        claim: &Claim,
    ) -> Result<Self, StoreError> {
        let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let file: String = device.as_str().chars().map(safe).collect();
        let path = runtime_dir.join(format!("device-{file}.lock"));
        let advice = "stop it, or use the same ledger: two would promise the same memory twice";
        Self::take(&path, claim, format!("device {name}"), advice)
    }

    fn take(path: &Path, claim: &Claim, what: String, advice: &'static str) -> Result<Self, StoreError> {
        let io = |act| move |source| StoreError::Io { act, path: path.to_owned(), source };
        let mut file = open_state_file(path, StateFileUse::Update).map_err(io("open"))?;
        let id = FileId::of(&file).map_err(io("inspect"))?;
        let locked = |locked: Result<(), TryLockError>| match locked {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(source)) => Err(io("lock")(source)),
        };
        let alone = locked(file.try_lock())?;
        if alone {
            write(&mut file, &claim.line()).map_err(io("write"))?;
        }
        let held = match claim {
            Claim::Alone(_) => alone,
            // Turning an exclusive lock into a shared one may let somebody in between: what the file says then counts.
            Claim::Shared(_) => locked(file.try_lock_shared())? && read(&mut file).map_err(io("read"))? == claim.line(),
        };
        if held {
            return Ok(Self { path: path.to_owned(), id, _file: file });
        }
        let holder = match read(&mut file) {
            Ok(line) if !line.trim().is_empty() => line.trim().to_owned(),
            _ => "another process".to_owned(),
        };
        Err(StoreError::InUse { what, holder, advice })
    }

    /// Whether the locked file is still the one that others would lock.
    pub(crate) fn is_in_place(&self) -> bool {
        self.id.is_at(&self.path)
    }
}

impl Claim {
    /// What the lock file says.
    fn line(&self) -> String {
        match self {
            Self::Alone(whose) => format!("process {} ({whose})\n", std::process::id()),
            Self::Shared(ledger) => format!("the {ledger}\n"),
        }
    }
}

/// Puts the line over what stands there. Nothing is cut off: an earlier, longer line ends in blanks.
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
