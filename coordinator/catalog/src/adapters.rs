//! The files of a model's adapters. A worker gets them from the coordinator, because it may open no others than its
//! model's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use model_boss_protocol::{ByteCount, Manifest, ModelId};

use super::files::{self, ModelFile};
use super::folders::Folders;
use super::roots::ModelRoots;

/// The configuration and the weights in a folder of PEFT.
const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// The most bytes of a configuration, and of weights.
const MAX_CONFIG: u64 = 1 << 20;
const MAX_WEIGHTS: u64 = 4 << 30;

/// An adapter by its files. Changed files make another one.
#[derive(Clone, Debug)]
pub struct AdapterSource {
    /// A folder of PEFT, or a GGUF file.
    pub path: PathBuf,
    files: Vec<ModelFile>,
    /// The folders below which the files have to be; none for an operator's.
    roots: Option<ModelRoots>,
}

impl PartialEq for AdapterSource {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.files == other.files
    }
}

/// An adapter's files in memory.
#[derive(Debug, Default)]
pub struct AdapterContent {
    /// The configuration of a folder of PEFT; none for a GGUF file.
    pub config: Option<Vec<u8>>,
    /// The weights, or the whole GGUF file.
    pub weights: Vec<u8>,
}

/// Why an adapter's files cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AdapterReadError {
    /// A file is not there, or cannot be read.
    #[error("{path} cannot be read: {why}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The path is no adapter.
    #[error(
        "{0} is no adapter: it needs {CONFIG} and {WEIGHTS} as PEFT saves them, or a .gguf file of llama.cpp's \
         convert_lora_to_gguf.py"
    )]
    Shape(PathBuf),
    /// The weights are pickled.
    #[error("{0} has adapter_model.bin: reading such a file can run code; save the adapter with safetensors")]
    Pickle(PathBuf),
    /// A file is larger than an adapter can be.
    #[error("{path} has {bytes} bytes; adapters have at most {MAX_WEIGHTS}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
}

/// Adapters that were added while the process runs.
#[derive(Debug, Default)]
pub(crate) struct AddedAdapters(pub(crate) Mutex<BTreeMap<ModelId, BTreeMap<String, AdapterSource>>>);

/// The adapters that a manifest names; `folder` is its folder.
pub(crate) fn of_manifest(
    manifest: &Manifest,
    folder: &Path,
    folders: &mut Folders,
) -> BTreeMap<String, AdapterSource> {
    let source = |(name, path): (&String, &PathBuf)| {
        let path = folder.join(path);
        let files = files::model_files_in(&path, folders);
        (name.clone(), AdapterSource { path, files, roots: None })
    };
    manifest.adapters.iter().map(source).collect()
}

/// The text of a manifest without its adapters. Adapters change beside a loaded model, which stays the same.
pub(crate) fn text_without(text: &str) -> String {
    let mut kept = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let plain = line.trim();
        if plain.starts_with('[') {
            inside = plain.trim_start_matches('[').trim_start().starts_with("adapters]");
        }
        let sets = plain.strip_prefix("adapters").is_some_and(|rest| rest.trim_start().starts_with(['=', '.']));
        if !inside && !sets {
            kept.push(line);
        }
    }
    kept.join("\n").trim_end().to_owned()
}

impl AdapterSource {
    /// An adapter at a path below these folders.
    pub(crate) fn below(path: PathBuf, roots: ModelRoots) -> Self {
        let files = files::model_files(&path);
        Self { path, files, roots: Some(roots) }
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> ByteCount {
        self.files.iter().filter(|file| file.is_weights()).map(|file| ByteCount(file.bytes())).sum()
    }

    /// Reads the files, and blocks meanwhile.
    pub fn read(&self) -> Result<AdapterContent, AdapterReadError> {
        let at = |name: &str| self.path.join(name);
        if !self.path.is_dir() {
            let is_gguf = files::has_extension(&self.path, &["gguf"]);
            return match is_gguf {
                true => Ok(AdapterContent { config: None, weights: self.file(&self.path, MAX_WEIGHTS)? }),
                false if self.path.exists() => Err(AdapterReadError::Shape(self.path.clone())),
                false => Err(AdapterReadError::Read { path: self.path.clone(), why: "it is not there".to_owned() }),
            };
        }
        if at(CONFIG).is_file() {
            if !at(WEIGHTS).is_file() && at("adapter_model.bin").is_file() {
                return Err(AdapterReadError::Pickle(self.path.clone()));
            }
            let config = self.file(&at(CONFIG), MAX_CONFIG)?;
            return Ok(AdapterContent { config: Some(config), weights: self.file(&at(WEIGHTS), MAX_WEIGHTS)? });
        }
        let ggufs: Vec<&ModelFile> = self.files.iter().filter(|file| file.is_gguf()).collect();
        match ggufs.as_slice() {
            [one] => Ok(AdapterContent { config: None, weights: self.file(one.path(), MAX_WEIGHTS)? }),
            _ => Err(AdapterReadError::Shape(self.path.clone())),
        }
    }

    fn file(&self, path: &Path, most: u64) -> Result<Vec<u8>, AdapterReadError> {
        let failed = |why: String| AdapterReadError::Read { path: path.to_owned(), why };
        let file = match &self.roots {
            Some(roots) => roots.open(path).map_err(|_| failed("it is not there, or not below model_roots".into()))?,
            None => File::open(path).map_err(|error| failed(error.to_string()))?,
        };
        let bytes = file.metadata().map_err(|error| failed(error.to_string()))?.len();
        if bytes > most {
            return Err(AdapterReadError::TooLarge { path: path.to_owned(), bytes });
        }
        let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
        file.take(most).read_to_end(&mut content).map_err(|error| failed(error.to_string()))?;
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifests_text_without_adapters_is_the_rest() {
        assert_eq!(text_without("a = 1\n\n[adapters]\nx = \"y\"\n\n[params]\nt = 1\n"), "a = 1\n\n[params]\nt = 1");
        assert_eq!(text_without("adapters = { x = \"y\" }\nadapters.z = \"w\"\nadapters_x = 1\n"), "adapters_x = 1");
    }
}
