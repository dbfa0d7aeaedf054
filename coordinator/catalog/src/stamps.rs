//! Manifests that were not edited since they were last read, by their files' facts. Reading one costs several times as
//! much as asking for these.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The age from which a file's times tell one edit from the next. Some file systems keep times in steps of two seconds.
pub(super) const SETTLED: Duration = Duration::from_secs(2);

/// Facts about a file that change with its text. The time of the last change of its facts cannot be set by programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ManifestStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds since 1970.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl ManifestStamp {
    /// The stamp of a file. It belongs to a text that is read after it.
    pub(super) fn of(about: &Metadata) -> Self {
        Self {
            device: about.dev(),
            inode: about.ino(),
            bytes: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }

    /// Whether every later edit has another stamp.
    fn has_settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let newest = self.modified.0.max(self.changed.0);
        u64::try_from(newest).is_ok_and(|newest| newest + SETTLED.as_secs() < now)
    }
}

/// The stamps of manifests that were read and could be used.
#[derive(Debug, Default)]
pub(super) struct ReadStamps(HashMap<PathBuf, ManifestStamp>);

impl ReadStamps {
    /// Keeps the stamp that a file had before it was read.
    pub(super) fn keep(&mut self, file: &Path, stamp: ManifestStamp) {
        if stamp.has_settled(SystemTime::now()) {
            self.0.insert(file.to_owned(), stamp);
        } else {
            self.0.remove(file);
        }
    }

    /// Whether the file is as it was when it was read.
    pub(super) fn agrees(&self, file: &Path) -> bool {
        let Some(kept) = self.0.get(file) else { return false };
        std::fs::metadata(file).is_ok_and(|about| ManifestStamp::of(&about) == *kept)
    }

    /// Drops the stamps of all other files.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&Path) -> bool) {
        self.0.retain(|file, _| is_wanted(file));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The stamp of a file that was last edited long ago.
    fn old(file: &Path) -> ManifestStamp {
        let stamp = ManifestStamp::of(&fs::metadata(file).unwrap());
        ManifestStamp { modified: (1, 0), changed: (1, 0), ..stamp }
    }

    #[test]
    fn a_file_that_was_edited_a_moment_ago_is_read_again() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a.toml");
        fs::write(&file, "one").unwrap();
        let mut stamps = ReadStamps::default();
        stamps.keep(&file, ManifestStamp::of(&fs::metadata(&file).unwrap()));
        assert!(!stamps.agrees(&file), "the next edit may have the same time");
        assert!(old(&file).has_settled(SystemTime::now()));
        let future = ManifestStamp { modified: (i64::MAX, 0), ..old(&file) };
        assert!(!future.has_settled(SystemTime::now()));
        let at = |second: u64| UNIX_EPOCH + Duration::from_secs(second);
        assert!(!old(&file).has_settled(at(3)) && old(&file).has_settled(at(4)));
    }

    #[test]
    fn a_file_agrees_until_it_is_edited_replaced_or_gone() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a.toml");
        fs::write(&file, "one").unwrap();
        let kept = || {
            let mut stamps = ReadStamps::default();
            stamps.0.insert(file.clone(), ManifestStamp::of(&fs::metadata(&file).unwrap()));
            stamps
        };
        let stamps = kept();
        assert!(stamps.agrees(&file));
        fs::write(&file, "longer").unwrap();
        assert!(!stamps.agrees(&file));
        let stamps = kept();
        fs::write(root.path().join("b.toml"), "longer").unwrap();
        fs::rename(root.path().join("b.toml"), &file).unwrap();
        assert!(!stamps.agrees(&file), "another file of the same length");
        let mut stamps = kept();
        stamps.retain(|file| file.ends_with("a.toml"));
        assert!(stamps.agrees(&file));
        fs::remove_file(&file).unwrap();
        assert!(!stamps.agrees(&file));
        stamps.retain(|_| false);
        assert!(stamps.0.is_empty());
    }
}
