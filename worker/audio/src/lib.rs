//! Sound of requests and answers. Files of clients become samples ([`decode`]), and samples become files ([`encode`]).
//! The crate knows no model, no device and no HTTP.
#![allow(clippy::arithmetic_side_effects, reason = "counts of samples; nothing here adds to a clock's moment")]

pub mod decode;
pub mod encode;
mod sound;

pub use sound::Sound;
