//! Streaming to a device with memory of its own. Blocks are copied from host memory into slots that are allocated
//! once, on a queue beside the one that computes (RS-2, RS-3). A [`CopyDriver`] has the operations of a kind of
//! hardware. This folder chooses the slot of each block, and orders copies and computations.
//!
//! Work is queued and done later, so two orders have to be kept, each by an event:
//!
//! - *ready*: the block is copied; computing waits for this event before it uses the slot.
//! - *free*: all computations with the slot are done; the next copy into it waits for this event.
//!
//! A block has pieces, and pieces of the same type and shape are of one *class*. A slot has memory for as many pieces
//! of each class as any block has, so that every block fits every slot. No piece is smaller than its memory, so no
//! byte of an earlier piece remains after it.

mod clock;
mod device;
mod driver;
#[cfg(test)]
mod simulated_driver;
mod slots;
#[cfg(test)]
mod tests;

pub use clock::StepClock;
pub use device::{BlockCheck, BlockCopy, CopyDevice, CopyPiece};
pub use driver::{CopyDriver, Queue};
pub use slots::{DeviceSlot, SlotNeeds};
