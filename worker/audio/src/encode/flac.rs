//! FLAC: a head that leaves the length open, and frames of equal length behind it (RFC 9639).

use flacenc::bitsink::ByteSink;
use flacenc::component::{BitRepr, StreamInfo};
use flacenc::config;
use flacenc::encode_fixed_size_frame;
use flacenc::error::{Verified, Verify};
use flacenc::source::{Fill, FrameBuf};

use super::error::EncodeSoundError;
use super::whole_samples::whole;

const NAME: &str = "FLAC";

/// Samples of a frame: some 170 ms of speech. A longer frame saves little.
const FRAME: usize = 4096;

/// The shortest frame that the library encodes; a shorter end is filled with silence.
const SHORTEST: usize = 32;

const BITS: usize = 16;

/// A stream of frames.
pub(super) struct FlacStream {
    config: Verified<config::Encoder>,
    info: StreamInfo,
    /// Samples that make no frame yet.
    rest: Vec<i32>,
    frames: usize,
}

impl FlacStream {
    pub(super) fn new(rate: u32) -> Result<Self, EncodeSoundError> {
        let mut config = config::Encoder::default();
        (config.multithread, config.block_size) = (false, FRAME);
        let config = config.into_verified().map_err(|(_, error)| EncodeSoundError::of(NAME, error))?;
        let info = StreamInfo::new(rate as usize, 1, BITS).map_err(|error| EncodeSoundError::of(NAME, error))?;
        Ok(Self { config, info, rest: Vec::new(), frames: 0 })
    }

    /// The mark, and the one block of metadata.
    pub(super) fn head(rate: u32) -> Vec<u8> {
        let mut head = b"fLaC".to_vec();
        // The last block of metadata, STREAMINFO, of 34 bytes.
        head.extend_from_slice(&[0x80, 0, 0, 34]);
        for _ in 0..2 {
            head.extend_from_slice(&(FRAME as u16).to_be_bytes());
        }
        // Unknown sizes of frames.
        head.extend_from_slice(&[0; 6]);
        // 20 bits of rate, 3 of channels less one, 5 of bits less one, 36 of a length that is not known.
        let packed = u64::from(rate) << 44 | ((BITS as u64 - 1) << 36);
        head.extend_from_slice(&packed.to_be_bytes());
        // No checksum of the samples.
        head.extend_from_slice(&[0; 16]);
        head
    }

    pub(super) fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeSoundError> {
        self.rest.extend(samples.iter().map(|sample| i32::from(whole(*sample))));
        let mut bytes = Vec::new();
        let mut at = 0;
        while self.rest.len() - at >= FRAME {
            bytes.extend(self.frame(at..at + FRAME)?);
            at += FRAME;
        }
        self.rest.drain(..at);
        Ok(bytes)
    }

    pub(super) fn finish(mut self) -> Result<Vec<u8>, EncodeSoundError> {
        if self.rest.is_empty() {
            return Ok(Vec::new());
        }
        if self.rest.len() < SHORTEST {
            self.rest.resize(SHORTEST, 0);
        }
        self.frame(0..self.rest.len())
    }

    fn frame(&mut self, range: std::ops::Range<usize>) -> Result<Vec<u8>, EncodeSoundError> {
        let failed = |error: &dyn std::fmt::Display| EncodeSoundError::of(NAME, error);
        let samples = &self.rest[range];
        let mut buffer = FrameBuf::with_size(1, samples.len()).map_err(|error| failed(&error))?;
        buffer.fill_interleaved(samples).map_err(|error| failed(&error))?;
        let frame = encode_fixed_size_frame(&self.config, &buffer, self.frames, &self.info);
        let frame = frame.map_err(|error| failed(&error))?;
        let mut sink = ByteSink::new();
        frame.write(&mut sink).map_err(|error| failed(&error))?;
        self.frames += 1;
        Ok(sink.into_inner())
    }
}
