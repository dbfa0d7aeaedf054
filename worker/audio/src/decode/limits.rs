//! Limits on what a file may become.

use std::time::Duration;

use super::error::AudioError;

/// Limits on what a file may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AudioLimits {
    /// The longest sound.
    pub longest: Duration,
}

impl Default for AudioLimits {
    /// Four hours: 440 MiB of samples.
    fn default() -> Self {
        Self { longest: Duration::from_secs(4 * 3600) }
    }
}

/// The most channels that are mixed.
const MOST_CHANNELS: usize = 32;

/// Samples per second of files.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// Refuses channels beyond those that are mixed.
pub(super) fn check_channels(channels: usize) -> Result<(), AudioError> {
    if (1..=MOST_CHANNELS).contains(&channels) {
        return Ok(());
    }
    Err(AudioError::Unsupported { what: format!("{channels} channels") })
}

/// Refuses rates beyond those that are resampled.
pub(super) fn check_rate(rate: u32) -> Result<(), AudioError> {
    if RATES.contains(&rate) {
        return Ok(());
    }
    Err(AudioError::Unsupported { what: format!("{rate} samples per second") })
}
