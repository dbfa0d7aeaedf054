//! The catalog of one reading: all models, and the manifests' faults.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model_boss_core::ModelDescription;
use model_boss_protocol::{ModelId, without_latest};

use super::folders::Folders;
use super::model::{ManifestProblem, Model};
use crate::manifest_folders::ManifestFolders;
use crate::{Engines, read};

/// All models, and the faults of manifests that could not be read.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    pub(crate) models: BTreeMap<ModelId, Arc<Model>>,
    /// Models by their names and aliases.
    pub(super) names: HashMap<String, Arc<Model>>,
    /// The faults of manifests that gave no model.
    pub problems: Vec<ManifestProblem>,
}

impl Catalog {
    /// Reads `FOLDER/*.toml` and `FOLDER/*/model.toml` in the order of their paths, and the installation's models.
    pub fn read(from: impl Into<ManifestFolders>) -> Self {
        Self::read_after(&from.into(), &Self::default(), &mut Folders::default())
    }

    /// Reads the folders; `before` is an earlier reading. A manifest that became invalid keeps its last good version.
    pub(super) fn read_after(from: &ManifestFolders, before: &Self, folders: &mut Folders) -> Self {
        let mut catalog = Self::default();
        let mut taken: BTreeMap<String, PathBuf> = BTreeMap::new();
        let files = read::manifest_files(&from.own).unwrap_or_else(|problem| {
            catalog = before.clone();
            catalog.problems = vec![problem];
            taken.extend(before.names.iter().map(|(name, model)| (name.clone(), model.file.clone())));
            Vec::new()
        });
        let earlier: HashMap<&Path, &Arc<Model>> = before.models().map(|model| (model.file.as_path(), model)).collect();
        for file in files {
            let last_good = earlier.get(file.as_path()).copied();
            let read = match last_good {
                Some(model) if read::is_unchanged(model, folders) => Ok(Arc::clone(model)),
                _ => read::written(&file, last_good, folders).map(|written| written.model(last_good)),
            };
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
        folders.stamps.retain(|file| earlier.contains_key(file));
        if let Some(installed) = &from.installed {
            catalog.add_installed(installed, &earlier, &mut taken, folders);
        }
        catalog
    }

    /// Adds the models of the installation. Operators did not choose their names: a model whose name is taken is left
    /// out, and so is an alias.
    fn add_installed(
        &mut self,
        folder: &Path,
        earlier: &HashMap<&Path, &Arc<Model>>,
        taken: &mut BTreeMap<String, PathBuf>,
        folders: &mut Folders,
    ) {
        let files = match read::manifest_files(folder) {
            Ok(files) => files,
            Err(problem) => return self.problems.push(problem),
        };
        for file in files {
            // The earlier model may have lost aliases that it has again, so the file is parsed each time.
            match read::written(&file, None, folders) {
                Ok(written) if taken.contains_key(&written.manifest.name) => {}
                Ok(mut written) => {
                    written.manifest.aliases.retain(|alias| !taken.contains_key(alias));
                    let same = |model: &&Arc<Model>| model.manifest.aliases == written.manifest.aliases;
                    let last_good = earlier.get(file.as_path()).copied().filter(same);
                    let model = written.model(last_good);
                    match claim_names(&model, taken) {
                        Ok(()) => self.add(model),
                        Err(problem) => self.problems.push(problem),
                    }
                }
                Err(problem) => self.problems.push(problem),
            }
        }
    }

    pub(super) fn add(&mut self, model: Arc<Model>) {
        for name in std::iter::once(&model.manifest.name).chain(&model.manifest.aliases) {
            self.names.insert(name.clone(), Arc::clone(&model));
        }
        self.models.insert(model.description.id.clone(), model);
    }

    pub(super) fn remove(&mut self, id: &ModelId) {
        if self.models.remove(id).is_some() {
            self.names.retain(|_, model| model.description.id != *id);
        }
    }

    /// Whether both hold the same revisions of the same models, and the same problems.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&Arc<Model>, &Arc<Model>)| {
            let same = one.file == other.file && one.description.revision == other.description.revision;
            same && one.adapters == other.adapters
        };
        self.problems == other.problems
            && self.models.len() == other.models.len()
            && self.models().zip(other.models()).all(is_same)
    }

    /// Every model, in the order of names.
    pub fn models(&self) -> impl Iterator<Item = &Arc<Model>> {
        self.models.values()
    }

    /// The model with this name (not an alias).
    pub fn get(&self, id: &ModelId) -> Option<&Arc<Model>> {
        self.models.get(id)
    }

    /// The model with this name or alias; `name:latest` means `name` where nothing else has that name.
    pub fn find(&self, name: &str) -> Option<&Arc<Model>> {
        self.names.get(name).or_else(|| self.names.get(without_latest(name)?))
    }

    /// Whether requests can name a model or an adapter of a manifest so.
    pub fn knows(&self, name: &str) -> bool {
        let of_model =
            |(base, adapter): (&str, &str)| self.find(base).is_some_and(|model| model.adapters.contains_key(adapter));
        self.find(name).is_some() || name.rsplit_once(':').is_some_and(of_model)
    }

    /// The models' descriptions for the scheduler. `engines` never change while the process runs.
    pub(crate) fn descriptions(&self, engines: &Engines) -> Vec<ModelDescription> {
        self.models().map(|model| model.described.get_or_init(|| engines.describe(model)).clone()).collect()
    }
}

/// Reserves the model's name and aliases. The first model with a name keeps it.
pub(super) fn claim_names(model: &Model, taken: &mut BTreeMap<String, PathBuf>) -> Result<(), ManifestProblem> {
    let names = || std::iter::once(&model.manifest.name).chain(&model.manifest.aliases);
    if let Some((name, owner)) = names().find_map(|name| taken.get_key_value(name)) {
        let field = if *name == model.manifest.name { "name" } else { "aliases" };
        let message = format!("'{field}': '{name}' already belongs to {}", owner.display());
        let line = read::line_in(&model.file, field);
        return Err(ManifestProblem { file: model.file.clone(), line, message });
    }
    for name in names() {
        taken.insert(name.clone(), model.file.clone());
    }
    Ok(())
}
