//! Streaming on the CPU: the disk writes into the buffers that products read from. Nothing is copied; what has to stand
//! in another order is put there in place. Knows bytes, no model.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use model_boss_engine::residency::schedule::BlockId;
use model_boss_engine::residency::{Capabilities, Device, Fault, Loan, Source};
use model_boss_weights::store::{Reads, StoreError, WeightStore, read_all};

use super::table::Piece;
use crate::matrix::Matrix;

/// The matrices of a block, by name.
pub(crate) struct Block {
    matrices: HashMap<String, Matrix>,
    /// Dropped behind them.
    lease: Option<Box<dyn Lease>>,
}

/// A hold on the memory that matrices are in.
pub(crate) trait Lease: Send + Sync {
    /// Has to be called before anything is computed with them.
    fn begin_use(&self) -> Result<(), Fault>;
}

impl Block {
    /// In memory that is the matrices' own.
    pub(crate) fn new(matrices: HashMap<String, Matrix>) -> Self {
        Self { matrices, lease: None }
    }

    /// In memory that goes to others behind them.
    #[cfg(any(test, feature = "cuda"))]
    pub(crate) fn leased(matrices: HashMap<String, Matrix>, lease: Box<dyn Lease>) -> Self {
        Self { matrices, lease: Some(lease) }
    }

    pub(crate) fn matrix(&self, name: &str) -> Option<&Matrix> {
        self.matrices.get(name)
    }

    /// Has to be called before anything is computed with it.
    pub(crate) fn begin_use(&self) -> Result<(), Fault> {
        self.lease.as_ref().map_or(Ok(()), |lease| lease.begin_use())
    }
}

/// Reads blocks from a store.
pub(crate) struct StoreSource {
    pub(crate) store: Arc<dyn WeightStore>,
    /// By block.
    pub(crate) reads: Vec<Reads>,
}

impl Source for StoreSource {
    fn read(&mut self, block: BlockId, into: &mut [u8]) -> Result<u64, Fault> {
        let Some(reads) = self.reads.get(block.0) else { return Err(Fault::Step(format!("no block {}", block.0))) };
        read_all(self.store.as_ref(), reads, into).map_err(|error| fault(&error))?;
        Ok(reads.runs().iter().map(|run| run.extent.len).sum())
    }
}

/// What a store's error means: a file that was changed stays so.
pub(crate) fn fault(error: &StoreError) -> Fault {
    match error {
        StoreError::Changed { .. } => Fault::Fatal(error.to_string()),
        StoreError::Read { .. }
        | StoreError::NotDirect { .. }
        | StoreError::Memory { .. }
        | StoreError::NoFile { .. }
        | StoreError::Panicked
        | StoreError::TooShort { .. } => Fault::Step(error.to_string()),
    }
}

/// The CPU as a device to stream through: its memory is the host's.
pub(crate) struct CpuDevice {
    blocks: Vec<(Reads, Vec<Piece>)>,
    /// By block: whether its numbers were looked at. Files do not change while they are read, so once is enough.
    checked: Vec<bool>,
}

impl CpuDevice {
    pub(crate) fn new(blocks: Vec<(Reads, Vec<Piece>)>) -> Self {
        let checked = vec![false; blocks.len()];
        Self { blocks, checked }
    }
}

impl Device for CpuDevice {
    type Block = Block;

    fn capabilities(&self) -> Capabilities {
        Capabilities { host_memory: true, ..Capabilities::default() }
    }

    fn place(&mut self, block: BlockId, mut from: Loan) -> Result<Block, Fault> {
        let (Some((reads, pieces)), Some(checked)) = (self.blocks.get(block.0), self.checked.get_mut(block.0)) else {
            return Err(Fault::Step(format!("no block {}", block.0)));
        };
        arrange(reads, pieces, &mut from, !*checked).map_err(Fault::Step)?;
        *checked = true;
        matrices(reads, pieces, &Bytes::from_owner(from)).map(Block::new).map_err(Fault::Step)
    }
}

/// Makes what was read ready to compute with, where it lies.
pub(crate) fn arrange(reads: &Reads, pieces: &[Piece], buffer: &mut [u8], check: bool) -> Result<(), String> {
    for (place, piece) in reads.places().iter().zip(pieces) {
        let bytes = buffer.get_mut(place.clone()).unwrap_or_default();
        // Arranged bytes have their scales elsewhere; they were looked at when they were arranged.
        if check && !piece.arranged {
            piece.layout.check(bytes).map_err(|what| format!("tensor '{}' {what}", piece.name))?;
        }
        if !piece.arranged {
            piece.layout.arrange(bytes);
        }
    }
    Ok(())
}

/// Matrices over arranged bytes, by name.
pub(crate) fn matrices(reads: &Reads, pieces: &[Piece], bytes: &Bytes) -> Result<HashMap<String, Matrix>, String> {
    let matrix = |(place, piece): (&std::ops::Range<usize>, &Piece)| {
        let kernel = piece.layout.kernel(bytes.slice(place.clone()));
        let kernel = kernel.map_err(|what| format!("tensor '{}' {what}", piece.name))?;
        Ok((piece.name.clone(), Matrix::Stored(kernel)))
    };
    reads.places().iter().zip(pieces).map(matrix).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use model_boss_weights::store::{Extent, Run};

    use super::*;

    /// A disk that fails when it is told to.
    #[derive(Default)]
    struct Failing(AtomicBool);

    impl WeightStore for Failing {
        fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), StoreError> {
            if self.0.swap(false, Ordering::SeqCst) {
                let source = std::io::Error::from_raw_os_error(5);
                return Err(StoreError::Read { path: "large.gguf".into(), offset: run.extent.offset, source });
            }
            into.fill(7);
            Ok(())
        }

        fn describe(&self) -> String {
            "failing".to_owned()
        }
    }

    #[test]
    fn a_read_error_fails_one_step_with_the_file_and_the_place() {
        let store = Arc::new(Failing::default());
        let reads = vec![Reads::of(&[Extent { file: 0, offset: 40_960, len: 100 }])];
        let mut source = StoreSource { store: Arc::clone(&store) as Arc<dyn WeightStore>, reads };
        let mut buffer = [0; 4_096];
        store.0.store(true, Ordering::SeqCst);
        match source.read(BlockId(0), &mut buffer) {
            Err(Fault::Step(what)) => assert!(what.contains("large.gguf") && what.contains("byte 40960"), "{what}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(source.read(BlockId(0), &mut buffer), Ok(4_096));
        let changed = StoreError::Changed { path: "large.gguf".into() };
        assert!(matches!(fault(&changed), Fault::Fatal(what) if what.contains("large.gguf")));
    }
}
