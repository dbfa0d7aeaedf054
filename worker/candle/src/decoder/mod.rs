//! The decoder: stages of layers, each on a device, and the sequences that pass through them.

pub(crate) mod recorded;
pub(crate) mod source;
pub(crate) mod spec_decoder;
pub(crate) mod stage;
pub(crate) mod step_images;
pub(crate) mod tower;
