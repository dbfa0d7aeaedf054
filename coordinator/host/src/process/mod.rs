//! Processes of ours: starting them, so that none outlives the coordinator.

mod spawner;

pub use spawner::{Launch, Spawner, Started};
