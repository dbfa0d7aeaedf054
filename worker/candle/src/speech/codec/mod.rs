//! Codecs: from the numbers of codebooks to samples.

mod codebooks;
mod mimi;
mod mimi_spec;
mod sea_net;

pub(super) use mimi::Mimi;
pub(super) use mimi_spec::MimiSpec;
