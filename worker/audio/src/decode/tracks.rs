//! The decoder of one track, whose packets become samples of one channel.

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::Track;
use symphonia::core::packet::Packet;

use super::error::AudioError;
use super::mixed::{Decoded, mix};
use super::opus::OpusTrack;

/// A decoder of packets.
pub(super) enum TrackDecoder {
    /// One of the library's.
    Library(Box<dyn AudioDecoder>, Vec<f32>),
    /// Opus.
    Opus(OpusTrack),
}

impl TrackDecoder {
    pub(super) fn new(track: &Track) -> Result<Self, AudioError> {
        let Some(CodecParameters::Audio(sound)) = &track.codec_params else { return Err(AudioError::NoSound) };
        if let Some(channels) = &sound.channels {
            super::limits::check_channels(channels.count())?;
        }
        if sound.codec == CODEC_ID_OPUS {
            return Ok(Self::Opus(OpusTrack::new(sound, track.delay.unwrap_or(0))?));
        }
        let decoder = symphonia::default::get_codecs().make_audio_decoder(sound, &AudioDecoderOptions::default());
        let decoder = decoder.map_err(|error| match error {
            Error::Unsupported(what) => AudioError::UnknownCodec(what.to_owned()),
            error => AudioError::Damaged(error.to_string()),
        })?;
        Ok(Self::Library(decoder, Vec::new()))
    }

    /// Decodes a packet. A damaged one is [`AudioError::Damaged`], and the next may be good.
    pub(super) fn decode(&mut self, packet: &Packet) -> Result<Decoded<'_>, AudioError> {
        match self {
            Self::Opus(opus) => opus.decode(packet),
            Self::Library(decoder, samples) => {
                let decoded = decoder.decode(packet).map_err(|error| AudioError::Damaged(error.to_string()))?;
                let (rate, channels) = (decoded.spec().rate(), decoded.spec().channels().count());
                super::limits::check_channels(channels)?;
                samples.clear();
                decoded.copy_to_vec_interleaved::<f32>(samples);
                mix(samples, channels);
                Ok(Decoded { rate, mono: samples })
            }
        }
    }
}
