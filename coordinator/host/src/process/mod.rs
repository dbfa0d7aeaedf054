//! Processes of ours, started so that none of them outlives the coordinator.

mod spawner;

pub use spawner::{Launch, Spawner, Started};
