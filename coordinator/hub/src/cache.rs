//! The cache that Hugging Face's tools share: `models--ORG--NAME` with `blobs` named by checksum, `snapshots` of
//! commits whose files are links to blobs, and `refs` that say which commit a branch means.
//!
//! The layout is described at <https://huggingface.co/docs/huggingface_hub/guides/manage-cache>.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use model_boss_config::model_folders::ModelFolders;
use model_boss_protocol::{HubRepo, Source};
use model_boss_weights::PartName;

use super::digest::FileChecksum;
use super::listing::is_commit;

/// The digits of a full commit.
const COMMIT: usize = 40;
/// The deepest nesting of folders in a snapshot that is listed.
const MAX_DEPTH: u32 = 4;

/// The cache.
#[derive(Clone, Debug)]
pub struct HubCache(PathBuf);

/// The cache of the user who runs this process.
impl Default for HubCache {
    fn default() -> Self {
        let home = std::env::home_dir().unwrap_or_default();
        Self(ModelFolders::below(&home, |name| std::env::var_os(name).map(PathBuf::from)).hub)
    }
}

/// One repository of the cache.
#[derive(Clone, Debug)]
pub(crate) struct CachedRepo {
    folder: PathBuf,
    locks: PathBuf,
}

impl HubCache {
    /// The cache in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// The path of a model that a manifest names by its repository; `None` for one at a path of this machine. The path
    /// does not exist if the model was not downloaded.
    pub fn path_of(&self, source: &Source) -> Option<PathBuf> {
        let repo = self.repo(source.hf.as_ref()?);
        Some(repo.path_of(source.revision(), source.file.as_deref()))
    }

    pub(crate) fn repo(&self, repo: &HubRepo) -> CachedRepo {
        let name = format!("models--{}", repo.as_str().replace('/', "--"));
        CachedRepo { folder: self.0.join(&name), locks: self.0.join(".locks").join(name) }
    }
}

/// Whether a model's files are all at this path: a file with its other parts, or a folder with a description and
/// weights.
pub fn is_present(path: &Path) -> bool {
    if path.is_dir() {
        let is_weights = |entry: fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".safetensors");
        let has_weights = || fs::read_dir(path).into_iter().flatten().flatten().any(is_weights);
        return path.join("config.json").is_file() && has_weights();
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match PartName::of(&name) {
        Some(part) => (1..=part.count).all(|number| path.with_file_name(part.sibling(number)).is_file()),
        None => path.is_file(),
    }
}

impl CachedRepo {
    pub(crate) fn blob(&self, checksum: &FileChecksum) -> PathBuf {
        self.folder.join("blobs").join(checksum.as_str())
    }

    /// The path of the lock that Hugging Face's tools hold while they download a blob.
    pub(crate) fn lock(&self, checksum: &FileChecksum) -> PathBuf {
        self.locks.join(format!("{checksum}.lock"))
    }

    /// The folder of the locks.
    pub(crate) fn lock_folder(&self) -> PathBuf {
        self.locks.clone()
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.folder.join("refs").join(revision)
    }

    /// The commit that a branch or tag means, or a commit itself.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_full_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.reference(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// The path of a file, or of the folder of a revision. Another program may have moved the branch to a commit of
    /// which it has other files only: then the latest commit with the model is taken.
    fn path_of(&self, revision: &str, file: Option<&str>) -> PathBuf {
        let commit = self.commit_of(revision);
        let at = |snapshot: PathBuf| file.map_or(snapshot.clone(), |file| snapshot.join(file));
        let usual = at(self.snapshot(commit.as_deref().unwrap_or(revision)));
        if is_present(&usual) || is_full_commit(revision) {
            return usual;
        }
        self.snapshots().into_iter().map(at).find(|path| is_present(path)).unwrap_or(usual)
    }

    /// The snapshots, the latest first.
    pub(crate) fn snapshots(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.join("snapshots")).into_iter().flatten().flatten();
        let mut found: Vec<(SystemTime, PathBuf)> = entries
            .map(|entry| (entry.metadata().and_then(|about| about.modified()), entry.path()))
            .map(|(modified, path)| (modified.unwrap_or(SystemTime::UNIX_EPOCH), path))
            .collect();
        found.sort_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, path)| path).collect()
    }

    /// The paths of a snapshot's files.
    pub(crate) fn files(&self, commit: &str) -> Vec<String> {
        let root = self.snapshot(commit);
        let mut found = Vec::new();
        collect(&root, &root, 0, &mut found);
        found.sort();
        found
    }

    /// Makes a file of a commit visible, as a link to its blob.
    pub(crate) fn link(&self, commit: &str, path: &str, checksum: &FileChecksum) -> io::Result<()> {
        let pointer = self.snapshot(commit).join(path);
        let up = "../".repeat(path.split('/').count().saturating_add(1));
        let target = PathBuf::from(format!("{up}blobs/{checksum}"));
        if fs::read_link(&pointer).is_ok_and(|now| now == target) {
            return Ok(());
        }
        if let Some(folder) = pointer.parent() {
            fs::create_dir_all(folder)?;
        }
        let next = pointer.with_file_name(format!(".{}.model-boss", checksum.as_str()));
        remove_if_there(&next)?;
        std::os::unix::fs::symlink(target, &next)?;
        fs::rename(next, pointer)
    }

    /// Has a branch or tag mean this commit from now on.
    pub(crate) fn refer(&self, revision: &str, commit: &str) -> io::Result<()> {
        if revision == commit || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let reference = self.reference(revision);
        if let Some(folder) = reference.parent() {
            fs::create_dir_all(folder)?;
        }
        let name = reference.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let next = reference.with_file_name(format!(".{name}.model-boss"));
        fs::write(&next, commit)?;
        fs::rename(next, reference)
    }
}

fn is_full_commit(revision: &str) -> bool {
    revision.len() == COMMIT && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn collect(root: &Path, folder: &Path, depth: u32, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if depth < MAX_DEPTH {
                collect(root, &path, depth.saturating_add(1), found);
            }
        } else if path.is_file()
            && let Ok(inside) = path.strip_prefix(root)
        {
            found.push(inside.to_string_lossy().into_owned());
        }
    }
}

/// Removes a file or link, if it is there.
pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, HubCache, CachedRepo) {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::new(folder.path());
        let repo = cache.repo(&"org/repo".parse().unwrap());
        (folder, cache, repo)
    }

    fn source(file: Option<&str>, revision: Option<&str>) -> Source {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (file, revision) = (owned(file), owned(revision));
        Source { hf: Some("org/repo".parse().unwrap()), file, revision, ..Source::default() }
    }

    fn blob(repo: &CachedRepo, digit: &str, text: &str) -> FileChecksum {
        let checksum = FileChecksum::of(&digit.repeat(40)).unwrap();
        fs::create_dir_all(repo.blobs()).unwrap();
        fs::write(repo.blob(&checksum), text).unwrap();
        checksum
    }

    #[test]
    fn op_6_files_of_a_snapshot_are_relative_links_to_blobs() {
        let (folder, cache, repo) = cache();
        let checksum = blob(&repo, "a", "x");
        repo.link("0123", "q4/m.gguf", &checksum).unwrap();
        repo.link("0123", "q4/m.gguf", &checksum).unwrap();
        repo.refer("main", "0123").unwrap();
        let pointer = folder.path().join("models--org--repo/snapshots/0123/q4/m.gguf");
        assert_eq!(fs::read_link(&pointer).unwrap(), Path::new(&format!("../../../blobs/{checksum}")));
        assert_eq!(fs::read_to_string(&pointer).unwrap(), "x");
        assert_eq!(fs::read_to_string(folder.path().join("models--org--repo/refs/main")).unwrap(), "0123");
        assert_eq!(repo.files("0123"), ["q4/m.gguf"]);
        assert_eq!(cache.path_of(&source(Some("q4/m.gguf"), None)), Some(pointer));
        assert_eq!(cache.path_of(&Source::at("x")), None);
    }

    #[test]
    fn op_6_a_branch_that_moved_to_other_files_hides_no_model() {
        let (_folder, cache, repo) = cache();
        let checksum = blob(&repo, "a", "x");
        let (old, new) = ("1".repeat(40), "2".repeat(40));
        repo.link(&old, "m.gguf", &checksum).unwrap();
        repo.link(&new, "README.md", &checksum).unwrap();
        repo.refer("main", &new).unwrap();
        let wanted = source(Some("m.gguf"), None);
        assert_eq!(cache.path_of(&wanted).unwrap(), repo.snapshot(&old).join("m.gguf"));
        let pinned = cache.path_of(&source(Some("m.gguf"), Some(&new))).unwrap();
        assert!(!is_present(&pinned) && pinned.starts_with(repo.snapshot(&new)), "a commit means itself");
        fs::remove_file(repo.blob(&checksum)).unwrap();
        assert!(!is_present(&cache.path_of(&wanted).unwrap()), "a link that leads nowhere is no file");
    }

    #[test]
    fn op_6_a_model_is_there_when_all_its_files_are() {
        let (_folder, cache, repo) = cache();
        let checksum = blob(&repo, "a", "x");
        let folder = || cache.path_of(&source(None, None)).unwrap();
        repo.refer("main", "0123").unwrap();
        for (file, there) in [("config.json", false), ("model.safetensors", true)] {
            repo.link("0123", file, &checksum).unwrap();
            assert_eq!(is_present(&folder()), there, "{file}");
        }
        let parts = || cache.path_of(&source(Some("m-00001-of-00002.gguf"), None)).unwrap();
        for (file, there) in [("m-00001-of-00002.gguf", false), ("m-00002-of-00002.gguf", true)] {
            repo.link("0123", file, &checksum).unwrap();
            assert_eq!(is_present(&parts()), there, "{file}");
        }
        fs::write(repo.reference("main"), "../../etc").unwrap();
        assert_eq!(repo.commit_of("main"), None, "a commit becomes a folder's name");
    }
}
