//! Pipelines: the parts of a model together, from a request to its pictures.

mod beginning;
mod latent_noise;
mod latent_painting;
mod picture_bytes;
mod unet_painter;
mod unet_prompts;

pub(super) use unet_painter::load_unet_painter;
