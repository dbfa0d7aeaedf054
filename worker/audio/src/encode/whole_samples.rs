//! Samples of 16 bits.

/// The largest sample of 16 bits on the positive side.
const LARGEST: f32 = 32_767.0;

/// A sample between -1 and 1 as a whole number; louder ones are cut, and what is no number is silence.
pub(super) fn whole(sample: f32) -> i16 {
    // The cast takes NaN to 0 and keeps within the range.
    (sample * LARGEST).round() as i16
}
