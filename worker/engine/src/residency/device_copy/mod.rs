//! Streaming to a device with memory of its own. Blocks are copied from host memory into slots that are allocated
//! once, on a queue beside the one that computes (RS-2, RS-3). A [`CopyDriver`] has the operations of a kind of
//! hardware. This folder chooses the slot of each block, and orders copies and computations.

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
