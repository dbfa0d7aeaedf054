//! Samples as files, block by block: what is written of a block can be sent before the next one exists.

mod error;
mod flac;
mod format;
mod ogg_opus;
mod pcm;
mod resampler;
mod sound_encoder;
mod wav;
mod whole_samples;

pub use error::EncodeSoundError;
pub use format::SoundFormat;
pub use resampler::StreamResampler;
pub use sound_encoder::SoundEncoder;
