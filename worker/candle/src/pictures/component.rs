//! The folder of a pipeline as `diffusers` writes it: `model_index.json`, and a folder for each component.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use model_boss_kernels::KvElement;
use model_boss_weights::{SmallFileError, read_small_file};
use serde_json::Value;

use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::speech::config::malformed;
use crate::speech::weights::SpeechWeights;

/// The limit on a configuration in bytes.
const LONGEST: u64 = 1 << 20;

/// The names of weight files, the first that is there counts.
const WEIGHTS: [&str; 8] = [
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "diffusion_pytorch_model.fp16.safetensors",
    "diffusion_pytorch_model.safetensors.index.fp16.json",
    "model.fp16.safetensors",
    "model.safetensors.index.fp16.json",
];

/// A pipeline's folder.
pub(super) struct PipelineFolder {
    path: PathBuf,
    index: Value,
}

impl PipelineFolder {
    /// Reads `model_index.json`.
    pub(super) fn open(path: &Path) -> Result<Self, ModelError> {
        let index = json(&path.join("model_index.json"))?;
        Ok(Self { path: path.to_owned(), index })
    }

    /// The class of the pipeline.
    pub(super) fn class(&self) -> &str {
        self.index.get("_class_name").and_then(Value::as_str).unwrap_or_default()
    }

    /// A setting of the pipeline.
    pub(super) fn setting(&self, name: &str) -> Option<&Value> {
        self.index.get(name)
    }

    /// Whether the pipeline has this component.
    pub(super) fn has(&self, component: &str) -> bool {
        self.index.get(component).and_then(|entry| entry.get(1)).is_some_and(Value::is_string)
    }

    /// The folder of a component.
    pub(super) fn folder(&self, component: &str) -> PathBuf {
        self.path.join(component)
    }

    /// A file of a component.
    pub(super) fn json(&self, component: &str, file: &str) -> Result<Value, ModelError> {
        json(&self.folder(component).join(file))
    }

    /// The same, none where it is not there.
    pub(super) fn json_if_there(&self, component: &str, file: &str) -> Result<Option<Value>, ModelError> {
        if self.folder(component).join(file).exists() { self.json(component, file).map(Some) } else { Ok(None) }
    }

    /// The weights of a component, and their bytes in the files.
    pub(super) fn weights(&self, component: &str) -> Result<(ModelFiles, u64), ModelError> {
        let folder = self.folder(component);
        let found = WEIGHTS.iter().map(|name| folder.join(name)).find(|path| path.exists());
        let (files, _) = ModelFiles::plain(&found.unwrap_or(folder))?;
        let bytes = files.paths().iter().filter_map(|path| path.metadata().ok()).map(|about| about.len()).sum();
        Ok((files, bytes))
    }
}

fn json(path: &Path) -> Result<Value, ModelError> {
    let text = match read_small_file(path, LONGEST) {
        Ok(Some(text)) => text,
        Ok(None) => {
            let source = std::io::ErrorKind::NotFound.into();
            return Err(ModelError::ReadConfig { path: path.to_owned(), source });
        }
        Err(SmallFileError::Read { path, source }) => return Err(ModelError::ReadConfig { path, source }),
        Err(error) => return Err(malformed(error.to_string())),
    };
    serde_json::from_slice(&text).map_err(|error| malformed(format!("{}: {error}", path.display())))
}

/// The device of a pipeline, and its progress while it loads.
pub(super) struct ComponentLoad<'a> {
    target: WeightTarget,
    expected: u64,
    bytes: u64,
    progress: &'a mut dyn FnMut(f32),
}

impl<'a> ComponentLoad<'a> {
    /// For components of so many bytes in all.
    pub(super) fn new(device: &Device, expected: u64, progress: &'a mut dyn FnMut(f32)) -> Self {
        let target = WeightTarget { device: device.clone(), dtype: DType::F32, cached: KvElement::F32 };
        Self { target, expected, bytes: 0, progress }
    }

    /// The target of weights.
    pub(super) fn target(&self) -> &WeightTarget {
        &self.target
    }

    /// Reads a component; returns its bytes in memory, too.
    pub(super) fn read<T>(
        &mut self,
        files: &ModelFiles,
        read: impl FnOnce(&mut SpeechWeights<'_, '_>) -> Result<T, ModelError>,
    ) -> Result<(T, u64), ModelError> {
        let (before, expected) = (self.bytes as f32, self.expected.max(1) as f32);
        let own = files.paths().iter().filter_map(|path| path.metadata().ok()).map(|about| about.len()).sum::<u64>();
        let progress = &mut *self.progress;
        let mut whole = |share: f32| progress(((before + share * own as f32) / expected).min(1.0));
        let mut reader = WeightReader::new(files, &self.target, own, &mut whole);
        let part = read(&mut SpeechWeights { reader: &mut reader, device: &self.target.device })?;
        let bytes = reader.bytes();
        drop(reader);
        self.bytes += own;
        Ok((part, bytes))
    }
}
