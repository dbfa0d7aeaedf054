//! The interface of a kind of hardware to which blocks can be copied. It consists of queues and marks; blocks are not
//! known here.

use std::hash::Hash;

use model_boss_weights::store::HostBuffer;

use crate::residency::streamer::{Capabilities, StreamFault};

/// The operations of a device that blocks can be copied to. Calls on queues return at once; what they ask for is done
/// in their order.
pub trait CopyDriver: Send + Sync + 'static {
    /// The type and shape of a piece, which decide its memory and its computation.
    type Class: Clone + Eq + Hash + Send + Sync;
    /// Memory on the device for one piece.
    type Memory: Send + Sync;
    /// A mark in a queue.
    type Event: Send + Sync;

    /// The device's capabilities.
    fn capabilities(&self) -> Capabilities;

    /// Host memory that it copies from at its best.
    fn host_buffer(&self, bytes: usize) -> Result<HostBuffer, StreamFault>;

    /// Memory for a piece of that class, zeroed: both where the compute queue has come so far. Dropping it is in the
    /// order of that queue too.
    fn allocate(&self, class: &Self::Class) -> Result<Self::Memory, StreamFault>;

    /// An event that is not recorded yet: waiting for it returns at once. A `timed` event knows when it was reached;
    /// the host waits only for those.
    fn event(&self, timed: bool) -> Result<Self::Event, StreamFault>;

    /// Asks the copy queue to fill a piece. `from` has to stay as it is until an event behind it is reached.
    fn copy(&self, from: &[u8], to: &Self::Memory) -> Result<(), StreamFault>;

    /// Puts a mark behind everything that was asked of a queue.
    fn record(&self, event: &Self::Event, queue: Queue) -> Result<(), StreamFault>;

    /// Lets everything that is asked of a queue from now on wait for a mark.
    fn wait(&self, queue: Queue, event: &Self::Event) -> Result<(), StreamFault>;

    /// Waits until a mark is reached.
    fn finish(&self, event: &Self::Event) -> Result<(), StreamFault>;

    /// Seconds from one timed mark to another, both of which were set. Waits for both.
    fn seconds(&self, from: &Self::Event, to: &Self::Event) -> Result<f64, StreamFault>;
}

/// The device's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Copies from host memory.
    Copy,
    /// Computes.
    Compute,
}
