//! Files that lie in the stores of other programs already: Ollama's, by their checksum, and LM Studio's, by size and
//! checksum. They are linked into the cache and not downloaded again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::digest::FileChecksum;
use super::listing::FileIdentity;
use super::settings::HubSettings;

/// The deepest nesting of LM Studio's folders.
const MAX_DEPTH: u32 = 4;
/// The smallest file that is looked for: smaller ones are downloaded in a moment.
const SMALLEST: u64 = 1 << 20;

/// The file with this content in another program's store. The content is checked, since those programs may have
/// changed it.
pub(crate) fn find(settings: &HubSettings, wanted: &FileIdentity, cancel: &CancellationToken) -> Option<PathBuf> {
    let FileChecksum::Sha256(digest) = &wanted.checksum else { return None };
    let is_same = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() == wanted.bytes)
            && wanted.checksum.computed(path, cancel).ok().flatten().as_ref() == Some(digest)
    };
    let blob = settings.ollama.join("blobs").join(format!("sha256-{digest}"));
    if is_same(&blob) {
        return Some(blob);
    }
    if wanted.bytes < SMALLEST {
        return None;
    }
    let mut files = Vec::new();
    settings.studio.iter().for_each(|folder| of_size(folder, wanted.bytes, 0, &mut files));
    files.into_iter().find(|path| is_same(path))
}

/// The files of exactly this size below a folder.
fn of_size(folder: &Path, bytes: u64, depth: u32, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match fs::metadata(&path) {
            Ok(about) if about.is_dir() && depth < MAX_DEPTH => of_size(&path, bytes, depth.saturating_add(1), found),
            Ok(about) if about.is_file() && about.len() == bytes => found.push(path),
            _ => {}
        }
    }
}

/// Links a file of another program to `blob`: by a second name where the file system allows it, so that the file stays
/// when that program removes its own; else by a symbolic link.
pub(crate) fn link(file: &Path, blob: &Path) -> io::Result<()> {
    let file = file.canonicalize()?;
    fs::hard_link(&file, blob).or_else(|_| std::os::unix::fs::symlink(&file, blob))
}
