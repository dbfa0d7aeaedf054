//! Raw samples.

use super::whole_samples::whole;

/// Samples of 16 bits, the low byte first.
pub(super) fn bytes(samples: &[f32]) -> Vec<u8> {
    samples.iter().flat_map(|sample| whole(*sample).to_le_bytes()).collect()
}
