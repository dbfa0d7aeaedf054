//! Samples of one packet, mixed to one channel.

/// Samples of one packet.
pub(super) struct Decoded<'a> {
    pub(super) rate: u32,
    /// The mean of all channels.
    pub(super) mono: &'a [f32],
}

/// Mixes samples that lie channel beside channel, in place. Numbers that are none become silence.
pub(super) fn mix(samples: &mut Vec<f32>, channels: usize) {
    let count = samples.len() / channels;
    for at in 0..count {
        let sum: f32 = samples[at * channels..(at + 1) * channels].iter().sum();
        let mean = sum / channels as f32;
        samples[at] = if mean.is_finite() { mean } else { 0.0 };
    }
    samples.truncate(count);
}
