//! The tensors that a model's files have in another order than the one in which they are used, as if one more file
//! had them: experts whose rows are columns, or whose blocks and scales are apart. Layers and experts are streamed from
//! it as from the others. Its bytes are made of the mapped files when they are read.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use model_boss_weights::store::{Extent, PAGE, Run, WeightStore, WeightStoreError};

use crate::error::ModelError;
use crate::file_tensor::FileTensor;

/// The number of the file. No model has as many files, and the last number is that of
/// [`model_boss_weights::quantised::BLOCKS_FILE`].
const MADE_FILE: usize = usize::MAX - 1;

/// The places of matrices in the file, each beginning on a page.
#[derive(Default)]
pub(crate) struct MadeFile {
    places: HashMap<String, Extent>,
    /// The names by their offsets.
    names: BTreeMap<u64, String>,
}

/// Where tensors come from by name, in the form in which they are used.
pub(crate) trait UsedTensors: Send + Sync {
    fn tensor(&self, name: &str) -> Result<FileTensor<'_>, ModelError>;
}

impl MadeFile {
    /// Gives a place to each of some matrices, by their names and bytes.
    pub(crate) fn of(matrices: impl Iterator<Item = (String, u64)>) -> Self {
        let mut made = Self::default();
        let mut end = 0_u64;
        for (name, len) in matrices {
            let Some(next) = end.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE as u64)) else {
                continue;
            };
            made.names.insert(end, name.clone());
            made.places.insert(name, Extent { file: MADE_FILE, offset: end, len });
            end = next;
        }
        made
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn extent(&self, name: &str) -> Option<Extent> {
        self.places.get(name).copied()
    }

    /// Reads from the file. Bytes between matrices and behind the last one are not changed.
    fn read(&self, source: &dyn UsedTensors, offset: u64, into: &mut [u8]) -> Result<(), ModelError> {
        let end = offset.saturating_add(into.len() as u64);
        let first = self.names.range(..=offset).next_back().map_or(0, |(at, _)| *at);
        for (at, name) in self.names.range(first..end) {
            let len = self.places.get(name).map_or(0, |extent| extent.len);
            let (from, to) = (offset.max(*at), end.min(at + len));
            if from >= to {
                continue;
            }
            let (within, place) = (from - at..to - at, (from - offset) as usize..(to - offset) as usize);
            if let Some(into) = into.get_mut(place) {
                made(source, name, within, into)?;
            }
        }
        Ok(())
    }
}

/// Makes some bytes of a matrix, with no more of its rows than they lie in.
fn made(source: &dyn UsedTensors, name: &str, within: Range<u64>, into: &mut [u8]) -> Result<(), ModelError> {
    let bad = |what: &str| ModelError::Tensor { name: name.to_owned(), what: what.to_owned() };
    let tensor = source.tensor(name)?;
    let row_bytes = tensor.kind.bytes_of(tensor.columns() as u64).filter(|bytes| *bytes > 0);
    let row_bytes = row_bytes.ok_or_else(|| bad("has no whole blocks in a row"))?;
    let rows = within.start / row_bytes..within.end.div_ceil(row_bytes);
    let skipped = (within.start - rows.start * row_bytes) as usize;
    let rows = tensor.part(rows.start as usize..rows.end as usize);
    let bytes = rows.ok_or_else(|| bad("has no such rows"))?.bytes()?;
    let bytes = bytes.get(skipped..skipped + into.len()).ok_or_else(|| bad("has fewer bytes than its shape"))?;
    into.copy_from_slice(bytes);
    Ok(())
}

/// A model's files and the file of tensors that are made of them.
pub(crate) struct MadeStore {
    made: Arc<MadeFile>,
    source: Box<dyn UsedTensors>,
    files: Arc<dyn WeightStore>,
}

impl MadeStore {
    /// A store over the store of the files.
    pub(crate) fn new(made: Arc<MadeFile>, source: Box<dyn UsedTensors>, files: Arc<dyn WeightStore>) -> Self {
        Self { made, source, files }
    }
}

impl WeightStore for MadeStore {
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), WeightStoreError> {
        if run.extent.file != MADE_FILE {
            return self.files.read(run, into);
        }
        let read = self.made.read(self.source.as_ref(), run.extent.offset, into);
        read.map_err(|error| WeightStoreError::Made(error.to_string()))
    }

    fn describe(&self) -> String {
        format!("tensors made of mapped files, {}", self.files.describe())
    }
}
