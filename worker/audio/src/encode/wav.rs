//! The head of a WAV file whose length is not known yet.

/// Size of a part whose end is the end of the file, as ffmpeg and sox write it to pipes.
const UNKNOWN: u32 = u32::MAX;

/// The head of a file of one channel with samples of 16 bits.
pub(super) fn head(rate: u32) -> Vec<u8> {
    let mut head = Vec::with_capacity(44);
    head.extend_from_slice(b"RIFF");
    head.extend_from_slice(&UNKNOWN.to_le_bytes());
    head.extend_from_slice(b"WAVEfmt ");
    head.extend_from_slice(&16_u32.to_le_bytes());
    // Whole numbers, one channel.
    head.extend_from_slice(&1_u16.to_le_bytes());
    head.extend_from_slice(&1_u16.to_le_bytes());
    head.extend_from_slice(&rate.to_le_bytes());
    head.extend_from_slice(&rate.saturating_mul(2).to_le_bytes());
    head.extend_from_slice(&2_u16.to_le_bytes());
    head.extend_from_slice(&16_u16.to_le_bytes());
    head.extend_from_slice(b"data");
    head.extend_from_slice(&UNKNOWN.to_le_bytes());
    head
}
