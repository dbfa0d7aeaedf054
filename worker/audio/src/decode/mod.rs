//! Decoding: files of clients become samples, within limits. The format is found by a file's content.
//!
//! Read are WAV, RF64 and AIFF, FLAC, MP3 (and MP2, MP1), Ogg with Vorbis, Opus or FLAC, MP4 (m4a) with AAC-LC or
//! ALAC, AAC in ADTS, and Matroska or WebM with any of these.

mod error;
mod file;
mod large_wave;
mod limits;
mod mixed;
mod opus;
mod resample;
mod tracks;

pub use error::AudioError;
pub use file::decode;
pub use limits::AudioLimits;
