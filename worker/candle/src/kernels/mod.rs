//! Products on the CPU with matrices as they are stored: the layouts, and the inner loops. Knows no model and no files.

pub(crate) mod activations;
mod floats;
pub(crate) mod halves;
mod instructions;
pub(crate) mod kernel;
pub(crate) mod layout;
pub(crate) mod product;
pub(crate) mod quantised;
mod unpacked;
