//! The two tasks, the forms of an answer, and its failures.

use std::str::FromStr;

use model_boss_protocol::{ApiError, ErrorCode};

use crate::hearing::HearError;

/// The use of speech.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpeechTask {
    Transcribe,
    Translate,
}

/// The forms of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TranscriptFormat {
    Json,
    Text,
    VerboseJson,
    Srt,
    Vtt,
}

impl TranscriptFormat {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Text => "text",
            Self::VerboseJson => "verbose_json",
            Self::Srt => "srt",
            Self::Vtt => "vtt",
        }
    }
}

impl FromStr for TranscriptFormat {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let all = [Self::Json, Self::Text, Self::VerboseJson, Self::Srt, Self::Vtt];
        all.into_iter().find(|format| format.name() == text).ok_or(())
    }
}

/// The client's error for sound that got no text.
pub(super) fn failure(error: &HearError) -> ApiError {
    let message = error.to_string();
    match error {
        HearError::OutOfMemory(_) => {
            ApiError::new(ErrorCode::NoCapacity, message).retry_after(std::time::Duration::from_secs(1))
        }
        HearError::Step(_) => ApiError::new(ErrorCode::Internal, message),
    }
}
