//! Streaming on the CPU: the disk writes into the buffers that products read from. No byte is copied, and bytes that
//! products need in another order are rearranged in place.

use std::collections::HashMap;

use bytes::Bytes;
use model_boss_engine::residency::schedule::LayerBlockId;
use model_boss_engine::residency::{Capabilities, Loan, StreamDevice, StreamFault};
use model_boss_weights::store::Reads;

use crate::matrix::Matrix;
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

/// Rearranges the bytes of a read in place, so that products can use them.
pub(crate) fn arrange(reads: &Reads, pieces: &[MatrixPiece], buffer: &mut [u8], check: bool) -> Result<(), String> {
    for (place, piece) in reads.places().iter().zip(pieces) {
        let bytes = buffer.get_mut(place.clone()).unwrap_or_default();
        // Bytes from an index are arranged already, with their scales in other places. They were checked when the index
        // was written.
        if check && !piece.arranged {
            piece.layout.check(bytes).map_err(|what| format!("tensor '{}' {what}", piece.name))?;
        }
        if !piece.arranged {
            piece.layout.arrange(bytes);
        }
    }
    Ok(())
}

/// The matrices of arranged bytes, by name.
pub(crate) fn matrices(
    reads: &Reads,
    pieces: &[MatrixPiece],
    bytes: &Bytes,
) -> Result<HashMap<String, Matrix>, String> {
    let matrix = |(place, piece): (&std::ops::Range<usize>, &MatrixPiece)| {
        let kernel = piece.layout.kernel(bytes.slice(place.clone()));
        let kernel = kernel.map_err(|what| format!("tensor '{}' {what}", piece.name))?;
        Ok((piece.name.clone(), Matrix::Stored(kernel)))
    };
    reads.places().iter().zip(pieces).map(matrix).collect()
}
