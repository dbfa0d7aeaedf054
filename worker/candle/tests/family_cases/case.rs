//! Cases of families as files, and the models that they describe.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use model_boss_protocol::CONFIG_ARCHITECTURES;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// A tensor's name, its shape, and the range of its numbers: the middle and half of the width, or for bytes the first
/// and how many.
#[derive(Deserialize)]
#[serde(untagged)]
enum TensorRule {
    Floats(String, Vec<usize>, f64, f64),
    Bytes(String, Vec<usize>, f64, f64, IgnoredAny),
}

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
                std::fs::write(folder.path().join("model.safetensors"), self.weights()).unwrap();
                folder
            })
            .path()
    }

    /// The prompts that fit into a context, with the tokens that follow.
    pub(crate) fn usable_prompts(&self, context: usize) -> Vec<&Vec<u32>> {
        let room = self.greedy[0].len();
        self.prompts.iter().filter(|prompt| prompt.len() + room <= context).collect()
    }

    /// A file of safetensors, with weights by the rule of the script.
    fn weights(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for tensor in &self.tensors {
            let first = data.len();
            let (name, shape, dtype) = match tensor {
                TensorRule::Floats(name, shape, mean, scale) => {
                    for number in numbers(name, self.seed).take(shape.iter().product()) {
                        let unit = number as f32 / (1 << 24) as f32;
                        let value = *mean as f32 + *scale as f32 * (2.0 * unit - 1.0);
                        data.extend(value.to_le_bytes());
                    }
                    (name, shape, "F32")
                }
                TensorRule::Bytes(name, shape, low, count, _) => {
                    let bytes = numbers(name, self.seed).take(shape.iter().product());
                    data.extend(bytes.map(|number| *low as u8 + ((number * *count as u64) >> 24) as u8));
                    (name, shape, "U8")
                }
            };
            let about = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [first, data.len()]});
            header.insert(name.clone(), about);
        }
        let header = Value::Object(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes());
        file.extend(data);
        file
    }
}

/// Numbers of 24 bits for a tensor: FNV-1a of the name with the seed, then SplitMix64 (Steele et al., 2014).
fn numbers(name: &str, seed: u64) -> impl Iterator<Item = u64> {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    let base = name.bytes().fold(0xCBF2_9CE4_8422_2325, hash) ^ seed.wrapping_mul(STEP);
    (1_u64..).map(move |at| {
        let mut z = base.wrapping_add(at.wrapping_mul(STEP));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) >> 40
    })
}
