//! A block of streamed layers in memory: its matrices, and the hold on the memory that they are in.

use std::collections::HashMap;

use model_boss_engine::residency::StreamFault;

use crate::matrix::Matrix;

/// The matrices of a block, by name.
pub(crate) struct StreamedBlock {
    matrices: HashMap<String, Matrix>,
    /// The memory's lease, dropped after the matrices that use it.
    lease: Option<Box<dyn MemoryHold>>,
}

/// A hold on the memory that matrices are in.
pub(crate) trait MemoryHold: Send + Sync {
    /// Begins the use of the block, before any computation with it.
    fn begin_use(&self) -> Result<(), StreamFault>;
}

impl StreamedBlock {
    /// A block in memory of its own.
    pub(crate) fn new(matrices: HashMap<String, Matrix>) -> Self {
        Self { matrices, lease: None }
    }

    /// A block in leased memory, which dropping `lease` returns.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn leased(matrices: HashMap<String, Matrix>, lease: Box<dyn MemoryHold>) -> Self {
        Self { matrices, lease: Some(lease) }
    }

    pub(crate) fn matrix(&self, name: &str) -> Option<&Matrix> {
        self.matrices.get(name)
    }

    /// Begins the use of the block, before any computation with it.
    pub(crate) fn begin_use(&self) -> Result<(), StreamFault> {
        self.lease.as_ref().map_or(Ok(()), |lease| lease.begin_use())
    }
}
