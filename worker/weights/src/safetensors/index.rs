//! The index of tensors with their places. It does not depend on file formats.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use crate::dtype::Dtype;
use crate::error::{WeightsError, file_name, printable};

/// A file of a [`TensorIndex`], by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightFileId(pub(crate) usize);

impl WeightFileId {
    /// The position in [`TensorIndex::files`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// A file whose header was read and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The file's length in bytes when its header was read.
    pub len: u64,
}

impl WeightFile {
    /// The last part of the path, for messages.
    pub fn name(&self) -> String {
        file_name(&self.path)
    }
}

/// The place of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// The type of the elements.
    pub dtype: Dtype,
    /// Dimensions, slowest first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The file that contains the tensor.
    pub file: WeightFileId,
    /// The range in bytes, from the file's first byte. Its length agrees with type and shape.
    pub range: Range<u64>,
}

impl TensorEntry {
    /// The number of stored bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }
}

/// Every tensor of a model by name, with its type, shape, file and range. The index holds no data and no open file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorIndex {
    files: Vec<WeightFile>,
    tensors: BTreeMap<String, TensorEntry>,
}

impl TensorIndex {
    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name)
    }

    /// The tensor of that name, or an error that names it.
    pub fn require(&self, name: &str) -> Result<&TensorEntry, WeightsError> {
        self.get(name).ok_or_else(|| WeightsError::MissingTensor { tensor: printable(name) })
    }

    /// All tensors, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TensorEntry)> {
        self.tensors.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether the index has no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Bytes of all tensors as stored.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.values().map(TensorEntry::bytes).fold(0, u64::saturating_add)
    }

    /// The files, in the order of their [`WeightFileId`]s.
    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }

    /// A file's name for messages.
    pub(crate) fn file_name(&self, id: WeightFileId) -> String {
        self.files.get(id.0).map(WeightFile::name).unwrap_or_default()
    }

    pub(crate) fn add_file(&mut self, path: PathBuf, len: u64) -> WeightFileId {
        self.files.push(WeightFile { path, len });
        WeightFileId(self.files.len() - 1)
    }

    pub(crate) fn add_tensor(&mut self, name: String, entry: TensorEntry) {
        self.tensors.insert(name, entry);
    }
}
