//! Request bodies in, JSON bodies out.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body::Body as _;
use http_body_util::BodyExt;
use model_boss_protocol::{ApiError, ByteCount, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// Reads a body of at most `limit`, whose client may pause for at most `patience`. One that says that it is larger is not
/// read at all.
pub(super) async fn read(mut body: Body, limit: ByteCount, patience: Duration) -> Result<Bytes, ApiError> {
    let too_large = || ApiError::new(ErrorCode::RequestTooLarge, format!("the body is over the limit of {limit}"));
    if body.size_hint().lower() > limit.0 {
        return Err(too_large());
    }
    let mut whole = Bytes::new();
    let mut several: Vec<u8> = Vec::new();
    let too_slow = |_| ApiError::new(ErrorCode::InvalidRequest, "the rest of the body did not come in time");
    while let Some(frame) = timeout(patience, body.frame()).await.map_err(too_slow)? {
        let frame = frame.map_err(|_| ApiError::new(ErrorCode::InvalidRequest, "the body ended early"))?;
        let Ok(data) = frame.into_data() else { continue };
        if (whole.len() + several.len() + data.len()) as u64 > limit.0 {
            return Err(too_large());
        }
        // Most bodies are one frame, which is passed on without a copy.
        if whole.is_empty() && several.is_empty() {
            whole = data;
        } else {
            if several.is_empty() {
                let expected = usize::try_from(body.size_hint().lower()).unwrap_or(0);
                several.reserve(whole.len() + data.len() + expected);
                several.extend_from_slice(&std::mem::take(&mut whole));
            }
            several.extend_from_slice(&data);
        }
    }
    Ok(if several.is_empty() { whole } else { Bytes::from(several) })
}

/// A management body as a value; an error names the field.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the body cannot be read: {error}");
        let field = message.split('`').nth(1).map(str::to_owned);
        let refused = ApiError::new(ErrorCode::InvalidRequest, message);
        match field {
            Some(field) => refused.with_param(field),
            None => refused,
        }
    })
}

/// A value as a JSON answer.
pub(super) fn json(value: &impl Serialize) -> Result<Response, ApiError> {
    json_with(StatusCode::OK, value)
}

/// A value as a JSON answer with a status.
pub(super) fn json_with(status: StatusCode, value: &impl Serialize) -> Result<Response, ApiError> {
    let text = serde_json::to_vec(value)
        .map_err(|error| ApiError::new(ErrorCode::Internal, format!("the answer cannot be written: {error}")))?;
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
