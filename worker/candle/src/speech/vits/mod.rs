//! VITS (Kim et al., 2021, arXiv 2106.06103), as `transformers` keeps it: an encoder of texts, durations of symbols, a
//! flow from texts to sound's latents, and HiFi-GAN (Kong et al., 2020, arXiv 2010.05646) from those to samples.

mod attention;
mod durations;
mod flow;
mod hifi_gan;
mod separable;
mod spec;
mod spline;
mod symbols;
mod text_encoder;
mod vits_speaker;
mod wavenet;

pub(super) use vits_speaker::load;
