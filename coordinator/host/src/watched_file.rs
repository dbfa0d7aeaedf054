//! A file that users edit while the process runs. A change counts after two equal reads, as for manifests
//! (docs/adr/0005), since a half-written file is seen only once. The small file is read each time, so that no time
//! stamp and no kind of file system can hide an edit.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::plain_file::read_plain_file;

/// The interval between reads.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A file, and the versions of it that were seen.
#[derive(Debug)]
pub struct WatchedFile {
    path: PathBuf,
    /// The largest file in bytes.
    largest: u64,
    looks: Mutex<Looks>,
}

/// One version of the file.
#[derive(Debug)]
pub enum FileVersion {
    /// The file's bytes: one more than the largest file has where it is longer.
    Content(Vec<u8>),
    /// There is no file.
    Missing,
    /// The file cannot be read.
    Unreadable(io::Error),
}

#[derive(Debug, Default)]
struct Looks {
    /// The version that was seen last and not adopted yet.
    candidate: Option<VersionMark>,
    /// The version that was adopted last.
    adopted: Option<VersionMark>,
}

/// The identity of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VersionMark {
    Content(u64),
    Missing,
    Unreadable(Option<i32>),
}

impl WatchedFile {
    /// The file at `path`, which may not exist.
    pub fn new(path: &Path, largest: u64) -> Self {
        Self { path: path.to_owned(), largest, looks: Mutex::default() }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adopts the present version, whatever it is.
    pub fn adopt(&self) -> FileVersion {
        let version = self.read();
        self.looks().adopted = Some(version.mark());
        version
    }

    /// Reads the file once. A version other than the adopted one is adopted when the read before was equal.
    pub fn look(&self) -> Option<FileVersion> {
        let version = self.read();
        let mark = version.mark();
        let mut looks = self.looks();
        if looks.adopted == Some(mark) {
            looks.candidate = None;
            None
        } else if looks.candidate.replace(mark) == Some(mark) {
            *looks = Looks { candidate: None, adopted: Some(mark) };
            Some(version)
        } else {
            None
        }
    }

    fn read(&self) -> FileVersion {
        match read_plain_file(&self.path, self.largest) {
            Ok(bytes) => FileVersion::Content(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => FileVersion::Missing,
            Err(error) => FileVersion::Unreadable(error),
        }
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileVersion {
    fn mark(&self) -> VersionMark {
        match self {
            Self::Content(bytes) => {
                let mut hasher = DefaultHasher::new();
                hasher.write(bytes);
                VersionMark::Content(hasher.finish())
            }
            Self::Missing => VersionMark::Missing,
            Self::Unreadable(error) => VersionMark::Unreadable(error.raw_os_error()),
        }
    }
}

/// Calls `look` again and again, on a thread that may block, as long as the process runs.
pub async fn follow(look: impl Fn() + Send + Clone + 'static) {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        // An error means that the look panicked and has no result.
        let _ = spawn_blocking(look.clone()).await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_version_counts_after_two_equal_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = WatchedFile::new(&path, 10);
        let look = || {
            file.look().map(|version| match version {
                FileVersion::Content(bytes) => String::from_utf8(bytes).unwrap(),
                FileVersion::Missing => "missing".to_owned(),
                FileVersion::Unreadable(error) => error.to_string(),
            })
        };
        assert!(matches!(file.adopt(), FileVersion::Missing));
        assert_eq!(look(), None);
        fs::write(&path, "half").unwrap();
        assert_eq!(look(), None);
        fs::write(&path, "whole").unwrap();
        assert_eq!([look(), look(), look()], [None, Some("whole".to_owned()), None]);
        fs::remove_file(&path).unwrap();
        assert_eq!(look(), None);
        fs::write(&path, "whole").unwrap();
        assert_eq!([look(), look()], [None, None], "nothing has changed");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!([look(), look()], [None, Some("it is not a file".to_owned())]);
    }
}
