//! Opus in Ogg, Matroska or MP4 (RFC 6716, RFC 7845).

use opus_decoder::{OpusDecoder, OpusError, OpusMultistreamDecoder};
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::packet::Packet;

use super::error::AudioError;
use super::mixed::{Decoded, mix};

/// The rate that Opus is decoded at. It has no other of its own.
const OPUS_RATE: u32 = 48_000;

/// Samples of the longest packet in each channel: 120 ms.
const LONGEST_PACKET: usize = 5_760;

/// The decoder of an Opus track.
pub(super) struct OpusTrack {
    decoder: OpusStreams,
    channels: usize,
    /// Samples at the beginning that are no sound yet.
    skip: usize,
    samples: Vec<f32>,
}

enum OpusStreams {
    One(Box<OpusDecoder>),
    Many(Box<OpusMultistreamDecoder>),
}

impl OpusTrack {
    /// A decoder by a track's head.
    pub(super) fn new(sound: &AudioCodecParameters, delay: u32) -> Result<Self, AudioError> {
        let refused = |error: OpusError| AudioError::UnknownCodec(error.to_string());
        let head = sound.extra_data.as_deref().filter(|head| head.starts_with(b"OpusHead") && head.len() >= 19);
        let channels = head.map_or_else(
            || sound.channels.as_ref().map_or(1, |channels| channels.count()),
            |head| usize::from(head[9]),
        );
        super::limits::check_channels(channels)?;
        let skip = head.map_or(delay as usize, |head| usize::from(u16::from_le_bytes([head[10], head[11]])));
        let family = head.map_or(0, |head| head[18]);
        let decoder = if family == 0 {
            if channels > 2 {
                return Err(AudioError::Damaged("an Opus head of family 0 has more than two channels".to_owned()));
            }
            OpusStreams::One(Box::new(OpusDecoder::new(OPUS_RATE, channels).map_err(refused)?))
        } else {
            let cut = || AudioError::Damaged("the Opus head is too short for its channels".to_owned());
            let head = head.ok_or_else(cut)?;
            let mapping = head.get(21..21 + channels).ok_or_else(cut)?;
            let (streams, coupled) = (usize::from(head[19]), usize::from(head[20]));
            let many = OpusMultistreamDecoder::new(OPUS_RATE, channels, streams, coupled, mapping).map_err(refused)?;
            OpusStreams::Many(Box::new(many))
        };
        Ok(Self { decoder, channels, skip, samples: Vec::new() })
    }

    /// Decodes a packet.
    pub(super) fn decode(&mut self, packet: &Packet) -> Result<Decoded<'_>, AudioError> {
        self.samples.clear();
        self.samples.resize(LONGEST_PACKET * self.channels, 0.0);
        if packet.data.is_empty() {
            return Err(AudioError::Damaged("an Opus packet is empty".to_owned()));
        }
        let decoded = match &mut self.decoder {
            OpusStreams::One(decoder) => decoder.decode_float(&packet.data, &mut self.samples, false),
            OpusStreams::Many(decoder) => decoder.decode_float(&packet.data, &mut self.samples, false),
        };
        let count = decoded.map_err(|error| AudioError::Damaged(error.to_string()))?;
        self.samples.truncate(count * self.channels);
        mix(&mut self.samples, self.channels);
        let skipped = self.skip.min(self.samples.len());
        self.skip -= skipped;
        // The last packet of a stream is filled up behind its end.
        let end = self.samples.len().saturating_sub(usize::try_from(packet.trim_end.get()).unwrap_or(0));
        Ok(Decoded { rate: OPUS_RATE, mono: &self.samples[skipped.min(end)..end] })
    }
}
