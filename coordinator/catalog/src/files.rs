//! The files of a model, and which of them are its weights.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use model_boss_weights::PartName;

use super::folders::Folders;

/// The deepest nesting of folders and the most files that are read: a link back to the root must not loop forever.
pub(super) const MAX_DEPTH: u32 = 8;

pub(super) const MAX_FILES: usize = 10_000;

/// The endings of a model's files: the weights, and the small files beside them that a worker reads.
pub(super) const WEIGHTS: &[&str] = &["safetensors", "gguf"];

pub(super) const BESIDE_WEIGHTS: &[&str] = &["json", "jinja", "model"];

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// The time of the last change, in nanoseconds since 1970.
    pub(super) modified: u128,
}

impl ModelFile {
    /// The path, links not followed.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_weights(&self) -> bool {
        has_extension(&self.path, WEIGHTS)
    }

    pub(super) fn is_gguf(&self) -> bool {
        has_extension(&self.path, &["gguf"])
    }
}

/// The files at `source`, which may be one file, or a folder that is searched recursively. The list is empty when
/// `source` is missing. One part of a split model brings the other parts.
pub(super) fn model_files(source: &Path) -> Vec<ModelFile> {
    model_files_in(source, &mut Folders::default())
}

/// Like [`model_files`], with a cache of folders that were listed before.
pub(super) fn model_files_in(source: &Path, folders: &mut Folders) -> Vec<ModelFile> {
    let mut files = Vec::new();
    collect(source, 0, &mut files, folders);
    // Only a part of a split model belongs together with other files.
    let part = source.file_name().map(|name| name.to_string_lossy()).filter(|name| PartName::of(name).is_some());
    if let (Some(name), Some(folder)) = (part, source.parent())
        && source.is_file()
        && let Ok(about) = std::fs::metadata(folder)
    {
        let is_other = |other: &Path| {
            let other = other.file_name().unwrap_or_default().to_string_lossy();
            other != name && same_split(&name, &other)
        };
        for other in folders.list(folder, &about, counts).entries.iter().filter(|path| is_other(path)) {
            collect(other, MAX_DEPTH, &mut files, folders);
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// Whether both are parts of one model, such as `name-00001-of-00003.gguf`.
pub(super) fn same_split(a: &str, b: &str) -> bool {
    PartName::of(a).zip(PartName::of(b)).is_some_and(|(a, b)| a.same_model(&b))
}

/// The first part of a split model of which `path` is a later part, if that file exists.
pub(super) fn first_part(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let part = PartName::of(name).filter(|part| part.number > 1)?;
    Some(path.with_file_name(part.sibling(1))).filter(|first| first.is_file())
}

/// Whether a file belongs to a model, by its ending.
pub(super) fn counts(path: &Path) -> bool {
    has_extension(path, WEIGHTS) || has_extension(path, BESIDE_WEIGHTS)
}

pub(super) fn collect(path: &Path, depth: u32, files: &mut Vec<ModelFile>, folders: &mut Folders) {
    // Links are followed: model caches consist of links.
    let Ok(about) = std::fs::metadata(path) else { return };
    if about.is_file() && counts(path) && files.len() < MAX_FILES {
        let modified = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        files.push(ModelFile {
            path: path.to_owned(),
            bytes: about.len(),
            modified: modified.map_or(0, |time| time.as_nanos()),
        });
    } else if about.is_dir() && depth < MAX_DEPTH {
        for entry in &folders.list(path, &about, counts).entries {
            collect(entry, depth + 1, files, folders);
        }
    }
}

pub(super) fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|found| extensions.iter().any(|extension| found.eq_ignore_ascii_case(extension)))
}
