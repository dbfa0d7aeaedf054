//! The network that finds the noise in a picture (Rombach et al., 2022, arXiv 2112.10752): blocks of convolutions from
//! large to small and back, with attention to a text.

mod text_blocks;
mod unet_block;
mod unet_model;
mod unet_spec;

pub(super) use unet_model::{Conditions, Unet};
pub(super) use unet_spec::UnetSpec;
