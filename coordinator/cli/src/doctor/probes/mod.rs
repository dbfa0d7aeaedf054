//! The probes: they read the facts of one area each, and judge nothing. None changes anything or loads a model.

pub(crate) mod clock;
pub(crate) mod door;
pub(crate) mod folders;
pub(crate) mod gpu;
pub(crate) mod hub;
pub(crate) mod machine;
pub(crate) mod memory;
pub(crate) mod models;
pub(crate) mod processor;
pub(crate) mod programs;
pub(crate) mod secrets;
pub(crate) mod surroundings;
