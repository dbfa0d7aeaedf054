//! Parler-TTS (Lacombe et al., 2024; Lyth and King, 2024, arXiv 2402.01912), as its package keeps it: an encoder reads
//! the description of a voice, a decoder writes frames of codes, and the codec DAC makes sound of them.

mod delayed_frames;
mod described_layer;
mod frame_writer;
mod parler_generation;
mod parler_speaker;
mod parler_spec;
mod parler_text;
mod sounding;

pub(super) use parler_speaker::load;
