//! The folder of bodies, results and uploaded files. A file is visible under its name only when it is whole and on the
//! disk; what a killed process left is removed at the next start.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model_boss_lease_store::{StateFileUse, open_state_file};
use nix::libc::O_NOFOLLOW;

/// The end of the name of a file that is not whole yet.
const DRAFT: &str = ".part";
/// The file with the name of this folder, by which records in Redis are its own.
const NAME: &str = "name";

/// The kinds of files, each in a folder of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeptKind {
    /// The body of a job's request.
    Body,
    /// The body of a job's answer.
    Result,
    /// An uploaded file, or one that a batch writes.
    Upload,
}

impl KeptKind {
    const ALL: [Self; 3] = [Self::Body, Self::Result, Self::Upload];

    const fn folder(self) -> &'static str {
        match self {
            Self::Body => "bodies",
            Self::Result => "results",
            Self::Upload => "files",
        }
    }
}

/// The folder of jobs in the state folder.
#[derive(Clone, Debug)]
pub struct JobFolder {
    path: PathBuf,
}

/// A file that is not whole yet. Dropping it removes it.
#[derive(Debug)]
pub struct DraftFile {
    file: File,
    draft: PathBuf,
    path: PathBuf,
    bytes: u64,
    is_done: bool,
}

impl JobFolder {
    /// Opens the folder, and creates it if it is absent.
    pub fn open(path: &Path) -> io::Result<Self> {
        let folder = Self::at(path);
        folder.create()?;
        Ok(folder)
    }

    /// The folder at a path, which may be absent yet.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Creates the folder if it is absent.
    pub fn create(&self) -> io::Result<()> {
        for kind in KeptKind::ALL {
            DirBuilder::new().recursive(true).mode(0o700).create(self.path.join(kind.folder()))?;
        }
        Ok(())
    }

    /// The name of this folder: random, and the same at each start.
    pub fn name(&self) -> io::Result<String> {
        let path = self.path.join(NAME);
        match fs::read_to_string(&path) {
            Ok(name) if is_plain(name.trim()) => return Ok(name.trim().to_owned()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).map_err(io::Error::other)?;
        let name: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
        model_boss_lease_store::replace_state_file(&path, name.as_bytes())?;
        Ok(name)
    }

    /// The path of a file beside the bodies and results.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of a file.
    pub fn path(&self, kind: KeptKind, name: &str) -> PathBuf {
        self.path.join(kind.folder()).join(name)
    }

    /// Begins a file. An earlier draft of the same name is replaced.
    pub fn draft(&self, kind: KeptKind, name: &str) -> io::Result<DraftFile> {
        if !is_plain(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("'{name}' is no name of a file here")));
        }
        let path = self.path(kind, name);
        let draft = self.path(kind, &format!("{name}{DRAFT}"));
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(O_NOFOLLOW).open(&draft)?;
        Ok(DraftFile { file, draft, path, bytes: 0, is_done: false })
    }

    /// Opens a whole file for reading.
    pub fn read(&self, kind: KeptKind, name: &str) -> io::Result<File> {
        open_state_file(&self.path(kind, name), StateFileUse::Read)
    }

    /// Opens a file that grows by whole lines, and is not visible before its record is kept.
    pub fn append(&self, kind: KeptKind, name: &str) -> io::Result<File> {
        open_state_file(&self.path(kind, name), StateFileUse::Update)
    }

    /// Removes a file; one that is absent is no error.
    pub fn remove(&self, kind: KeptKind, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path(kind, name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the names of new files durable.
    pub fn sync(&self, kind: KeptKind) -> io::Result<()> {
        File::open(self.path.join(kind.folder()))?.sync_all()
    }

    /// Removes every file that no record names, and returns their number.
    pub fn sweep(&self, kind: KeptKind, named: &HashSet<String>) -> io::Result<usize> {
        let mut removed = 0_usize;
        for entry in fs::read_dir(self.path.join(kind.folder()))? {
            let entry = entry?;
            let is_named = entry.file_name().to_str().is_some_and(|name| named.contains(name));
            if !is_named && entry.file_type()?.is_file() {
                fs::remove_file(entry.path())?;
                removed = removed.saturating_add(1);
            }
        }
        Ok(removed)
    }
}

impl DraftFile {
    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        Ok(())
    }

    /// The bytes so far.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives the file its name once it is on the disk, in place of an earlier one.
    pub fn finish(mut self) -> io::Result<u64> {
        self.file.sync_all()?;
        fs::rename(&self.draft, &self.path)?;
        self.is_done = true;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(self.bytes)
    }
}

impl Drop for DraftFile {
    fn drop(&mut self) {
        if !self.is_done {
            // A draft that stays is removed at the next start.
            let _ = fs::remove_file(&self.draft);
        }
    }
}

/// Whether a name is a plain one, which leads out of no folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 100
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_a_file_is_whole_or_absent_and_what_nobody_names_is_swept() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::open(&root.path().join("jobs")).unwrap();
        let mut draft = folder.draft(KeptKind::Body, "a").unwrap();
        draft.write(b"half").unwrap();
        assert!(folder.read(KeptKind::Body, "a").is_err(), "it is not whole");
        draft.write(b" and half").unwrap();
        assert_eq!(draft.finish().unwrap(), 13);
        drop(folder.draft(KeptKind::Body, "b").unwrap());
        // The draft of a killed process stays.
        std::mem::forget(folder.draft(KeptKind::Body, "c").unwrap());
        folder.draft(KeptKind::Body, "d").unwrap().finish().unwrap();
        assert_eq!(folder.sweep(KeptKind::Body, &HashSet::from(["a".to_owned()])).unwrap(), 2);
        assert_eq!(io::read_to_string(folder.read(KeptKind::Body, "a").unwrap()).unwrap(), "half and half");
        for name in ["../a", "", "a/b", "a.part"] {
            assert!(folder.draft(KeptKind::Body, name).is_err(), "{name}");
        }
        assert_eq!(folder.name().unwrap(), JobFolder::open(&root.path().join("jobs")).unwrap().name().unwrap());
    }
}
