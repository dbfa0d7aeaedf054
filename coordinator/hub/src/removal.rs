//! The removal of a model's files from the cache. Blobs that another snapshot uses stay. Of a file that another program
//! has, too, only the link in the cache is removed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use model_boss_protocol::{ByteCount, Source};
use model_boss_weights::PartName;

use super::cache::{CachedRepo, HubCache, remove_if_there};

/// The files of a model that can be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRemoval {
    /// The links in the snapshot.
    links: Vec<PathBuf>,
    /// The blobs that only those links use.
    blobs: BTreeSet<PathBuf>,
    /// The folder of the snapshot.
    snapshot: PathBuf,
    /// The folder with the repository's `refs`.
    refs: PathBuf,
}

/// The result of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedFiles {
    /// The files that are no longer visible.
    pub files: usize,
    /// The bytes of blobs that were deleted.
    pub bytes: ByteCount,
}

impl HubCache {
    /// The files of a model in the cache; `None` if it has none there.
    pub fn removal(&self, source: &Source) -> Option<FileRemoval> {
        let repo = self.repo(source.hf.as_ref()?);
        let path = self.path_of(source)?;
        let snapshot = repo.snapshots().into_iter().find(|snapshot| path.starts_with(snapshot))?;
        let commit = snapshot.file_name()?.to_string_lossy().into_owned();
        let files = repo.files(&commit);
        let links: Vec<PathBuf> =
            own_files(source.file.as_deref(), &files).into_iter().map(|file| snapshot.join(file)).collect();
        if links.is_empty() {
            return None;
        }
        let blobs = blobs_of(&repo, &links);
        Some(FileRemoval { links, blobs, refs: snapshot.parent()?.with_file_name("refs"), snapshot })
    }
}

/// The files of a snapshot that belong to a model: all of them for a folder; for a GGUF file its parts, and the
/// projectors if no other model of the snapshot may use them.
fn own_files<'a>(file: Option<&str>, files: &'a [String]) -> Vec<&'a String> {
    let Some(file) = file else { return files.iter().collect() };
    let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let folder = |path: &str| path.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
    let is_own = |path: &str| {
        let (own, other) = (name(file), name(path));
        let same = PartName::of(&own).zip(PartName::of(&other)).is_some_and(|(own, other)| own.same_model(&other));
        path == file || (same && folder(path) == folder(file))
    };
    let is_projector = |path: &str| name(path).to_ascii_lowercase().contains("mmproj");
    let is_gguf = |path: &str| path.to_ascii_lowercase().ends_with(".gguf");
    let others = files.iter().any(|path| is_gguf(path) && !is_own(path) && !is_projector(path));
    files.iter().filter(|path| is_own(path) || (is_projector(path) && !others)).collect()
}

/// The blobs behind links, without those that any other link of the repository uses.
fn blobs_of(repo: &CachedRepo, links: &[PathBuf]) -> BTreeSet<PathBuf> {
    let blobs = repo.blobs();
    // The blob may itself be a link to another program's file, which is not followed.
    let blob = |link: &Path| {
        let target = fs::read_link(link).ok()?;
        target.parent()?.ends_with("blobs").then(|| blobs.join(target.file_name().unwrap_or_default()))
    };
    let own: BTreeSet<&PathBuf> = links.iter().collect();
    let mut found: BTreeSet<PathBuf> = links.iter().filter_map(|link| blob(link)).collect();
    for snapshot in repo.snapshots() {
        let commit = snapshot.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for file in repo.files(&commit) {
            let link = snapshot.join(file);
            if !own.contains(&link)
                && let Some(used) = blob(&link)
            {
                found.remove(&used);
            }
        }
    }
    found
}

impl FileRemoval {
    /// The bytes that the removal frees, as far as no other name keeps them.
    pub fn bytes(&self) -> ByteCount {
        ByteCount(self.blobs.iter().map(|blob| own_bytes(blob)).sum())
    }

    /// Removes the links, the blobs, and what is empty then.
    pub fn carry_out(self) -> io::Result<RemovedFiles> {
        let removed = RemovedFiles { files: self.links.len(), bytes: self.bytes() };
        for path in self.links.iter().chain(&self.blobs) {
            remove_if_there(path)?;
        }
        for link in &self.links {
            let folders = link.ancestors().skip(1).take_while(|folder| folder.starts_with(&self.snapshot));
            for folder in folders {
                // A folder with other files stays.
                if fs::remove_dir(folder).is_err() {
                    break;
                }
            }
        }
        if !self.snapshot.exists() {
            let commit = self.snapshot.file_name().unwrap_or_default().to_string_lossy().into_owned();
            remove_references(&self.refs, &commit)?;
        }
        Ok(removed)
    }
}

/// The bytes of a blob that has no other name.
fn own_bytes(blob: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;

    fs::symlink_metadata(blob).map_or(0, |about| if about.is_file() && about.nlink() == 1 { about.len() } else { 0 })
}

/// Removes the branches and tags that mean a commit.
fn remove_references(folder: &Path, commit: &str) -> io::Result<()> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            remove_references(&path, commit)?;
        } else if fs::read_to_string(&path).is_ok_and(|text| text.trim() == commit) {
            remove_if_there(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::FileChecksum;

    #[test]
    fn op_6_a_removal_leaves_what_others_use() {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::new(folder.path().join("hub"));
        let repo = cache.repo(&"org/repo".parse().unwrap());
        fs::create_dir_all(repo.blobs()).unwrap();
        let ollama = folder.path().join("ollama-blob");
        fs::write(&ollama, "ollama").unwrap();
        let checksum = |digit: &str| FileChecksum::of(&digit.repeat(64)).unwrap();
        for (digit, text) in [("a", "a-model"), ("b", "projector"), ("c", "shared")] {
            fs::write(repo.blob(&checksum(digit)), text).unwrap();
        }
        std::os::unix::fs::symlink(&ollama, repo.blob(&checksum("d"))).unwrap();
        for (commit, file, digit) in [
            ("1", "m-00001-of-00002.gguf", "a"),
            ("1", "m-00002-of-00002.gguf", "c"),
            ("1", "mmproj.gguf", "b"),
            ("1", "n.gguf", "d"),
            ("2", "old.gguf", "c"),
        ] {
            repo.link(commit, file, &checksum(digit)).unwrap();
        }
        repo.refer("main", "1").unwrap();
        let source = |file: &str| Source {
            hf: Some("org/repo".parse().unwrap()),
            file: Some(file.to_owned()),
            ..Source::default()
        };
        let removal = cache.removal(&source("m-00001-of-00002.gguf")).unwrap();
        assert_eq!(removal.carry_out().unwrap(), RemovedFiles { files: 2, bytes: ByteCount(7) }, "'shared' has a user");
        assert!(repo.blob(&checksum("b")).exists() && repo.blob(&checksum("c")).exists(), "so has the projector");
        assert!(!repo.blob(&checksum("a")).exists());
        assert_eq!(cache.removal(&source("m-00001-of-00002.gguf")), None);
        let removal = cache.removal(&source("n.gguf")).unwrap();
        assert_eq!(removal.carry_out().unwrap(), RemovedFiles { files: 2, bytes: ByteCount(9) }, "with the projector");
        assert_eq!(fs::read_to_string(&ollama).unwrap(), "ollama", "files of other programs stay");
        assert!(!repo.snapshot("1").exists() && repo.commit_of("main").is_none());
        assert_eq!(repo.files("2"), ["old.gguf"]);
    }
}
