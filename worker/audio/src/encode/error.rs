//! Failures of encoders.

/// Sound could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeSoundError {
    /// A library of a format refused the sound; the message is its own.
    #[error("the sound could not be written as {format}: {why}")]
    Format {
        /// The name of the format.
        format: &'static str,
        /// The library's words.
        why: String,
    },
    /// The rate cannot become another one.
    #[error("sound of {from} samples a second cannot become one of {to}: {why}")]
    Rate {
        /// The rate of the samples.
        from: u32,
        /// The rate that the format needs.
        to: u32,
        /// The library's words.
        why: String,
    },
}

impl EncodeSoundError {
    pub(super) fn of(format: &'static str, why: impl std::fmt::Display) -> Self {
        Self::Format { format, why: why.to_string() }
    }
}
