//! An encoder of any format: samples of any rate in, bytes of a file out.

use super::error::EncodeSoundError;
use super::flac::FlacStream;
use super::format::SoundFormat;
use super::ogg_opus::OpusStream;
use super::resampler::StreamResampler;
use super::{pcm, wav};

/// Writes sound of one channel in a format, block by block.
pub struct SoundEncoder {
    resampler: StreamResampler,
    stream: FormatStream,
    /// Bytes that go before those of the next block.
    head: Vec<u8>,
}

enum FormatStream {
    /// Samples as they are, behind a head or without one.
    Plain,
    Flac(Box<FlacStream>),
    Opus(Box<OpusStream>),
}

impl SoundEncoder {
    /// An encoder of samples of this rate.
    pub fn new(format: SoundFormat, rate: u32) -> Result<Self, EncodeSoundError> {
        let own = format.rate(rate);
        let (stream, head) = match format {
            SoundFormat::Pcm => (FormatStream::Plain, Vec::new()),
            SoundFormat::Wav => (FormatStream::Plain, wav::head(own)),
            SoundFormat::Flac => (FormatStream::Flac(Box::new(FlacStream::new(own)?)), FlacStream::head(own)),
            SoundFormat::Opus => (FormatStream::Opus(Box::new(OpusStream::new(own)?)), Vec::new()),
        };
        Ok(Self { resampler: StreamResampler::new(rate, own)?, stream, head })
    }

    /// The bytes that are complete with these samples between -1 and 1; there may be none.
    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeSoundError> {
        let samples = self.resampler.push(samples)?;
        let mut bytes = std::mem::take(&mut self.head);
        bytes.extend(self.stream.push(&samples)?);
        Ok(bytes)
    }

    /// The end of the file.
    pub fn finish(self) -> Result<Vec<u8>, EncodeSoundError> {
        let Self { resampler, mut stream, head: mut bytes } = self;
        bytes.extend(stream.push(&resampler.finish()?)?);
        bytes.extend(match stream {
            FormatStream::Plain => Vec::new(),
            FormatStream::Flac(flac) => flac.finish()?,
            FormatStream::Opus(opus) => opus.finish()?,
        });
        Ok(bytes)
    }
}

impl FormatStream {
    fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeSoundError> {
        match self {
            Self::Plain => Ok(pcm::bytes(samples)),
            Self::Flac(flac) => flac.push(samples),
            Self::Opus(opus) => opus.push(samples),
        }
    }
}
