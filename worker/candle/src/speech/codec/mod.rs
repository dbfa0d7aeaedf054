//! Codecs: from the numbers of codebooks to samples.

mod codebooks;
mod dac;
mod dac_spec;
mod mimi;
mod mimi_spec;
mod sea_net;
mod snake;

pub(super) use dac::Dac;
pub(super) use dac_spec::DacSpec;
pub(super) use mimi::Mimi;
pub(super) use mimi_spec::MimiSpec;
