//! Models larger than a device's memory: streamed layers (RS-1 to RS-11).
//!
//! These parts are pure. [`plan`](mod@plan) decides which layers stay and which are streamed, [`split`](mod@split)
//! which device gets which, and [`schedule`] their order. [`predict`] computes how long a step takes, and [`adapt`] the
//! look-ahead once steps were measured. The [`Streamer`] acts: one thread reads, one places what was read on the
//! device, and the step takes what is there. Blocks are read by a [`BlockSource`] and placed by a [`StreamDevice`].
//! [`device_copy`] has the one for devices with memory of their own. [`experts`] streams single experts instead of
//! whole layers.

pub mod adapt;
pub mod device_copy;
mod expert_report;
pub mod experts;
pub mod plan;
pub mod predict;
pub mod schedule;
#[cfg(test)]
mod simulated;
pub mod split;
mod streamer;
mod timeline;

pub use expert_report::{ExpertSummary, ExpertTotals};
pub use streamer::{
    Adapted, BlockSource, Capabilities, Loan, Monitor, ResidencySummary, StreamDevice, StreamError, StreamFault,
    Streamer,
};
pub use timeline::{Compute, Copy, LayerReport, StepTimeline, StreamTotals, TimeSpan};
