//! One model as its manifest gives it, and problems that an operator has to mend.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use model_boss_core::{LayerOptions, ModelDescription, SizeEstimate};
use model_boss_protocol::{Backend, Manifest, Residency};

use super::about::About;
use super::files::ModelFile;
use crate::{fitness, size};

/// One model as its manifest gives it.
#[derive(Debug)]
pub struct Model {
    /// The manifest.
    pub manifest: Manifest,
    /// Where the manifest is; without one, where the model is.
    pub file: PathBuf,
    /// Where the weights are; absolute. May not exist: then the load says so.
    pub source: PathBuf,
    /// When the manifest was last changed, in seconds since 1970.
    pub created: u64,
    /// The files there, as they were when this was read: files that changed are another `Model`.
    pub(super) files: Vec<ModelFile>,
    /// What its revision was made of besides the files.
    pub(super) text: String,
    /// What scheduling needs to know.
    pub description: ModelDescription,
    /// The same for what runs it; made when it is first asked for.
    pub(super) described: OnceLock<ModelDescription>,
    /// What our own worker lacks for it; looked up when it is first asked for.
    pub(super) candle_lacks: OnceLock<Option<String>>,
    /// What its files tell; read when it is first asked for.
    pub about: OnceLock<About>,
}

/// Something an operator has to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which file or folder.
    pub file: PathBuf,
    /// Which line of it, from 1.
    pub line: Option<usize>,
    /// What is wrong, naming the field.
    pub message: String,
}

impl Model {
    /// The memory it will need with another context and layers that live otherwise, run by `backend`. Looks at files, so it
    /// may block.
    pub fn size_with(&self, context: Option<u64>, layers: LayerOptions, backend: Backend) -> SizeEstimate {
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
    pub fn about(&self) -> &About {
        self.about.get_or_init(|| About::read(&self.source, &self.files))
    }

    /// Whether there is a file that llama-server reads.
    pub(crate) fn has_gguf(&self) -> bool {
        self.files.iter().any(ModelFile::is_gguf)
    }

    /// What the manifest says to this backend alone.
    pub fn settings_of(&self, backend: Backend) -> BTreeMap<String, serde_json::Value> {
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
