//! The executor: runs a [`Schedule`] over what reads and what places. Two threads, so that storage is read while what
//! was read is placed, both while the step computes. Knows blocks, not what is in them.

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
