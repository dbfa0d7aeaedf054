//! The only place where errors become HTTP answers.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, HeaderName, StatusCode};
use model_boss_dialects::anthropic::messages_error;
use model_boss_dialects::ollama::error_text;
use model_boss_protocol::sse::event;
use model_boss_protocol::{ApiError, ErrorBody, ErrorCode, ErrorSource};
use serde_json::{Value, json};

use crate::headers::ANTHROPICS_ID;

/// The API in whose shape an error is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorShape {
    /// OpenAI's object.
    OpenAi,
    /// Anthropic's object.
    Anthropic,
    /// Ollama's text.
    Ollama,
}

impl ErrorShape {
    /// The shape for a path, or for headers that name the client's API.
    pub fn of(path: &str, headers: &HeaderMap) -> Self {
        let path = path.strip_prefix("/api").filter(|rest| is_below(rest, "/v1")).unwrap_or(path);
        match () {
            () if path.starts_with("/api/") => Self::Ollama,
            () if is_below(path, "/v1/messages") || is_below(path, "/messages") => Self::Anthropic,
            () if headers.contains_key(ANTHROPIC_VERSION) => Self::Anthropic,
            () => Self::OpenAi,
        }
    }

    /// Rewrites an answer with an error of the coordinator in this shape.
    pub(crate) fn put_on(self, response: &mut Response) {
        let Some(ShownError(error)) = response.extensions_mut().remove() else { return };
        let ours = || serde_json::to_value(error.body(source(&error))).unwrap_or_default();
        let body = match self {
            Self::OpenAi => return,
            Self::Anthropic => match said(&error) {
                Some(said) => {
                    let id = said["request_id"].as_str().and_then(|id| HeaderValue::from_str(id).ok());
                    response.headers_mut().extend(id.map(|id| (ANTHROPICS_ID, id)));
                    said
                }
                None => messages_error(&ours()),
            },
            Self::Ollama => json!({ "error": error_text(&ours()) }),
        };
        *response.body_mut() = Body::from(body.to_string());
        // The header has the length of the earlier body.
        response.headers_mut().remove(CONTENT_LENGTH);
    }
}

/// The error as a provider of Anthropic's API wrote it.
fn said(error: &ApiError) -> Option<Value> {
    let said: Value = serde_json::from_str(error.said.as_deref()?).ok()?;
    (said["type"] == "error" && said["error"]["message"].is_string()).then_some(said)
}

/// The header by which Anthropic's clients are recognised.
pub const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The error that an answer was made of, kept as an extension of the answer.
#[derive(Clone, Debug)]
struct ShownError(ApiError);

/// The answer for an error of the coordinator. `ErrorShape::put_on` later puts it in the client's shape.
pub fn error_response(error: &ApiError) -> Response {
    let mut response = Response::new(Body::from(error.body(source(error)).to_json()));
    response.extensions_mut().insert(ShownError(error.clone()));
    *response.status_mut() = status(error.status());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(wait) = error.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
    }
    response
}

/// The party at fault.
fn source(error: &ApiError) -> ErrorSource {
    match error.code {
        ErrorCode::CloudRateLimited | ErrorCode::CloudOverloaded => ErrorSource::Cloud,
        _ => ErrorSource::Coordinator,
    }
}

/// An error inside a stream whose headers were sent already: one event, after which the stream closes.
pub fn error_event(error: &ApiError) -> Bytes {
    Bytes::from(event(error.body(source(error)).to_json()))
}

/// A worker's error answer as an event: its body when that has the error shape, else a description.
pub fn worker_error_event(status: StatusCode, body: &[u8]) -> Bytes {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(mut body) => {
            body.source.get_or_insert(ErrorSource::Worker);
            Bytes::from(event(body.to_json()))
        }
        Err(_) => error_event(&ApiError::new(ErrorCode::BackendError, format!("the worker answered {status}"))),
    }
}

/// The error that a client sees of a handler's panic.
pub fn panic_error() -> ApiError {
    ApiError::new(ErrorCode::Internal, "the coordinator made a mistake; its log says more")
}

fn status(number: u16) -> StatusCode {
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Whole seconds, rounded up, so that a client that waits that long is never too early.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn text(response: Response) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn an_error_has_its_status_shape_and_retry_after() {
        let error = ApiError::new(ErrorCode::QueueFull, "full").retry_after(Duration::from_millis(1_200));
        let response = error_response(&error);
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let body = text(response).await;
        assert_eq!(
            body,
            r#"{"error":{"message":"full","type":"rate_limit_error","param":null,"code":"queue_full"},"source":"coordinator"}"#
        );
    }

    #[tokio::test]
    async fn an_error_has_the_shape_that_the_clients_of_its_path_read() {
        let version = HeaderMap::from_iter([(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"))]);
        let anthropics = r#"{"error":{"message":"no","type":"authentication_error"},"type":"error"}"#;
        for (path, headers, expected) in [
            ("/api/chat", HeaderMap::new(), r#"{"error":"no"}"#),
            ("/api/nothing", HeaderMap::new(), r#"{"error":"no"}"#),
            ("/v1/messages", HeaderMap::new(), anthropics),
            ("/api/v1/messages/count_tokens", HeaderMap::new(), anthropics),
            ("/messages", HeaderMap::new(), anthropics),
            ("/v1/models", version, anthropics),
        ] {
            let mut response = error_response(&ApiError::new(ErrorCode::InvalidApiKey, "no"));
            ErrorShape::of(path, &headers).put_on(&mut response);
            assert_eq!(response.status(), 401, "{path}");
            // The order of keys depends on a feature of serde_json that other crates of a build may turn on.
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(value(&text(response).await), value(expected), "{path}");
        }
        for path in ["/v1/models", "/api/v1/load", "/api/v1", "/v1/messagesx", "/metrics"] {
            assert_eq!(ErrorShape::of(path, &HeaderMap::new()), ErrorShape::OpenAi, "{path}");
        }
    }

    #[test]
    fn every_code_has_a_valid_status() {
        for code in ErrorCode::ALL {
            assert_eq!(status(code.status()).as_u16(), code.status());
        }
    }

    #[test]
    fn a_workers_error_keeps_its_words_inside_a_stream() {
        let body = ApiError::invalid("messages", "'messages' is missing").body(ErrorSource::Worker).to_json();
        let event = worker_error_event(StatusCode::BAD_REQUEST, body.as_bytes());
        assert_eq!(event, format!("data: {body}\n\n"));
        let nonsense = worker_error_event(StatusCode::IM_A_TEAPOT, b"<html>");
        assert!(String::from_utf8_lossy(&nonsense).contains("backend_error"));
    }
}
