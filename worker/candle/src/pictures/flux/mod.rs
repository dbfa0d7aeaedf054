//! The transformer of FLUX.1 (Labs et al., 2025, arXiv 2506.15742): blocks of two streams, then of one.

mod flux_model;
mod flux_spec;
mod single_block;

pub(super) use flux_model::{FluxGiven, FluxModel};
pub(super) use flux_spec::FluxSpec;
