//! Models without a manifest: a GGUF file or a folder that a client named by its path. The module finds a model's files
//! and name. The roots decide which clients may name a path.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model_boss_protocol::{Manifest, Source};
use model_boss_weights::PartName;

use super::entries::Catalog;
use super::folders::Folders;
use super::model::Model;
use super::package;
use super::read::{self, PACKAGE_FILE, ParsedManifest};
use super::roots::{AdmittedPath, ModelRoots, NotAdmitted};
use crate::files;

/// The prefix of these models' names, which no manifest's name has.
const PREFIX: &str = "file:";
/// The files that are read beside a single file of weights.
const BESIDE_A_FILE: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
];
/// The longest part of a path that is used in a name.
const MAX_PART: usize = 80;

/// Why a path names no model.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The path is relative, so it would depend on the coordinator's current folder.
    #[error("'{0}' is not an absolute path; write it from / on")]
    Relative(PathBuf),
    /// The path leads out of the roots, or is absent: the error does not reveal which.
    #[error(
        "no model may be loaded from {path}: it is not there, or not below {roots}. Add its folder to model_roots \
         (--model-roots, MODEL_BOSS_MODEL_ROOTS), or move it; `model-boss run {path}` by the user who runs this \
         coordinator needs neither"
    )]
    Outside {
        /// The requested path.
        path: PathBuf,
        /// The permitted roots.
        roots: ModelRoots,
    },
    /// The path is below a root, but does not exist.
    #[error("{0} does not exist, or cannot be read")]
    Absent(PathBuf),
    /// The path is neither a folder nor a file of a model.
    #[error("{0} is not a model: a .gguf file is one, and so is a folder with config.json and *.safetensors")]
    Unsupported(PathBuf),
    /// A folder without a model.
    #[error(
        "there is no model in {0}: it needs config.json and *.safetensors, or one .gguf file, or a model.toml beside \
         the weights"
    )]
    Empty(PathBuf),
    /// Weights without the shape of the model.
    #[error("{0} has *.safetensors and no config.json, which says what model they are")]
    NoShape(PathBuf),
    /// A folder with several models, of which the client must name one.
    #[error("{folder} has more than one model; name one of {}", .files.join(", "))]
    Several {
        /// The folder with several models.
        folder: PathBuf,
        /// The names of the folder's GGUF files.
        files: Vec<String>,
    },
    /// The package's manifest is not usable, for this reason.
    #[error("{0}")]
    Package(String),
    /// The files of a repository of a hub were not downloaded.
    #[error("its files were not downloaded; `model-boss pull {0}` fetches them")]
    NotDownloaded(String),
    /// The files of the path have changed since they were checked.
    #[error("the files at {0} changed since they were looked at; ask for the model again")]
    Changed(PathBuf),
}

/// A model that was named by its path. It is kept while its files exist.
#[derive(Clone, Debug)]
pub(super) struct ByPath {
    name: String,
    path: PathBuf,
    /// The folders that the model's files may be in, which depend on the caller that named it.
    roots: ModelRoots,
    /// The number of the request that last named the model by its path. Numbers are unique among all such models.
    named: u64,
}

impl ByPath {
    /// Reads the model at the path, and gives it a name that no model in `catalog` has.
    pub(crate) fn new(
        at: &AdmittedPath,
        roots: ModelRoots,
        named: u64,
        catalog: &Catalog,
    ) -> Result<(Self, Arc<Model>), PathError> {
        let mut written = read_at(&at.path, &roots, &mut Folders::default())?;
        if let Some(ignored) = package::ignored(&written.text) {
            tracing::warn!(path = %at.path.display(), "{ignored}");
        }
        let name = free_name(&written.manifest.name, &at.path, |name| catalog.find(name).is_some());
        rename(&mut written.manifest, &name);
        Ok((Self { name, path: at.path.clone(), roots, named }, written.model(None)))
    }

    /// Reads the model again; `before` is the last version.
    pub(super) fn read(&self, before: Option<&Arc<Model>>, folders: &mut Folders) -> Result<Arc<Model>, PathError> {
        let mut written = read_at(&self.path, &self.roots, folders)?;
        rename(&mut written.manifest, &self.name);
        Ok(written.model(before))
    }

    /// Checks that the files that a worker would open now are those that were checked. The call comes right before the
    /// worker starts.
    pub(crate) fn check(&self, model: &Model) -> Result<(), PathError> {
        let written = read_at(&self.path, &self.roots, &mut Folders::default())?;
        let same = written.source == model.source && written.revision() == model.description.revision;
        if same { Ok(()) } else { Err(PathError::Changed(self.path.clone())) }
    }

    /// Whether the model's file or folder still exists.
    pub(super) fn exists(&self) -> bool {
        self.path.exists()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The number of the request that last named the model by its path.
    pub(super) fn named(&self) -> u64 {
        self.named
    }

    pub(super) fn name_again(&mut self, named: u64) {
        self.named = named;
    }
}

impl Model {
    /// Whether this is the model at that path, also if it was named through links or has a later part as its source.
    pub(super) fn is_at(&self, at: &AdmittedPath) -> bool {
        let leads_to = |path: &Path, real: &Path| path.canonicalize().is_ok_and(|path| path == real);
        let first = files::first_part(&self.source);
        leads_to(first.as_ref().unwrap_or(&self.source), &at.real) || leads_to(&self.file, &at.real.join(PACKAGE_FILE))
    }
}

/// The roots that apply to this asker's model. The owner of this process may name any path. The roots are then the
/// folders that the files lead to now, so that a link redirected later leads to no other folder.
pub(super) fn roots_for(asker: Asker, path: &Path, roots: &ModelRoots) -> ModelRoots {
    match asker {
        Asker::Anybody => roots.clone(),
        Asker::Owner => roots.clone().and(ModelRoots::around(path)),
    }
}

/// The path, if a client may name it.
pub(super) fn admit(path: &Path, roots: &ModelRoots) -> Result<AdmittedPath, PathError> {
    if !path.is_absolute() {
        return Err(PathError::Relative(path.to_owned()));
    }
    roots.admit(path).map_err(|refused| match refused {
        NotAdmitted::Outside => PathError::Outside { path: path.to_owned(), roots: roots.clone() },
        NotAdmitted::Absent => PathError::Absent(path.to_owned()),
    })
}

/// The path of the model at a path that a client may name. All parts of a split model are one model, by its first part.
pub(super) fn admit_model(path: &Path, roots: &ModelRoots) -> Result<AdmittedPath, PathError> {
    let at = admit(path, roots)?;
    match files::first_part(&at.path) {
        Some(first) => admit(&first, roots),
        None => Ok(at),
    }
}

/// Reads the model at a path. All its parts must lead below the roots: files that a package names, and every link.
fn read_at(path: &Path, roots: &ModelRoots, folders: &mut Folders) -> Result<ParsedManifest, PathError> {
    let path = admit(path, roots)?.path;
    let package = path.join(PACKAGE_FILE);
    let written = if package.is_file() {
        let outside = || PathError::Outside { path: package.clone(), roots: roots.clone() };
        let opened = roots.open(&package).map_err(|_| outside())?;
        read::written_by_stranger(&package, opened, folders)
            .map_err(|problem| PathError::Package(problem.to_string()))?
    } else {
        check_shape(&path, folders)?;
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = name.unwrap_or_default().to_string_lossy();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let name = PartName::of(&file).filter(|_| path.is_file()).map_or(&*name, |part| part.stem).to_owned();
        let manifest = Manifest { name, source: Some(Source::at(&path)), ..Manifest::default() };
        let files = files::model_files_in(&path, folders);
        let (adapters, draft, text) = (BTreeMap::new(), None, String::new());
        ParsedManifest { manifest, file: path.clone(), source: path, files, adapters, draft, text }
    };
    admit(&written.source, roots)?;
    for file in &written.files {
        admit(file.path(), roots)?;
    }
    for link in links_at(&written.source, folders) {
        admit(&link, roots)?;
    }
    Ok(written)
}

/// The symbolic links that a worker may follow. For a folder they are all links in it. For a single file they are those
/// beside it with the names of [`BESIDE_A_FILE`].
fn links_at(source: &Path, folders: &mut Folders) -> Vec<PathBuf> {
    let mut links = |folder: &Path| -> Vec<PathBuf> {
        let about = std::fs::metadata(folder);
        about.map(|about| folders.list(folder, &about, files::counts).links.clone()).unwrap_or_default()
    };
    if source.is_dir() {
        return links(source);
    }
    let is_read = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        BESIDE_A_FILE.iter().any(|read| *name == **read)
    };
    source.parent().map(links).unwrap_or_default().into_iter().filter(is_read).collect()
}

/// Checks by the names of the files that they look like a model.
fn check_shape(path: &Path, folders: &mut Folders) -> Result<(), PathError> {
    let has_ending = |name: &str, ending: &str| name.len() > ending.len() && name.to_lowercase().ends_with(ending);
    if path.is_file() && path.file_name().is_some_and(|name| has_ending(&name.to_string_lossy(), ".gguf")) {
        return Ok(());
    }
    if !path.is_dir() {
        return Err(PathError::Unsupported(path.to_owned()));
    }
    let absent = |_| PathError::Absent(path.to_owned());
    let about = std::fs::metadata(path).map_err(absent)?;
    let listing = folders.list(path, &about, files::counts);
    if listing.entries.is_empty() {
        std::fs::read_dir(path).map_err(absent)?;
    }
    let files: Vec<String> = (listing.entries.iter().filter(|path| path.is_file()))
        .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    let dense = files.iter().any(|name| has_ending(name, ".safetensors"));
    let mut gguf: Vec<String> = files.iter().filter(|name| has_ending(name, ".gguf")).cloned().collect();
    gguf.sort();
    match gguf.as_slice() {
        _ if dense && files.iter().any(|name| name == "config.json") => Ok(()),
        [] if dense => Err(PathError::NoShape(path.to_owned())),
        [] => Err(PathError::Empty(path.to_owned())),
        [first, rest @ ..] if rest.iter().all(|other| files::same_split(first, other)) => Ok(()),
        _ => Err(PathError::Several { folder: path.to_owned(), files: gguf }),
    }
}

/// A free name: `file:NAME`, else with its folder's name, else with a number.
fn free_name(name: &str, path: &Path, taken: impl Fn(&str) -> bool) -> String {
    let name = part(name);
    let folder = path.parent().and_then(Path::file_name).map(|folder| part(&folder.to_string_lossy()));
    let plain = format!("{PREFIX}{name}");
    let longer = folder.map(|folder| format!("{PREFIX}{folder}/{name}"));
    let numbered = (2_u64..).map(|number| format!("{PREFIX}{name}:{number}"));
    std::iter::once(plain.clone()).chain(longer).chain(numbered).find(|name| !taken(name)).unwrap_or(plain)
}

/// One part of a name: characters that are not permitted become `-`.
fn part(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    let part: String = text.chars().take(MAX_PART).map(|c| if allowed(c) { c } else { '-' }).collect();
    if part.is_empty() { "model".to_owned() } else { part }
}

/// Replaces a package's own name and removes its aliases, which may belong to another model here. They are for an
/// operator who moves the package among the manifests.
fn rename(manifest: &mut Manifest, name: &str) {
    name.clone_into(&mut manifest.name);
    manifest.aliases.clear();
}

/// The caller who names a model by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Any caller that reaches the port: limited to the model roots.
    Anybody,
    /// The user who runs this process, proved by the owner key: limited to files that this user can read.
    Owner,
}

#[cfg(test)]
mod tests;
