//! Products on the CPU with matrices in their stored form: the layouts, and the inner loops. Models and files are not
//! used here.

pub(crate) mod activations;
mod floats;
pub(crate) mod halves;
pub(crate) mod kernel;
pub(crate) mod lanes;
pub(crate) mod layout;
pub(crate) mod product;
pub(crate) mod quantised;
