//! One model as its manifest describes it, and faults that an operator has to correct.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use model_boss_core::{LayerOptions, ModelDescription, SizeEstimate};
use model_boss_hub::HubName;
use model_boss_protocol::{Backend, Category, Manifest, Modality, Residency, SpeechVoice};

use super::about::About;
use super::adapters::AdapterSource;
use super::draft::DraftSource;
use super::files::ModelFile;
use crate::voices::voices_of;
use crate::{fitness, size};

/// One model as its manifest gives it.
#[derive(Debug)]
pub struct Model {
    /// The manifest.
    pub manifest: Manifest,
    /// The path of the manifest; without a manifest, that of the model.
    pub file: PathBuf,
    /// The absolute path of the weights. If it does not exist, the load reports that.
    pub source: PathBuf,
    /// Whether the manifest names a repository of a hub whose files were not downloaded.
    pub is_absent: bool,
    /// The adapters that the manifest names.
    pub adapters: BTreeMap<String, AdapterSource>,
    /// The draft model that the manifest names.
    pub draft: Option<DraftSource>,
    /// The time of the manifest's last change, in seconds since 1970.
    pub created: u64,
    /// The files at the time of reading: changed files make another `Model`.
    pub(super) files: Vec<ModelFile>,
    /// The text from which the revision was computed, together with the files.
    pub(super) text: String,
    /// The description for the scheduler.
    pub description: ModelDescription,
    /// The description with the engine that runs the model; computed on first use.
    pub(super) described: OnceLock<ModelDescription>,
    /// The reason why the candle worker cannot run the model; computed on first use.
    pub(super) candle_lacks: OnceLock<Option<String>>,
    /// The facts in the model's files; read on first use.
    pub about: OnceLock<About>,
}

/// A fault in a manifest that an operator has to correct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestProblem {
    /// The file or folder at fault.
    pub file: PathBuf,
    /// The line in the file, from 1.
    pub line: Option<usize>,
    /// A message that names the field.
    pub message: String,
}

impl Model {
    /// The memory that the model needs under `backend` with this context and these options for its layers. The function
    /// reads files, so it may block.
    pub fn size_with(&self, context: Option<u64>, layers: LayerOptions, backend: Backend) -> SizeEstimate {
        let Residency { mode, window, block, kv_cache_type, .. } = layers.residency(self.manifest.residency());
        let stated = layers.memory.or(self.manifest.stated_size());
        let manifest = Manifest {
            context_length: context.or(self.manifest.context_length),
            kv_cache_type: Some(kv_cache_type),
            residency: Some(mode),
            window,
            block,
            vram: stated,
            vram_mb: None,
            ..self.manifest.clone()
        };
        let size = size::estimate(&manifest, self.description.category, &self.source, &self.files, backend);
        let draft = self.draft.as_ref().filter(|_| backend == Backend::Candle);
        size::beside(DraftSource::with(draft, size, &manifest), &self.adapters)
    }

    /// The reason why the candle worker cannot run the model, by its headers. The first call reads files, so it may
    /// block.
    pub(crate) fn candle_lacks(&self) -> Option<&str> {
        let look = || fitness::candle_lacks(self.description.category, &self.source, &self.files);
        self.candle_lacks.get_or_init(look).as_deref()
    }

    /// The facts from the model's headers. The first call reads files, so it may block.
    pub fn about(&self) -> &About {
        self.about.get_or_init(|| About::read(&self.source, &self.files))
    }

    /// The kinds of input that the model takes on this backend: those of the manifest, and images where the candle
    /// worker finds a tower. The first call reads files, so it may block.
    pub fn input_modalities(&self, backend: Backend) -> Vec<Modality> {
        let mut modalities = self.manifest.input_modalities();
        let finds_tower = backend == Backend::Candle && self.manifest.category() == Category::Llm;
        if finds_tower
            && self.manifest.input_modalities.is_empty()
            && modalities == [Modality::Text]
            && self.about().sees
        {
            modalities.push(Modality::Image);
        }
        modalities
    }

    /// The voices of a model that speaks, the usual one first; empty for others. The function reads files, so it may
    /// block.
    pub fn voices(&self) -> Vec<SpeechVoice> {
        if self.description.category != Category::Tts {
            return Vec::new();
        }
        voices_of(&self.manifest, &self.source)
    }

    /// The projectors that were downloaded with the model's file.
    pub(crate) fn projectors(&self) -> Vec<PathBuf> {
        let Some(file) =
            self.manifest.source.as_ref().filter(|source| source.hf.is_some()).and_then(|s| s.file.as_ref())
        else {
            return Vec::new();
        };
        // A projector is beside the model, or at the top of its repository.
        let folders = self.source.ancestors().skip(1).take(file.split('/').count());
        let entries = folders.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
        let is_projector = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            name.contains("mmproj") && name.ends_with(".gguf") && path.is_file()
        };
        entries.map(|entry| entry.path()).filter(is_projector).collect()
    }

    /// The model's name at the hub, if its manifest names a repository.
    pub fn hub_name(&self) -> Option<HubName> {
        HubName::of_source(self.manifest.source.as_ref()?)
    }

    /// Whether the model has a GGUF file, which llama-server reads.
    pub(crate) fn has_gguf(&self) -> bool {
        self.files.iter().any(ModelFile::is_gguf)
    }

    /// The manifest's settings for this backend alone.
    pub fn settings_of(&self, backend: Backend) -> BTreeMap<String, serde_json::Value> {
        let table = self.manifest.custom.get(backend.as_str()).and_then(serde_json::Value::as_object);
        table.map(|table| table.clone().into_iter().collect()).unwrap_or_default()
    }
}

impl fmt::Display for ManifestProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.message)
    }
}
