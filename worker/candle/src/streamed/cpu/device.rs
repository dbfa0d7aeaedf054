//! Streaming on the CPU: the disk writes into the buffers that products read from. No byte is copied, and bytes that
//! products need in another order are rearranged in place.

use bytes::Bytes;
use model_boss_engine::residency::schedule::LayerBlockId;
use model_boss_engine::residency::{Capabilities, Loan, StreamDevice, StreamFault};
use model_boss_weights::store::Reads;

use crate::streamed::arranged::{arrange, matrices};
use crate::streamed::block::StreamedBlock;
use crate::streamed::table::MatrixPiece;

/// The CPU as a device to stream through: its memory is the host's.
pub(crate) struct CpuDevice {
    blocks: Vec<(Reads, Vec<MatrixPiece>)>,
    /// Whether each block's numbers were checked. Files do not change while they are read, so one check is enough.
    checked: Vec<bool>,
}

impl CpuDevice {
    pub(crate) fn new(blocks: Vec<(Reads, Vec<MatrixPiece>)>) -> Self {
        let checked = vec![false; blocks.len()];
        Self { blocks, checked }
    }
}

impl StreamDevice for CpuDevice {
    type Block = StreamedBlock;

    fn capabilities(&self) -> Capabilities {
        Capabilities { host_memory: true, ..Capabilities::default() }
    }

    fn place(&mut self, block: LayerBlockId, mut from: Loan) -> Result<StreamedBlock, StreamFault> {
        let (Some((reads, pieces)), Some(checked)) = (self.blocks.get(block.0), self.checked.get_mut(block.0)) else {
            return Err(StreamFault::Step(format!("no block {}", block.0)));
        };
        arrange(reads, pieces, &mut from, !*checked).map_err(StreamFault::Step)?;
        *checked = true;
        matrices(reads, pieces, &Bytes::from_owner(from)).map(StreamedBlock::new).map_err(StreamFault::Step)
    }
}
