//! Reads one manifest file into one [`Model`], or into the reason why not.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use model_boss_core::{EngineOptions, ModelDescription};
use model_boss_host::plain_file::{read_opened, read_plain_file};
use model_boss_hub::is_present;
use model_boss_protocol::{Backend, Category, Manifest, ManifestError, ModelId};

use super::adapters::{self, AdapterSource};
use super::draft::DraftSource;
use super::files::ModelFile;
use super::folders::Folders;
use super::kind;
use super::model::{ManifestProblem, Model};
use super::package;
use super::size::{self, DEFAULT_CONCURRENCY};
use super::stamps::ManifestStamp;
use crate::files;

/// The file name of a package's manifest (DM-9).
pub(super) const PACKAGE_FILE: &str = "model.toml";
/// The longest manifest, in bytes: real ones are a page of text.
const MAX_MANIFEST: u64 = 1 << 20;
/// The longest manifest of a package that a client named, in bytes.
const MAX_PACKAGE: u64 = 64 << 10;

/// The manifests in a folder, sorted by path.
pub(super) fn manifest_files(folder: &Path) -> Result<Vec<PathBuf>, ManifestProblem> {
    let unreadable = |error: std::io::Error| ManifestProblem {
        file: folder.to_owned(),
        line: None,
        message: format!("the folder of manifests cannot be read: {error}"),
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = entry.path();
        // Only links have to be followed.
        let is_folder = entry.file_type().map_or(true, |kind| kind.is_dir() || (kind.is_symlink() && path.is_dir()));
        if is_folder {
            let package = path.join(PACKAGE_FILE);
            if package.is_file() {
                files.push(package);
            }
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A parsed manifest, and the files of its model. The catalog is read several times a second, so the headers of the
/// models' files are not.
pub(super) struct ParsedManifest {
    pub(super) manifest: Manifest,
    pub(super) file: PathBuf,
    pub(super) source: PathBuf,
    pub(super) files: Vec<ModelFile>,
    pub(super) adapters: BTreeMap<String, AdapterSource>,
    pub(super) draft: Option<DraftSource>,
    /// The text that determines the revision, together with the files.
    pub(super) text: String,
}

/// The text of a manifest, or the fault of reading it.
fn text_of(file: &Path, bytes: std::io::Result<Vec<u8>>, longest: u64) -> Result<String, ManifestProblem> {
    let problem = |message: String| ManifestProblem { file: file.to_owned(), line: None, message };
    let bytes = bytes.map_err(|error| problem(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > longest {
        return Err(problem(format!("is larger than {} KiB: this is no manifest", longest >> 10)));
    }
    String::from_utf8(bytes).map_err(|_| problem("is not a text in UTF-8".to_owned()))
}

/// Reads the `model.toml` of a package that a client named, from a file that is already open and checked. Its content
/// cannot choose a program ([`package`]).
pub(super) fn written_by_stranger(
    file: &Path,
    opened: File,
    folders: &mut Folders,
) -> Result<ParsedManifest, ManifestProblem> {
    let problem = |line: Option<usize>, message: String| ManifestProblem { file: file.to_owned(), line, message };
    let text = text_of(file, read_opened(opened, MAX_PACKAGE), MAX_PACKAGE)?;
    let folder = file.parent().ok_or_else(|| problem(None, "is in no folder".to_owned()))?;
    let manifest = package::parse(&text, folder)
        .map_err(|fault| problem(fault.place.and_then(|place| line_of_place(&text, &place)), fault.message))?;
    manifest.check().map_err(|error| problem(line_of(&text, &error), error.to_string()))?;
    let path = manifest.source.as_ref().and_then(|source| source.path.as_ref());
    let source = path.map_or_else(|| folder.to_owned(), |path| folder.join(path));
    let files = files::model_files_in(&source, folders);
    let (adapters, draft) = (BTreeMap::new(), None);
    Ok(ParsedManifest { manifest, file: file.to_owned(), source, files, adapters, draft, text })
}

/// Whether the manifest and the model's files are as they were when the model was read.
pub(super) fn is_unchanged(model: &Model, folders: &mut Folders) -> bool {
    if !folders.stamps.agrees(&model.file) {
        return false;
    }
    let Some(folder) = folder_of(&model.file) else { return false };
    let source = source_of(&model.manifest, &model.file, &folder, folders);
    adapters::of_manifest(&model.manifest, &folder, folders) == model.adapters
        && DraftSource::of_manifest(&model.manifest, &folder, folders) == model.draft
        && source.is_some_and(|source| source == model.source && files::model_files_in(&source, folders) == model.files)
}

/// Reads one manifest of the operator's. A text that was parsed before is not parsed again.
pub(super) fn written(
    file: &Path,
    before: Option<&Arc<Model>>,
    folders: &mut Folders,
) -> Result<ParsedManifest, ManifestProblem> {
    let problem = |line: Option<usize>, message: String| ManifestProblem { file: file.to_owned(), line, message };
    // A file that is edited meanwhile has another stamp.
    let stamp = std::fs::metadata(file).map(|about| ManifestStamp::of(&about)).ok();
    let text = text_of(file, read_plain_file(file, MAX_MANIFEST), MAX_MANIFEST)?;
    let folder = folder_of(file).ok_or_else(|| problem(None, "is in no folder".to_owned()))?;
    let manifest = match before.filter(|before| before.text == text) {
        Some(before) => before.manifest.clone(),
        None => {
            let mut manifest: Manifest = toml::from_str(&text).map_err(|error| {
                let line = error.span().map(|span| line_at(&text, span.start));
                problem(line, error.message().trim().replace('\n', "; "))
            })?;
            if is_package(file) && manifest.name.is_empty() {
                let name = folder.file_name().unwrap_or_default().to_string_lossy();
                manifest.name = name.strip_suffix(".mlpkg").unwrap_or(&name).to_owned();
            }
            manifest.check().map_err(|error| problem(line_of(&text, &error), error.to_string()))?;
            manifest
        }
    };
    let source = source_of(&manifest, file, &folder, folders).ok_or_else(|| match &manifest.source {
        Some(_) => problem(line_of_field(&text, "source"), "'source' is no place".to_owned()),
        None => {
            problem(None, "'source' is missing: write source = { path = \"…\" } or { hf = \"ORG/NAME\" }".to_owned())
        }
    })?;

    let files = files::model_files_in(&source, folders);
    let adapters = adapters::of_manifest(&manifest, &folder, folders);
    let draft = DraftSource::of_manifest(&manifest, &folder, folders);
    if let Some(stamp) = stamp {
        folders.stamps.keep(file, stamp);
    }
    Ok(ParsedManifest { manifest, file: file.to_owned(), source, files, adapters, draft, text })
}

fn is_package(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == PACKAGE_FILE)
}

/// The absolute path of the folder of a manifest.
fn folder_of(file: &Path) -> Option<PathBuf> {
    std::path::absolute(file).ok()?.parent().map(Path::to_owned)
}

/// The path of the model's files, whether or not they exist; `None` if the manifest names none.
fn source_of(manifest: &Manifest, file: &Path, folder: &Path, folders: &mut Folders) -> Option<PathBuf> {
    let Some(source) = &manifest.source else {
        if is_package(file) {
            return Some(folder.to_owned());
        }
        // The fake worker needs no weights, though a folder of its name may define its behaviour; a command may bring
        // its own.
        let needs_none =
            manifest.backend == Some(Backend::Fake) || manifest.command.is_some() || manifest.speech.is_some();
        return needs_none.then(|| folder.join(&manifest.name));
    };
    let of_hub = folders.hub.path_of(source);
    of_hub.or_else(|| Some(without_steps_up(folder.join(source.path.as_ref()?), folders)))
}

impl ParsedManifest {
    /// A number that changes with the text and the files.
    pub(super) fn revision(&self) -> u64 {
        let files = self.files.iter().chain(self.draft.iter().flat_map(|draft| &draft.files));
        size::revision(&adapters::text_without(&self.text), files)
    }

    /// The model; the earlier one if neither text nor files changed.
    pub(super) fn model(self, before: Option<&Arc<Model>>) -> Arc<Model> {
        let revision = self.revision();
        let same = |before: &&Arc<Model>| {
            before.description.revision == revision
                && before.source == self.source
                && before.manifest.name == self.manifest.name
                && before.adapters == self.adapters
                && before.draft == self.draft
        };
        before.filter(same).map(Arc::clone).unwrap_or_else(|| Arc::new(described(self, revision)))
    }
}

/// Describes the model; reads the files' headers for its size.
fn described(written: ParsedManifest, revision: u64) -> Model {
    let ParsedManifest { manifest, file, source, files, adapters, draft, text } = written;
    let category = match manifest.category() {
        Category::Llm if manifest.category.is_none() => kind::category_of(&source, &files).unwrap_or(Category::Llm),
        stated => stated,
    };
    let size = size::estimate(&manifest, category, &source, &files, Backend::Candle);
    let description = ModelDescription {
        id: ModelId::from(manifest.name.as_str()),
        aliases: manifest.aliases.iter().map(|alias| ModelId::from(alias.as_str())).collect(),
        category,
        device: manifest.place(),
        size: size::beside(DraftSource::with(draft.as_ref(), size, &manifest), &adapters),
        max_concurrent: manifest.max_concurrent.unwrap_or(DEFAULT_CONCURRENCY),
        // The backend is decided later.
        bulk_waits: false,
        pin: manifest.pin,
        keep_alive: manifest.keep_alive,
        revision,
        exclusive_devices: manifest.exclusive_devices(),
        splittable: false,
        context_length: manifest.context_length,
        residency: manifest.residency(),
        engine: EngineOptions::default(),
        named: None,
    };
    let is_of_hub = manifest.source.as_ref().is_some_and(|source| source.hf.is_some());
    let modified = std::fs::metadata(&file).and_then(|about| about.modified()).ok();
    let created = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |time| time.as_secs());
    Model {
        is_absent: is_of_hub && !is_present(&source),
        manifest,
        file,
        source,
        adapters,
        draft,
        created,
        files,
        text,
        description,
        described: OnceLock::new(),
        candle_lacks: OnceLock::new(),
        about: OnceLock::new(),
    }
}

/// The path without `..`, so that it stays valid if a folder on it is moved. The part after the last `..` keeps its
/// links, which may be redirected later.
fn without_steps_up(path: PathBuf, folders: &mut Folders) -> PathBuf {
    let parts: Vec<Component<'_>> = path.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else { return path };
    let (up, rest) = parts.split_at(last + 1);
    match folders.place_of(up.iter().collect()) {
        Some(place) => place.join(rest.iter().collect::<PathBuf>()),
        // The path does not exist: the load reports that.
        None => path,
    }
}

/// The line of a fault that shows only after parsing.
fn line_of(text: &str, error: &ManifestError) -> Option<usize> {
    match error {
        ManifestError::NoName => None,
        ManifestError::BadName(name) => {
            text.lines().position(|line| line.contains(&format!("\"{name}\""))).map(|index| index + 1)
        }
        ManifestError::BadAdapter(name) => line_of_field(text, name).or_else(|| line_of_table(text, "adapters")),
        ManifestError::Zero(field) => line_of_field(text, field),
        ManifestError::VramTwice => line_of_field(text, "vram_mb"),
        ManifestError::Speech(_)
        | ManifestError::SpeechBeside(_)
        | ManifestError::SpeechCategory(_)
        | ManifestError::NoSpeech => line_of_table(text, "speech").or_else(|| line_of_field(text, "backend")),
        ManifestError::CommandUnused(_) | ManifestError::NoCommand => {
            line_of_field(text, "command").or_else(|| line_of_field(text, "backend"))
        }
        ManifestError::Source(_) => line_of_field(text, "source").or_else(|| line_of_table(text, "source")),
        ManifestError::Draft(_) | ManifestError::DraftCategory(_) => {
            line_of_field(text, "draft").or_else(|| line_of_table(text, "draft"))
        }
        ManifestError::LlamaArgs(_) => line_of_field(text, "llamacpp_args"),
    }
}

/// The line that currently sets `field` in a manifest, from 1.
pub(super) fn line_in(file: &Path, field: &str) -> Option<usize> {
    line_of_field(&String::from_utf8(read_plain_file(file, MAX_MANIFEST).ok()?).ok()?, field)
}

/// The line of `text` that sets `field`, from 1.
fn line_of_field(text: &str, field: &str) -> Option<usize> {
    let sets =
        |line: &str| line.trim_start().strip_prefix(field).is_some_and(|rest| rest.trim_start().starts_with('='));
    text.lines().position(sets).map(|index| index + 1)
}

/// The line of `text` with the head of a table, from 1.
fn line_of_table(text: &str, table: &str) -> Option<usize> {
    text.lines().position(|line| line.trim() == format!("[{table}]")).map(|index| index + 1)
}

fn line_of_place(text: &str, place: &package::TextPosition) -> Option<usize> {
    match place {
        package::TextPosition::Field(field) => line_of_field(text, field),
        package::TextPosition::Offset(offset) => Some(line_at(text, *offset)),
    }
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}
