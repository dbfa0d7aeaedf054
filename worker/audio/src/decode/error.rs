//! The reasons why a file gives no sound.

/// The reason why a file was not decoded. Messages are for the client who sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AudioError {
    /// The content is of no known format.
    #[error(
        "the file is in no format that is read here: send wav, flac, mp3, ogg (Vorbis or Opus), m4a (AAC or ALAC) or webm"
    )]
    UnknownFormat,
    /// The container is known, and no track of it can be decoded.
    #[error("the file's sound cannot be decoded: {0}")]
    UnknownCodec(String),
    /// There is no byte.
    #[error("the file is empty")]
    Empty,
    /// There is a container and no sound.
    #[error("the file has no sound")]
    NoSound,
    /// The content contradicts its format.
    #[error("the file is damaged: {0}")]
    Damaged(String),
    /// The file ends before its sound does.
    #[error("the file was cut off: {heard:.1} s of its sound are there, and its header tells of {told:.1} s")]
    CutOff {
        /// Seconds that were decoded.
        heard: Seconds,
        /// Seconds of the header.
        told: Seconds,
    },
    /// The sound is longer than the limit.
    #[error("the sound is longer than the limit of {limit:.0} s; send it in parts")]
    TooLong {
        /// Seconds of the limit.
        limit: Seconds,
    },
    /// A property is out of the range that is decoded.
    #[error("the file's sound has {what}, which is not read here")]
    Unsupported {
        /// The property.
        what: String,
    },
}

/// Seconds in thousandths, so that errors can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(u64);

impl Seconds {
    /// From seconds.
    pub(super) fn of(seconds: f64) -> Self {
        Self((seconds.max(0.0) * 1000.0) as u64)
    }
}

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (self.0 as f64 / 1000.0).fmt(f)
    }
}
