//! A store that has a model's quantised matrices in blocks, beside its files.

use std::sync::Arc;

use super::model::QuantisedModel;
use crate::store::{Run, WeightStore, WeightStoreError};

/// The number of the file of blocks. No model has as many files.
pub const BLOCKS_FILE: usize = usize::MAX;

/// A model's files, and the file of blocks that is made of them. Blocks are made of mapped files.
pub struct QuantisedStore {
    model: Arc<QuantisedModel>,
    files: Arc<dyn WeightStore>,
}

impl QuantisedStore {
    /// A store over the model's files.
    pub fn new(model: Arc<QuantisedModel>, files: Arc<dyn WeightStore>) -> Self {
        Self { model, files }
    }
}

impl WeightStore for QuantisedStore {
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), WeightStoreError> {
        if run.extent.file != BLOCKS_FILE {
            return self.files.read(run, into);
        }
        self.model.read(run.extent.offset, into).map_err(|error| WeightStoreError::Quantised(error.to_string()))
    }

    fn describe(&self) -> String {
        format!("blocks made of mapped files, {}", self.files.describe())
    }
}
