//! `POST /v1/images/generations` and `/v1/images/edits`: models that paint.

use axum::response::Response;
use model_boss_dialects::{EDITS, PICTURES};
use model_boss_http::form::FormFiles;
use model_boss_protocol::{ApiError, Category, ErrorCode};

use super::openai::{InferenceRoute, infer};
use crate::api::route::Call;

/// `POST /v1/images/generations`.
pub(crate) async fn generations(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at(PICTURES, Category::Diffusion).unnamed()).await
}

/// `POST /v1/images/edits`.
pub(crate) async fn edits(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at(EDITS, Category::Diffusion).form(FormFiles::PICTURES).or_json().unnamed()).await
}

/// `POST /v1/images/variations`, which no model here has.
pub(crate) async fn variations(_: Call) -> Result<Response, ApiError> {
    let message =
        "no model here makes variations of a picture: send it to /v1/images/edits with a prompt and a 'strength'";
    Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("image"))
}
