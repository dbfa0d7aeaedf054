//! Sound of requests and answers. Files of clients become samples ([`decode`]), and samples become files ([`encode`]).
//! Between them: spectrograms as speech models read them, and the quiet places at which long recordings are cut.
//! The crate knows no model, no device and no HTTP.
//!
//! The way of a request's file: [`decode::decode`] to a [`SoundRecording`], [`cuts`] to chunks,
//! and [`MelFilters`] to the spectrogram of each chunk.
#![allow(clippy::arithmetic_side_effects, reason = "counts of samples; nothing here adds to a clock's moment")]

pub mod decode;
pub mod encode;
mod loudness;
mod mel;
mod recording;

pub use loudness::{ChunkPlan, cuts};
pub use mel::{MelFilters, MelShape};
pub use recording::{RATE, SoundRecording};
