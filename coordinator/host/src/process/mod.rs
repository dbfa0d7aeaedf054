//! Processes that the coordinator starts, in such a way that none of them outlives the coordinator.

mod spawner;

pub use spawner::{Spawner, StartedProgram, WorkerLaunch};
