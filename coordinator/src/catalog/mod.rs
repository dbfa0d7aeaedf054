//! The models there are: manifests and packages read into a list, with everything that is wrong named, and those that a
//! client named by their path. One bad manifest never hides the others, and an edit that cannot be used leaves what was
//! there. Knows files and their sizes; never what is in them.

mod about;
mod by_path;
mod engines;
mod fitness;
mod folders;
mod headers;
mod json_beside;
mod live;
mod package;
mod read;
mod roots;
mod size;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use model_boss_core::{LayerOptions, ModelDescription, SizeEstimate};
use model_boss_protocol::{Backend, Manifest, ModelId, Residency, without_latest};

use about::About;
pub(crate) use by_path::PathError;
pub(crate) use engines::{Engines, ForeignEngine, find_llama_server};
use folders::Folders;
pub(crate) use live::{Asker, LiveCatalog};
pub(crate) use roots::ModelRoots;
use size::ModelFile;

/// Requests a model works on at once when its manifest does not say.
const DEFAULT_CONCURRENCY: u32 = 8;

/// All models, and what could not be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    models: BTreeMap<ModelId, Arc<Model>>,
    /// Names and aliases.
    names: HashMap<String, Arc<Model>>,
    /// What is wrong with the manifests that are not among the models.
    pub(crate) problems: Vec<Problem>,
}

/// One model as its manifest gives it.
#[derive(Debug)]
pub(crate) struct Model {
    /// The manifest.
    pub(crate) manifest: Manifest,
    /// Where the manifest is; without one, where the model is.
    pub(crate) file: PathBuf,
    /// Where the weights are; absolute. May not exist: then the load says so.
    pub(crate) source: PathBuf,
    /// When the manifest was last changed, in seconds since 1970.
    pub(crate) created: u64,
    /// The files there, as they were when this was read: files that changed are another `Model`.
    files: Vec<ModelFile>,
    /// What its revision was made of besides the files.
    text: String,
    /// What scheduling needs to know.
    pub(crate) description: ModelDescription,
    /// The same for what runs it; made when it is first asked for.
    described: OnceLock<ModelDescription>,
    /// What our own worker lacks for it; looked up when it is first asked for.
    candle_lacks: OnceLock<Option<String>>,
    /// What its files tell; read when it is first asked for.
    about: OnceLock<About>,
}

/// Something an operator has to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Which file or folder.
    pub(crate) file: PathBuf,
    /// Which line of it, from 1.
    pub(crate) line: Option<usize>,
    /// What is wrong, naming the field.
    pub(crate) message: String,
}

impl Model {
    /// The memory it will need with another context and layers that live otherwise, run by `backend`. Looks at files, so it
    /// may block.
    pub(crate) fn size_with(&self, context: Option<u64>, layers: LayerOptions, backend: Backend) -> SizeEstimate {
        let Residency { mode, window, block, .. } = layers.residency(self.manifest.residency());
        let stated = layers.memory.or(self.manifest.stated_size());
        let manifest = Manifest {
            context_length: context.or(self.manifest.context_length),
            residency: Some(mode),
            window,
            block,
            vram: stated,
            vram_mb: None,
            ..self.manifest.clone()
        };
        size::estimate(&manifest, &self.source, &self.files, backend)
    }

    /// What our own worker lacks to run it, as far as headers tell. Looks at files the first time, so it may block.
    pub(crate) fn candle_lacks(&self) -> Option<&str> {
        let look = || fitness::candle_lacks(self.description.category, &self.source, &self.files);
        self.candle_lacks.get_or_init(look).as_deref()
    }

    /// What its files tell about it. Looks at them the first time, so it may block.
    pub(crate) fn about(&self) -> &About {
        self.about.get_or_init(|| About::read(&self.source, &self.files))
    }

    /// Whether there is a file that llama-server reads.
    pub(crate) fn has_gguf(&self) -> bool {
        self.files.iter().any(ModelFile::is_gguf)
    }

    /// What the manifest says to this backend alone.
    pub(crate) fn settings_of(&self, backend: Backend) -> BTreeMap<String, serde_json::Value> {
        let table = self.manifest.custom.get(backend.as_str()).and_then(serde_json::Value::as_object);
        table.map(|table| table.clone().into_iter().collect()).unwrap_or_default()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl Catalog {
    /// Reads `folder/*.toml` and `folder/*/model.toml` in the order of their paths.
    pub(crate) fn read(folder: &Path) -> Self {
        Self::read_after(folder, &Self::default(), &mut Folders::default())
    }

    /// The same when `before` was read earlier: a manifest that cannot be used any more keeps its last good version.
    fn read_after(folder: &Path, before: &Self, folders: &mut Folders) -> Self {
        let mut catalog = Self::default();
        let files = match read::manifest_files(folder) {
            Ok(files) => files,
            Err(problem) => {
                catalog = before.clone();
                catalog.problems = vec![problem];
                return catalog;
            }
        };
        let mut taken: BTreeMap<String, PathBuf> = BTreeMap::new();
        let earlier: HashMap<&Path, &Arc<Model>> = before.models().map(|model| (model.file.as_path(), model)).collect();
        for file in files {
            let last_good = earlier.get(file.as_path()).copied();
            let read = read::written(&file, last_good, folders).map(|written| written.model(last_good));
            match read.and_then(|model| claim_names(&model, &mut taken).map(|()| model)) {
                Ok(model) => catalog.add(model),
                Err(problem) => {
                    if let Some(model) = last_good
                        && claim_names(model, &mut taken).is_ok()
                    {
                        catalog.add(Arc::clone(model));
                    }
                    catalog.problems.push(problem);
                }
            }
        }
        catalog
    }

    fn add(&mut self, model: Arc<Model>) {
        for name in std::iter::once(&model.manifest.name).chain(&model.manifest.aliases) {
            self.names.insert(name.clone(), Arc::clone(&model));
        }
        self.models.insert(model.description.id.clone(), model);
    }

    fn remove(&mut self, id: &ModelId) {
        if self.models.remove(id).is_some() {
            self.names.retain(|_, model| model.description.id != *id);
        }
    }

    /// Whether both hold the same revisions of the same models, and the same problems.
    fn agrees_with(&self, other: &Self) -> bool {
        let marks = |catalog: &Self| -> Vec<_> {
            catalog.models().map(|model| (model.file.clone(), model.description.revision)).collect()
        };
        self.problems == other.problems && marks(self) == marks(other)
    }

    /// Every model, by name.
    pub(crate) fn models(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.models.values()
    }

    /// The model with this name (not an alias).
    pub(crate) fn get(&self, id: &ModelId) -> Option<&Arc<Model>> {
        self.models.get(id)
    }

    /// The model with this name or alias; `name:latest` means `name` where nothing else has that name.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Model>> {
        self.names.get(name).or_else(|| self.names.get(without_latest(name)?))
    }

    /// What the scheduler is told. `engines` are the same for as long as the process lives.
    pub(crate) fn descriptions(&self, engines: &Engines) -> Vec<ModelDescription> {
        self.models().map(|model| model.described.get_or_init(|| engines.describe(model)).clone()).collect()
    }
}

impl Engines {
    /// What scheduling needs to know of a model, with what runs it. Looks at files, so it may block.
    fn describe(&self, model: &Model) -> ModelDescription {
        let backend = self.backend(model);
        let of_engine = backend.is_foreign() || (model.manifest.context_length.is_none() && self.context.is_some());
        let size = if of_engine {
            model.size_with(model.manifest.context_length.or(self.context), LayerOptions::default(), backend)
        } else {
            model.description.size.clone()
        };
        ModelDescription {
            splittable: self.splits(model),
            context_length: model.description.context_length.or(self.context),
            size,
            engine: self.usual(model),
            ..model.description.clone()
        }
    }
}

/// A name or an alias belongs to the first model that has it.
fn claim_names(model: &Model, taken: &mut BTreeMap<String, PathBuf>) -> Result<(), Problem> {
    let names = || std::iter::once(&model.manifest.name).chain(&model.manifest.aliases);
    if let Some((name, owner)) = names().find_map(|name| taken.get_key_value(name)) {
        let field = if *name == model.manifest.name { "name" } else { "aliases" };
        let message = format!("'{field}': '{name}' already belongs to {}", owner.display());
        let line = read::line_in(&model.file, field);
        return Err(Problem { file: model.file.clone(), line, message });
    }
    for name in names() {
        taken.insert(name.clone(), model.file.clone());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
