//! The judgements: pure functions from the facts of one area to findings. Probes collect the facts.

pub(crate) mod clock;
pub(crate) mod configuration;
pub(crate) mod door;
pub(crate) mod gpu;
pub(crate) mod hub;
pub(crate) mod leases;
pub(crate) mod limits;
pub(crate) mod memory;
pub(crate) mod models;
pub(crate) mod processor;
pub(crate) mod programs;
pub(crate) mod sandbox;
pub(crate) mod secrets;
pub(crate) mod state;
pub(crate) mod surroundings;
