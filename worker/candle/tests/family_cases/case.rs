//! Cases of families as files, and the models that they describe.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use model_boss_protocol::CONFIG_ARCHITECTURES;
use serde::Deserialize;
use serde_json::Value;

use super::rule::{TensorRule, safetensors};

/// A configuration with prompts and the answers of `transformers`.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) family: String,
    #[serde(rename = "case")]
    pub(crate) name: String,
    config: Value,
    seed: u64,
    tensors: Vec<TensorRule>,
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) logits: Vec<Vec<f32>>,
    pub(crate) greedy: Vec<Vec<u32>>,
    #[serde(skip)]
    folder: OnceLock<tempfile::TempDir>,
}

/// The files of all cases with this extension, in order.
pub(crate) fn case_files(extension: &str) -> Vec<PathBuf> {
    // Of the running test, which may be on another machine than the one that compiled it.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let folder = Path::new(&package).join("tests/families");
    let entries = |folder: &Path| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries(&folder).flat_map(|family| entries(&family).collect::<Vec<_>>()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == extension));
    files.sort();
    assert!(files.len() > 30, "cases are missing");
    files
}

impl Case {
    pub(crate) fn read(path: &Path) -> Self {
        let mut case: Self = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        case.name = format!("{}/{}", case.family, case.name);
        case
    }

    /// All cases of families that this build runs. `MODEL_BOSS_FAMILY` picks those whose names have it.
    pub(crate) fn all() -> Vec<Self> {
        let cases = case_files("json").into_iter().map(|path| Self::read(&path));
        cases.filter(|case| case.is_known() && case.is_wanted()).collect()
    }

    /// Whether `MODEL_BOSS_FAMILY` picks it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.name.contains(&std::env::var("MODEL_BOSS_FAMILY").unwrap_or_default())
    }

    /// The class that `config.json` names.
    pub(crate) fn architecture(&self) -> &str {
        self.config["architectures"][0].as_str().unwrap_or_default()
    }

    /// Heads of keys and values.
    #[allow(dead_code, reason = "one test needs it")]
    pub(crate) fn kv_heads(&self) -> usize {
        self.config["num_key_value_heads"].as_u64().unwrap() as usize
    }

    /// The name without the family's.
    pub(crate) fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or_default()
    }

    /// Whether this build knows the architecture.
    pub(crate) fn is_known(&self) -> bool {
        CONFIG_ARCHITECTURES.contains(&self.architecture())
    }

    /// Whether matrices are stored in blocks, whose products round activations too.
    pub(crate) fn is_quantised(&self) -> bool {
        self.tensors.iter().any(|tensor| matches!(tensor, TensorRule::Bytes(..)))
    }

    /// A folder with the model, which is there as long as the case.
    pub(crate) fn folder(&self) -> &Path {
        self.folder
            .get_or_init(|| {
                let folder = tempfile::tempdir().unwrap();
                std::fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
                std::fs::write(folder.path().join("model.safetensors"), safetensors(&self.tensors, self.seed)).unwrap();
                folder
            })
            .path()
    }

    /// The prompts that fit into a context, with the tokens that follow.
    pub(crate) fn usable_prompts(&self, context: usize) -> Vec<&Vec<u32>> {
        let room = self.greedy[0].len();
        self.prompts.iter().filter(|prompt| prompt.len() + room <= context).collect()
    }
}
