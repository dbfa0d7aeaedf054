//! The autoencoder between pictures and latent ones (Kingma and Welling, 2013, arXiv 1312.6114).

mod autoencoder;
mod vae_blocks;
mod vae_spec;

pub(super) use autoencoder::Autoencoder;
pub(super) use vae_spec::VaeSpec;
