//! A file that is being downloaded: its bytes, and a journal of the ranges that came. Several connections write into it
//! at the same time, so its length says nothing.
//!
//! The journal is written each second, after the bytes that it lists are on the disk. A process that is killed loses
//! that second, and a machine that loses its power no more. The names differ from those of Hugging Face's tools, which
//! take a part's length for its progress.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ranges::ByteRanges;

/// The ending of the part, behind the blob's name.
const PART: &str = "model-boss.incomplete";
const JOURNAL: &str = "model-boss.json";
/// The bytes of a block in the system's count of a file's blocks.
const BLOCK: u64 = 512;

/// A part, its journal, and the plan of the ranges to fetch.
pub(crate) struct PartFile {
    path: PathBuf,
    journal: PathBuf,
    file: File,
    size: u64,
    have: ByteRanges,
    /// Missing ranges that no connection fetches.
    open: ByteRanges,
    is_saved: bool,
}

#[derive(Serialize, Deserialize)]
struct Journal {
    size: u64,
    have: Vec<(u64, u64)>,
}

/// The paths of a blob's part and of its journal.
fn beside(blob: &Path) -> (PathBuf, PathBuf) {
    let with = |ending: &str| {
        let name = blob.file_name().unwrap_or_default().to_string_lossy();
        blob.with_file_name(format!("{name}.{ending}"))
    };
    (with(PART), with(JOURNAL))
}

/// The bytes of the disk that a blob's part has already.
pub(crate) fn bytes_on_disk(blob: &Path) -> u64 {
    fs::metadata(beside(blob).0).map_or(0, |about| about.blocks().saturating_mul(BLOCK))
}

/// Removes a blob's part and its journal; returns the bytes of the disk that this frees.
pub(crate) fn remove(blob: &Path) -> io::Result<u64> {
    let (part, journal) = beside(blob);
    let bytes = bytes_on_disk(blob);
    for path in [journal, part] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(bytes)
}

impl PartFile {
    /// Opens the part of a blob of this size, with the ranges that an earlier process fetched.
    pub(crate) fn open(blob: &Path, size: u64) -> io::Result<Self> {
        let (path, journal) = beside(blob);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        let known = fs::read(&journal).ok().and_then(|text| serde_json::from_slice::<Journal>(&text).ok());
        let length = file.metadata()?.len();
        let have = match known {
            Some(known) if known.size == size => {
                let within = |(start, end): &(u64, u64)| start < end && *end <= size.min(length);
                ByteRanges::of(known.have.into_iter().filter(within).map(|(start, end)| start..end))
            }
            _ => ByteRanges::default(),
        };
        let open = have.missing(size);
        Ok(Self { path, journal, file, size, have, open, is_saved: true })
    }

    /// The bytes that are there.
    pub(crate) fn count(&self) -> u64 {
        self.have.count()
    }

    /// The next range to fetch, at most `most` bytes. It is not given to another connection until it is given back.
    pub(crate) fn take(&mut self, most: u64) -> Option<Range<u64>> {
        self.open.take_first(most)
    }

    /// Gives back the rest of a range that could not be fetched.
    pub(crate) fn give_back(&mut self, range: Range<u64>) {
        self.open.insert(range);
    }

    /// Writes bytes at their place.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)?;
        self.have.insert(at..at.saturating_add(bytes.len() as u64));
        self.is_saved = false;
        Ok(())
    }

    /// Forgets all bytes; returns their number.
    pub(crate) fn reset(&mut self) -> io::Result<u64> {
        let lost = self.have.count();
        (self.have, self.is_saved) = (ByteRanges::default(), false);
        self.open = self.have.missing(self.size);
        self.save()?;
        self.file.set_len(0)?;
        Ok(lost)
    }

    /// Writes the journal.
    pub(crate) fn save(&mut self) -> io::Result<()> {
        if self.is_saved {
            return Ok(());
        }
        self.file.sync_data()?;
        let text = serde_json::to_vec(&Journal { size: self.size, have: self.have.pairs() })?;
        let next = self.journal.with_extension("json.next");
        fs::write(&next, text)?;
        fs::rename(&next, &self.journal)?;
        self.is_saved = true;
        Ok(())
    }

    /// The path of the part.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the whole part its name as a blob.
    pub(crate) fn finish(&self, blob: &Path) -> io::Result<()> {
        self.file.set_len(self.size)?;
        self.file.sync_all()?;
        fs::rename(&self.path, blob)?;
        if let Some(folder) = blob.parent() {
            File::open(folder)?.sync_all()?;
        }
        match fs::remove_file(&self.journal) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_6_a_part_continues_where_its_journal_ends() {
        let folder = tempfile::tempdir().unwrap();
        let blob = folder.path().join("abc");
        let mut part = PartFile::open(&blob, 10).unwrap();
        assert_eq!(part.take(4), Some(0..4));
        assert_eq!(part.take(4), Some(4..8));
        part.write(4, b"4567").unwrap();
        part.give_back(0..4);
        part.save().unwrap();
        part.write(8, b"8").unwrap();
        drop(part);
        let mut part = PartFile::open(&blob, 10).unwrap();
        assert_eq!((part.count(), part.take(99), part.take(99), part.take(99)), (4, Some(0..4), Some(8..10), None));
        part.write(0, b"0123").unwrap();
        part.write(8, b"89").unwrap();
        assert!(part.count() == 10 && !blob.exists());
        part.finish(&blob).unwrap();
        assert_eq!(fs::read(&blob).unwrap(), b"0123456789");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no part and no journal is left");
    }

    #[test]
    fn op_6_a_journal_that_does_not_fit_its_part_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let blob = folder.path().join("abc");
        let journal = |text: &str| fs::write(beside(&blob).1, text).unwrap();
        fs::write(beside(&blob).0, b"0123").unwrap();
        for (text, count) in [
            (r#"{"size":10,"have":[[0,3]]}"#, 3),
            (r#"{"size":10,"have":[[0,9]]}"#, 0),
            (r#"{"size":11,"have":[[0,3]]}"#, 0),
            (r#"{"size":10,"have":[[3,1]]}"#, 0),
            ("torn", 0),
        ] {
            journal(text);
            assert_eq!(PartFile::open(&blob, 10).unwrap().count(), count, "{text}");
        }
        journal(r#"{"size":10,"have":[[0,3]]}"#);
        let mut part = PartFile::open(&blob, 10).unwrap();
        assert_eq!((part.reset().unwrap(), part.count(), part.take(99)), (3, 0, Some(0..10)));
        drop(part);
        assert_eq!(PartFile::open(&blob, 10).unwrap().count(), 0);
        remove(&blob).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
