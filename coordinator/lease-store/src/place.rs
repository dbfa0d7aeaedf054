//! Shared folders, in which processes of one host find each other's files across users and sessions. The content of the
//! files is not interpreted here.
//!
//! Other users are not trusted. A file is evidence about its owner only. It is opened without following a link or
//! waiting, and is never written by another user. Files placed there in advance do not interfere, because every name
//! ends in random digits.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::unistd::{AccessFlags, access, getuid};

use crate::StoreError;
use crate::lock::own_folder;
use crate::state_file::FileId;
use crate::store::Etag;

/// Folders in which every user of a Linux host may create files, and which are empty after a boot. A service may see
/// one of them read-only, so each usable one is used.
const HOST_FOLDERS: [&str; 2] = ["/dev/shm", "/run/lock"];
/// The folder for systems that have neither.
const LAST_FOLDER: &str = "/tmp";
/// The mode of a folder in which all users may create files, and only a file's owner may remove it.
const STICKY: u32 = 0o1777;
/// The longest file that is read here.
const LONGEST: u64 = 64 << 10;

/// The folders in use.
#[derive(Clone, Debug)]
pub(crate) struct HostFolders {
    /// The folders where other processes' files are searched.
    read: Vec<PathBuf>,
    /// The folders where this process publishes its files.
    written: Vec<PathBuf>,
    /// The reason why other processes may not be found.
    pub(crate) warning: Option<String>,
}

/// A file of any process, as found.
pub(crate) struct FoundFile {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) id: FileId,
    /// The user that owns the file.
    pub(crate) uid: u32,
    pub(crate) text: String,
}

/// A file of this process.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) path: PathBuf,
    pub(crate) id: FileId,
    pub(crate) file: File,
}

impl HostFolders {
    /// The folders to use. `chosen` is a folder for this user alone. Without it they are the folders of the host.
    /// Where none of these can be used, it is a folder of this user with a warning.
    pub(crate) fn of(chosen: Option<&Path>) -> Result<Self, StoreError> {
        if let Some(folder) = chosen {
            return Ok(Self::own(own_folder(folder)?, None));
        }
        let host: Vec<PathBuf> = HOST_FOLDERS.iter().map(PathBuf::from).filter(|folder| is_for_all(folder)).collect();
        let read = if host.is_empty() { vec![PathBuf::from(LAST_FOLDER)] } else { host };
        let written: Vec<_> = read.iter().filter(|folder| is_for_all(folder) && is_writable(folder)).cloned().collect();
        if !written.is_empty() {
            return Ok(Self { read, written, warning: None });
        }
        let folder = own_folder(&users_folder())?;
        let warning = format!(
            "none of {}, {LAST_FOLDER} can be used by every user of this machine: a coordinator of another user or session may \
             count the same memory; locks are in {}",
            HOST_FOLDERS.join(", "),
            folder.display()
        );
        let mut place = Self::own(folder, Some(warning));
        place.read.extend(read);
        Ok(place)
    }

    fn own(folder: PathBuf, warning: Option<String>) -> Self {
        Self { read: vec![folder.clone()], written: vec![folder], warning }
    }

    /// Every file whose name begins with `prefix`. A file that cannot be opened, or is no regular file, does not
    /// count.
    pub(crate) fn find(&self, prefix: &str) -> Vec<FoundFile> {
        let entries = self.read.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        entries
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)))
            .filter_map(|entry| found(entry.path()).ok())
            .collect()
    }

    /// Creates a new file in each folder: `prepare` fills it before another process may open it. The call fails only if
    /// no folder accepts the file.
    pub(crate) fn publish(
        &self,
        prefix: &str,
        prepare: impl Fn(&File) -> io::Result<()>,
    ) -> Result<Vec<Published>, StoreError> {
        let (mut published, mut failed) = (Vec::new(), None);
        for folder in &self.written {
            let path = folder.join(format!("{prefix}{:016x}", Etag::random()?.0 >> 64));
            match create(&path, &prepare) {
                Ok(file) => published.push(file),
                Err(source) => failed = Some(StoreError::Io { act: "write", path, source }),
            }
        }
        match failed {
            Some(error) if published.is_empty() => Err(error),
            _ => Ok(published),
        }
    }
}

impl Published {
    /// Whether the file still exists, so that other processes find it.
    pub(crate) fn is_in_place(&self) -> bool {
        self.id.is_at(&self.path)
    }

    /// Removes the file.
    pub(crate) fn remove(&self) {
        if self.is_in_place() {
            // The file is this process's own, and outdated.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn create(path: &Path, prepare: &impl Fn(&File) -> io::Result<()>) -> io::Result<Published> {
    // O_EXCL follows no link, and never opens a file that another process created.
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let id = FileId::of(&file)?;
    let prepared = prepare(&file).and_then(|()| file.set_permissions(fs::Permissions::from_mode(0o644)));
    let published = Published { path: path.to_owned(), id, file };
    prepared.inspect_err(|_| published.remove()).map(|()| published)
}

fn found(path: PathBuf) -> io::Result<FoundFile> {
    let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(&path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.len() > LONGEST {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut text = String::new();
    (&file).take(LONGEST).read_to_string(&mut text)?;
    Ok(FoundFile { path, id: FileId::of(&file)?, uid: about.uid(), file, text })
}

/// Whether every user may create files in the folder and none can remove another's.
fn is_for_all(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|about| {
        about.is_dir() && about.permissions().mode() & STICKY == STICKY && ROOT_SEEN_AS.contains(&about.uid())
    })
}

/// Root, and the number that root has inside a user namespace that does not map it.
const ROOT_SEEN_AS: [u32; 2] = [0, 65_534];

fn is_writable(folder: &Path) -> bool {
    access(folder, AccessFlags::W_OK).is_ok()
}

/// `$XDG_RUNTIME_DIR/model-boss`, else a folder of this user below the folder for temporary files.
fn users_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("model-boss"),
        _ => std::env::temp_dir().join(format!("model-boss-{}", getuid())),
    }
}
