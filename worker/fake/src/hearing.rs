//! Canned transcripts: the number of the file's bytes, in the form that the request asks for.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use model_boss_protocol::{ApiError, ErrorCode, form_boundary, form_parts, sse};
use serde_json::json;

/// An answer: its status, its content type, and its body.
pub(crate) type CannedTranscript = (StatusCode, &'static str, Bytes);

/// Answers a form with a file.
pub(crate) fn transcript(headers: &HeaderMap, body: &[u8]) -> Result<CannedTranscript, ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let wrong = |error: &dyn std::fmt::Display| ApiError::new(ErrorCode::InvalidRequest, error.to_string());
    let boundary = form_boundary(kind).map_err(|error| wrong(&error))?;
    let parts = form_parts(body, &boundary).map_err(|error| wrong(&error))?;
    let text_of = |name: &str| {
        let part = parts.iter().find(|part| part.name == name && part.file_name.is_none())?;
        str::from_utf8(&body[part.content.clone()]).ok()
    };
    let file = parts.iter().find(|part| part.name == "file");
    let file = file.ok_or_else(|| ApiError::invalid("file", "'file' is missing"))?;
    let text = format!("{} bytes of sound", file.content.len());
    let model = text_of("model").unwrap_or_default();
    if text_of("stream") == Some("true") {
        let delta = |text: &str| sse::event(json!({ "type": "transcript.text.delta", "delta": text }).to_string());
        let pieces: String = text.split_inclusive(' ').map(delta).collect();
        let done = sse::event(json!({ "type": "transcript.text.done", "text": text }).to_string());
        return Ok((StatusCode::OK, "text/event-stream", format!("{pieces}{done}{}", sse::DONE).into()));
    }
    Ok(match text_of("response_format").unwrap_or("json") {
        "text" => (StatusCode::OK, "text/plain; charset=utf-8", format!("{text}\n").into()),
        "verbose_json" => {
            let answer =
                json!({ "task": "transcribe", "language": "en", "duration": 1.0, "text": text, "model": model });
            (StatusCode::OK, "application/json", answer.to_string().into())
        }
        _ => (StatusCode::OK, "application/json", json!({ "text": text, "model": model }).to_string().into()),
    })
}
