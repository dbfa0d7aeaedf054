//! Pipelines: the parts of a model together, from a request to its pictures.

mod beginning;
mod flow_beginning;
mod flux_painter;
mod latent_noise;
mod latent_painting;
mod picture_bytes;
mod sd3_painter;
mod sd3_prompts;
mod unet_painter;
mod unet_prompts;

pub(super) use flux_painter::load_flux_painter;
pub(super) use sd3_painter::load_sd3_painter;
pub(super) use unet_painter::load_unet_painter;
