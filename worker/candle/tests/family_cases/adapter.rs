//! Cases of adapters as files, and the folders that they describe.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::case::{Case, case_files};
use super::rule::{TensorRule, floats, safetensors};

/// An adapter of a family's case, with prompts and the answers of `peft`.
#[derive(Deserialize)]
pub(crate) struct AdapterCase {
    #[serde(skip)]
    pub(crate) name: String,
    base: String,
    pub(crate) config: Value,
    seed: u64,
    tensors: Vec<TensorRule>,
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) logits: Vec<Vec<f32>>,
    pub(crate) greedy: Vec<Vec<u32>>,
}

/// All cases, in order.
pub(crate) fn adapter_cases() -> Vec<AdapterCase> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let folder = Path::new(&package).join("tests/lora");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 15, "cases are missing");
    let read = |file: &std::path::PathBuf| {
        let mut case: AdapterCase = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        case.name = file.file_stem().unwrap().to_string_lossy().into_owned();
        case
    };
    files.iter().map(read).collect()
}

/// A file of tensors by the rule: names, shapes, middles and widths.
pub(crate) fn adapter_weights(tensors: Vec<(String, Vec<usize>, f64, f64)>, seed: u64) -> Vec<u8> {
    let rule = |(name, shape, mean, scale)| TensorRule::Floats(name, shape, mean, scale);
    safetensors(&tensors.into_iter().map(rule).collect::<Vec<_>>(), seed)
}

impl AdapterCase {
    /// The model that the adapter is for.
    pub(crate) fn base(&self) -> Case {
        let file = case_files("json").into_iter().find(|file| file.ends_with(format!("{}.json", self.base)));
        Case::read(&file.unwrap())
    }

    /// `adapter_model.safetensors`.
    pub(crate) fn weights(&self) -> Vec<u8> {
        self.weights_of(self.seed)
    }

    /// The same of another seed.
    pub(crate) fn weights_of(&self, seed: u64) -> Vec<u8> {
        safetensors(&self.tensors, seed)
    }

    /// The same with other shapes, or without some tensors: the function says which stay.
    pub(crate) fn changed(&self, change: &dyn Fn(&str, &mut Vec<usize>) -> bool) -> Vec<u8> {
        let changed = self.tensors.iter().filter_map(|tensor| {
            let TensorRule::Floats(name, shape, mean, scale) = tensor else { return None };
            let mut shape = shape.clone();
            change(name, &mut shape).then(|| TensorRule::Floats(name.clone(), shape, *mean, *scale))
        });
        safetensors(&changed.collect::<Vec<_>>(), self.seed)
    }

    /// The same with other names.
    pub(crate) fn renamed(&self, rename: &dyn Fn(&str) -> String) -> Vec<u8> {
        let renamed = self.tensors.iter().filter_map(|tensor| {
            let TensorRule::Floats(name, shape, mean, scale) = tensor else { return None };
            Some(TensorRule::Floats(rename(name), shape.clone(), *mean, *scale))
        });
        safetensors(&renamed.collect::<Vec<_>>(), self.seed)
    }

    /// The name, shape and numbers of each matrix.
    pub(crate) fn tensors_of(&self) -> Vec<(String, [usize; 2], Vec<f32>)> {
        let tensor = |tensor: &TensorRule| {
            let TensorRule::Floats(name, shape, mean, scale) = tensor else { return None };
            let values = floats(name, shape, (*mean, *scale), self.seed);
            Some((name.clone(), shape.as_slice().try_into().unwrap(), values))
        };
        self.tensors.iter().filter_map(tensor).collect()
    }
}
