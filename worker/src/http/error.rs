//! The one place where errors of a worker become HTTP.

use axum::extract::rejection::BytesRejection;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use model_boss_engine::WorkError;
use model_boss_protocol::{ApiError, ErrorCode, ErrorSource, PromptLength};
use tracing::error;

use crate::text::TextFailure;

/// Most bytes of a request's body.
pub(super) const LARGEST_BODY: usize = 32 << 20;

/// An error as the answer to a request.
#[derive(Debug)]
pub(super) struct ErrorAnswer(pub(super) ApiError);

impl From<ApiError> for ErrorAnswer {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<BytesRejection> for ErrorAnswer {
    fn from(rejection: BytesRejection) -> Self {
        Self(if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let message = format!("the body is larger than {} MiB", LARGEST_BODY >> 20);
            ApiError::new(ErrorCode::RequestTooLarge, message)
        } else {
            ApiError::new(ErrorCode::InvalidRequest, "the body could not be read")
        })
    }
}

impl IntoResponse for ErrorAnswer {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
            error!(code = self.0.code.as_str(), message = self.0.message, "a request failed");
        }
        let mut response = (status, self.0.body(ErrorSource::Worker).to_json()).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = self.0.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
        }
        response
    }
}

/// The client's error for a sequence that failed. `prompt` is the field that holds the prompt.
pub(super) fn work_error(error: &WorkError, prompt: &str) -> ApiError {
    let message = error.to_string();
    match error {
        WorkError::ContextLengthExceeded { prompt: tokens, context } => {
            let length = PromptLength { prompt: *tokens, context: *context };
            ApiError::new(ErrorCode::ContextLengthExceeded, message).with_param(prompt).with_length(length)
        }
        WorkError::EmptyPrompt | WorkError::UnknownToken { .. } | WorkError::MisplacedImages => {
            ApiError::invalid(prompt, message)
        }
        WorkError::OutOfMemory(_) => {
            ApiError::new(ErrorCode::NoCapacity, message).retry_after(std::time::Duration::from_secs(1))
        }
        WorkError::QueueFull(_) => {
            ApiError::new(ErrorCode::QueueFull, message).retry_after(std::time::Duration::from_secs(1))
        }
        WorkError::Form(_) => ApiError::new(ErrorCode::InvalidRequest, message),
        WorkError::Step(_) | WorkError::NotFinite => ApiError::new(ErrorCode::Internal, message),
    }
}

/// The client's error for a request that cannot become a prompt. `field` is the name of the field with the prompt's
/// content.
pub(super) fn text_error(failure: TextFailure, field: &str, context: usize) -> ApiError {
    let message = failure.to_string();
    match failure {
        TextFailure::Refused(_) => ApiError::invalid(field, message),
        TextFailure::TooLong { tokens } => {
            work_error(&WorkError::ContextLengthExceeded { prompt: tokens, context }, field)
        }
        TextFailure::Limit(_) => ApiError::new(ErrorCode::TemplateFailed, message).with_param(field),
        TextFailure::NoRoom(_) => {
            ApiError::new(ErrorCode::NoCapacity, message).retry_after(std::time::Duration::from_secs(1))
        }
        TextFailure::Ended => ApiError::new(ErrorCode::Internal, message),
    }
}
