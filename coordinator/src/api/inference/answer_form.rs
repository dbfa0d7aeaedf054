//! The form that an answer has, as the request wants it.

use model_boss_protocol::ApiError;
use serde::Deserialize;

/// The form that an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerForm {
    /// JSON, at its end.
    Whole,
    /// Server-sent events.
    Events,
    /// Sound, while it is made.
    Sound,
}

impl AnswerForm {
    /// The beginning of the content type that an answer of this form has, where `given` is the one that it has.
    pub(super) fn content_type(self, given: &[u8]) -> &'static str {
        match self {
            Self::Whole => "application/json",
            Self::Events => "text/event-stream",
            Self::Sound if given == b"application/octet-stream" => "application/octet-stream",
            Self::Sound => "audio/",
        }
    }
}

/// The form of the answer to a request for speech, by its `stream_format`. The worker names faults of the other fields.
pub(super) fn speech_form(body: &[u8]) -> Result<AnswerForm, ApiError> {
    #[derive(Deserialize)]
    struct FormFields {
        #[serde(default)]
        stream_format: Option<serde_json::Value>,
    }
    let fields: FormFields =
        serde_json::from_slice(body).map_err(|error| ApiError::invalid("stream_format", error.to_string()))?;
    match fields.stream_format {
        None | Some(serde_json::Value::Null) => Ok(AnswerForm::Sound),
        Some(serde_json::Value::String(form)) if form == "audio" => Ok(AnswerForm::Sound),
        Some(serde_json::Value::String(form)) if form == "sse" => Ok(AnswerForm::Events),
        Some(other) => {
            let message = format!("'stream_format' is {other}; it may be \"audio\" or \"sse\"");
            Err(ApiError::invalid("stream_format", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_28_the_form_of_an_answer_is_sound_unless_events_are_asked_for() {
        for body in ["{}", r#"{"stream_format":null}"#, r#"{"stream_format":"audio"}"#] {
            assert_eq!(speech_form(body.as_bytes()), Ok(AnswerForm::Sound), "{body}");
        }
        assert_eq!(speech_form(br#"{"stream_format":"sse"}"#), Ok(AnswerForm::Events));
        for body in [r#"{"stream_format":"mp3"}"#, r#"{"stream_format":7}"#] {
            assert_eq!(speech_form(body.as_bytes()).unwrap_err().param.as_deref(), Some("stream_format"), "{body}");
        }
    }
}
