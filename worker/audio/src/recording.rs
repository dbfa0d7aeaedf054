//! Samples of one channel as speech models hear them.

use std::time::Duration;

/// Samples per second of recordings.
pub const RATE: u32 = 16_000;

/// Sound of one channel at [`RATE`]. Samples have 16 bits, as the references of speech models read files: an hour takes
/// 110 MiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoundRecording {
    /// The samples.
    pub samples: Vec<i16>,
}

impl SoundRecording {
    /// The length in time.
    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.samples.len() as f64 / f64::from(RATE))
    }
}
