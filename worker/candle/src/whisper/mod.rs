//! Whisper (Radford et al., 2022, arXiv 2212.04356): an encoder that hears a window of sound, and a decoder that writes
//! its text. All sizes, those of Distil-Whisper and turbo included; safetensors of `transformers`, and GGUF.

mod decoder;
mod encoder;
mod generation;
mod kv;
mod model;
mod names;
mod spec;

pub use model::load_speech;
