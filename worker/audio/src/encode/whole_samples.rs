//! Samples of 16 bits.

/// Steps of a sample of 16 bits up to 1. Samples that were made of 16 bits become the same again.
const STEPS: f32 = 32_768.0;

/// A sample between -1 and 1 as a whole number; louder ones are cut, and what is no number is silence.
pub(super) fn whole(sample: f32) -> i16 {
    // The cast takes NaN to 0 and keeps within the range.
    (sample * STEPS).round() as i16
}
