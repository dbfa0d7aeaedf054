//! Models larger than a device's memory: layers that come, compute and go (RS-1 to RS-11).
//!
//! [`plan`](mod@plan) says what stays and what comes, [`split`](mod@split) which device gets what, [`schedule`] in which order, [`predict`] how
//! long that takes, [`adapt`] how far to look ahead once steps were measured: these are pure. The
//! [`Streamer`] acts: one thread reads, one places what was read on the device, and the step takes what is there. What
//! reads is a [`BlockSource`], what places a [`StreamDevice`], of which [`copied`] is the one for devices with memory of their own.

pub mod adapt;
pub mod device_copy;
pub mod plan;
pub mod predict;
pub mod schedule;
#[cfg(test)]
mod simulated;
pub mod split;
mod streamer;
mod timeline;

pub use streamer::{
    Adapted, BlockSource, Capabilities, Loan, Monitor, ResidencySummary, StreamDevice, StreamError, StreamFault,
    Streamer,
};
pub use timeline::{Compute, Copy, LayerReport, StepTimeline, StreamTotals, TimeSpan};
