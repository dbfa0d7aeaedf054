//! Errors become HTTP here and nowhere else.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use model_boss_protocol::{ApiError, ErrorBody, ErrorCode, ErrorSource};

/// The answer a client gets for an error of ours.
pub(super) fn error_response(error: &ApiError) -> Response {
    let mut response = Response::new(Body::from(error.body(source(error)).to_json()));
    *response.status_mut() = status(error.status());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(wait) = error.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
    }
    response
}

/// Who found the fault.
fn source(error: &ApiError) -> ErrorSource {
    match error.code {
        ErrorCode::CloudRateLimited | ErrorCode::CloudOverloaded => ErrorSource::Cloud,
        _ => ErrorSource::Coordinator,
    }
}

/// The same error inside a stream whose headers are gone already: one event, after which the stream closes.
pub(super) fn error_event(error: &ApiError) -> Bytes {
    Bytes::from(format!("data: {}\n\n", error.body(source(error)).to_json()))
}

/// The error a worker answered with, as an event: its body when that has the shape, else a description.
pub(super) fn worker_error_event(status: StatusCode, body: &[u8]) -> Bytes {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(mut body) => {
            body.source.get_or_insert(ErrorSource::Worker);
            Bytes::from(format!("data: {}\n\n", body.to_json()))
        }
        Err(_) => error_event(&ApiError::new(ErrorCode::BackendError, format!("the worker answered {status}"))),
    }
}

/// What a panic in a handler looks like from outside.
pub(super) fn panic_error() -> ApiError {
    ApiError::new(ErrorCode::Internal, "the coordinator made a mistake; its log says more")
}

fn status(number: u16) -> StatusCode {
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Rounded up, so that whoever waits that long never comes too early.
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
