//! Storage that blocks are read from, and devices that they are placed on, as streaming sees them.

use std::time::Duration;

use model_boss_protocol::ByteCount;
use model_boss_weights::store::HostBuffer;

use super::ring::Loan;
use crate::residency::schedule::LayerBlockId;

/// Reads blocks into host memory. It has a thread of its own.
pub trait BlockSource: Send + 'static {
    /// Fills a buffer with a block's bytes; returns their number.
    fn read(&mut self, block: LayerBlockId, into: &mut [u8]) -> Result<u64, StreamFault>;
}

/// Places read blocks where they are computed with. It has a thread of its own. The trait contains all that a kind of
/// hardware has to offer for streaming.
pub trait StreamDevice: Send + 'static {
    /// A block's weights, ready to compute with. Dropping it frees their place.
    type Block: Send + Sync + 'static;

    /// The device's capabilities.
    fn capabilities(&self) -> Capabilities;

    /// Memory that reads go to: what the device can best copy from.
    fn host_buffer(&mut self, bytes: usize) -> Result<HostBuffer, StreamFault> {
        HostBuffer::new(bytes).map_err(|error| {
            StreamFault::Step(format!("no memory for a buffer of {}: {error}", ByteCount(bytes as u64)))
        })
    }

    /// The number of a block's bytes that it holds in host memory itself. Such a block is not read, and the loan that
    /// comes with it is empty. Asked once, before streaming begins.
    fn holds(&self, _block: LayerBlockId) -> Option<u64> {
        None
    }

    /// Asks for the copies of a block that the device holds itself, before it is placed, and returns whether they are
    /// under way. So one block's copies follow those of another without a wait for this thread. Blocks are placed in
    /// the order in which this was asked.
    fn begin(&mut self, _block: LayerBlockId) -> bool {
        false
    }

    /// Copies or rearranges a block; returns when it can be computed with. Dropping `from` frees it for the next
    /// read; where host memory is the device's own, the block keeps it.
    fn place(&mut self, block: LayerBlockId, from: Loan) -> Result<Self::Block, StreamFault>;

    /// The time that the device worked on the block placed last, where the call also waited for the computation before
    /// it. Absent where the call took as long as the work.
    fn worked(&self) -> Option<Duration> {
        None
    }
}

/// The capabilities of a kind of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Capabilities {
    /// Computes in host memory: what was read need not be copied.
    pub host_memory: bool,
    /// Copies from pinned host memory beside computing.
    pub pinned_host: bool,
}

/// The reason why a block did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// The step fails; the next may work.
    Step(String),
    /// The device cannot be used any more.
    Fatal(String),
    /// The request that waited for it was cancelled.
    Interrupted,
}
