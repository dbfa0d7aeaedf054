//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`: the text of sound.

use axum::response::Response;
use model_boss_http::form::FormFiles;
use model_boss_protocol::{ApiError, Category};

use super::openai::{InferenceRoute, infer};
use crate::api::route::Call;

/// `POST /v1/audio/transcriptions`.
pub(crate) async fn transcriptions(call: Call) -> Result<Response, ApiError> {
    infer(
        call,
        InferenceRoute::at("/v1/audio/transcriptions", Category::Transcription).form(FormFiles::SOUND).unnamed(),
    )
    .await
}

/// `POST /v1/audio/translations`: in English.
pub(crate) async fn translations(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at("/v1/audio/translations", Category::Transcription).form(FormFiles::SOUND).unnamed())
        .await
}
