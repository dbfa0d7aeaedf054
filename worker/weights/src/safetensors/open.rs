//! Opening a model in safetensors, in one file or several: from its headers to an index of its tensors.

use std::path::{Path, PathBuf};

use super::header::{SafetensorsHeader, parse_file, read_header};
use super::index::TensorIndex;
use super::shards;
use crate::error::{WeightsError, file_name};
use crate::locate::{Located, locate};

impl TensorIndex {
    /// Reads the headers of a model: a folder with `model.safetensors` or `model.safetensors.index.json`, or one such
    /// file. Tensor data is not read.
    pub fn open(source: &Path) -> Result<Self, WeightsError> {
        match locate(source)? {
            Located::Safetensors(path) => {
                let header = read_header(&path)?;
                Ok(Self::of_one(path, header))
            }
            Located::Sharded(path) => shards::open(&path),
        }
    }

    /// The index of one safetensors file that is wholly in memory; `path` is its origin, for messages.
    pub fn parse(path: &Path, file: &[u8]) -> Result<Self, WeightsError> {
        let header = parse_file(file, &file_name(path))?;
        Ok(Self::of_one(path.to_owned(), header))
    }

    fn of_one(path: PathBuf, header: SafetensorsHeader) -> Self {
        let mut index = Self::default();
        let file = index.add_file(path, header.file_len);
        for (name, tensor) in header.tensors {
            index.add_tensor(name, tensor.entry(file));
        }
        index
    }
}
