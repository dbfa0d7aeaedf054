//! Processes of ours: starting them, so that none outlives the coordinator.

mod spawner;

pub(crate) use spawner::{Launch, Spawner, Started};
