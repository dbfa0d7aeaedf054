//! The encoder of T5 (Raffel et al., 2019, arXiv 1910.10683): a text becomes a row for each of its tokens.

mod t5_encoder;
mod t5_spec;

pub(crate) use t5_encoder::{T5Encoder, T5Texts};
pub(crate) use t5_spec::T5Spec;
