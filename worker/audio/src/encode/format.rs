//! The formats that sound is written in.

/// The rate of raw samples, as OpenAI's API has it.
const PCM_RATE: u32 = 24_000;

/// The rates that an Opus encoder takes.
const OPUS_RATES: [u32; 5] = [8_000, 12_000, 16_000, 24_000, 48_000];

/// The highest rate that FLAC's streams can be cut in, and have a head that all decoders read.
const FLAC_RATES: (u32, u32) = (1, 96_000);

/// A format of files of sound. All have one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoundFormat {
    /// RIFF WAVE with samples of 16 bits. The sizes in the head are the largest ones, since the length is not known.
    Wav,
    /// FLAC with samples of 16 bits.
    Flac,
    /// Opus in Ogg.
    Opus,
    /// Samples of 16 bits, the low byte first, 24,000 in a second, without a head.
    Pcm,
}

impl SoundFormat {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Wav, Self::Flac, Self::Opus, Self::Pcm];

    /// The name in requests, as OpenAI's API has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wav => "wav",
            Self::Flac => "flac",
            Self::Opus => "opus",
            Self::Pcm => "pcm",
        }
    }

    /// The format of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// The media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Wav => "audio/wav",
            Self::Flac => "audio/flac",
            Self::Opus => "audio/ogg",
            Self::Pcm => "audio/pcm",
        }
    }

    /// The rate that the format has of sound of this rate: the same where that is possible.
    pub fn rate(self, rate: u32) -> u32 {
        match self {
            Self::Wav => rate,
            Self::Flac => rate.clamp(FLAC_RATES.0, FLAC_RATES.1),
            Self::Pcm => PCM_RATE,
            Self::Opus => OPUS_RATES.into_iter().find(|known| *known >= rate).unwrap_or(48_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_28_a_format_keeps_the_rate_where_it_can() {
        for format in SoundFormat::ALL {
            assert_eq!(SoundFormat::named(format.name()), Some(format));
        }
        assert_eq!(SoundFormat::named("mp3"), None);
        let rates = |rate| SoundFormat::ALL.map(|format| format.rate(rate));
        assert_eq!(rates(16_000), [16_000, 16_000, 16_000, 24_000]);
        assert_eq!(rates(22_050), [22_050, 22_050, 24_000, 24_000]);
        assert_eq!(rates(44_100), [44_100, 44_100, 48_000, 24_000]);
        assert_eq!(rates(192_000), [192_000, 96_000, 48_000, 24_000]);
    }
}
