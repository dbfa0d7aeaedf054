//! A cache of folder listings. The catalog examines every model several times a second. A folder is listed again only
//! if it changed; otherwise only the times and lengths of its files are read.

use std::collections::HashMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use model_boss_hub::HubCache;

use super::stamps::{ReadStamps, SETTLED};

/// The most entries of one folder that are cached.
const MAX_ENTRIES: usize = 20_000;

/// Listings by folder, and the cache with the files of hubs.
#[derive(Debug, Default)]
pub(super) struct Folders {
    /// The cache in which models are found that manifests name by their repository.
    pub(super) hub: HubCache,
    /// The manifests as they were read.
    pub(super) stamps: ReadStamps,
    /// The places of folders during one pass, by the path that leads there.
    places: HashMap<PathBuf, Option<PathBuf>>,
    known: HashMap<PathBuf, ListedFolder>,
    look: u64,
    /// The number of listings, for tests.
    #[cfg(test)]
    pub(super) listed: usize,
}

/// The entries of a folder that matter to models: folders, links, and files with a requested ending.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) entries: Vec<PathBuf>,
    /// The entries that are links.
    pub(super) links: Vec<PathBuf>,
}

#[derive(Debug)]
struct ListedFolder {
    modified: Option<SystemTime>,
    listed_at: SystemTime,
    /// The number of the last pass that used this listing.
    wanted: u64,
    listing: Arc<Listing>,
}

impl Folders {
    /// The listing of a folder whose metadata `about` was just read. `counts` selects the files that matter.
    pub(super) fn list(&mut self, folder: &Path, about: &Metadata, counts: fn(&Path) -> bool) -> Arc<Listing> {
        let modified = about.modified().ok();
        if let Some(known) = self.known.get_mut(folder)
            && known.is_still(modified)
        {
            known.wanted = self.look;
            return Arc::clone(&known.listing);
        }
        #[cfg(test)]
        {
            self.listed += 1;
        }
        let listed_at = SystemTime::now();
        // A folder that cannot be listed is tried again, because a changed permission leaves no time stamp.
        let Ok(listing) = read(folder, counts).map(Arc::new) else { return Arc::default() };
        let known = ListedFolder { modified, listed_at, wanted: self.look, listing: Arc::clone(&listing) };
        self.known.insert(folder.to_owned(), known);
        listing
    }

    /// The place that a path leads to, without links; `None` if it leads nowhere. It is asked for once in a pass.
    pub(super) fn place_of(&mut self, path: PathBuf) -> Option<&Path> {
        self.places.entry(path).or_insert_with_key(|path| path.canonicalize().ok()).as_deref()
    }

    /// Ends a pass over all models: listings that it did not use are dropped.
    pub(super) fn end_look(&mut self) {
        let look = self.look;
        self.known.retain(|_, known| known.wanted == look);
        self.places.clear();
        self.look += 1;
    }
}

impl ListedFolder {
    /// Whether the folder cannot have changed since it was listed.
    fn is_still(&self, modified: Option<SystemTime>) -> bool {
        let settled = |at: SystemTime| self.listed_at.duration_since(at).is_ok_and(|age| age >= SETTLED);
        modified.is_some() && modified == self.modified && modified.is_some_and(settled)
    }
}

fn read(folder: &Path, counts: fn(&Path) -> bool) -> std::io::Result<Listing> {
    let mut listing = Listing::default();
    for entry in std::fs::read_dir(folder)?.flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        let is_link = kind.as_ref().is_ok_and(std::fs::FileType::is_symlink);
        let is_file = kind.is_ok_and(|kind| kind.is_file());
        if is_link {
            listing.links.push(path.clone());
        }
        if !is_file || counts(&path) {
            listing.entries.push(path);
        }
        if listing.entries.len() == MAX_ENTRIES {
            break;
        }
    }
    listing.entries.sort();
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Gives a folder an old time stamp, as if it had not changed for long.
    fn settle(folder: &Path) {
        let file = fs::File::open(folder).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }

    fn names(folders: &mut Folders, folder: &Path) -> Vec<String> {
        let listing = folders.list(folder, &fs::metadata(folder).unwrap(), |path| path.extension().is_some());
        listing.entries.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_folder_is_listed_once_per_change() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        fs::write(folder.join("a.gguf"), "").unwrap();
        fs::write(folder.join("notes"), "").unwrap();
        settle(folder);
        let mut folders = Folders::default();
        for _ in 0..5 {
            assert_eq!(names(&mut folders, folder), ["a.gguf"]);
            folders.end_look();
        }
        assert_eq!(folders.listed, 1);
        fs::write(folder.join("b.gguf"), "").unwrap();
        assert_eq!(names(&mut folders, folder), ["a.gguf", "b.gguf"]);
        // The folder changed a moment ago: the same time stamp may hide another change.
        assert_eq!(names(&mut folders, folder), ["a.gguf", "b.gguf"]);
        assert_eq!(folders.listed, 3);
        settle(folder);
        names(&mut folders, folder);
        names(&mut folders, folder);
        assert_eq!(folders.listed, 4);
        folders.end_look();
        folders.end_look();
        assert!(folders.known.is_empty(), "a folder that no look wants is forgotten");
    }
}
