//! The executor: runs a [`Schedule`] over a block source and a device. It has two threads, so that storage is read
//! while earlier blocks are placed, and both happen while the step computes. The content of blocks is not known here.

mod device;
mod executor;
mod monitor;
mod ring;
#[cfg(test)]
mod tests;
mod threads;

pub use device::{BlockSource, Capabilities, StreamDevice, StreamFault};
pub use executor::{StreamError, Streamer};
pub use monitor::{Adapted, Monitor, ResidencySummary};
pub use ring::Loan;
