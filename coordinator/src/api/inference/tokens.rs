//! `/v1/tokenize` and `/v1/detokenize`: the vocabulary of a model of this machine, with the fields of llama-server and
//! vLLM.

use axum::response::Response;
use model_boss_dialects::{DETOKENIZE, TOKENIZE};
use model_boss_protocol::ApiError;

use super::openai::{InferenceRoute, infer};
use crate::api::route::Call;

/// `POST /v1/tokenize`.
pub(crate) async fn tokenize(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::about_tokens(TOKENIZE)).await
}

/// `POST /v1/detokenize`.
pub(crate) async fn detokenize(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::about_tokens(DETOKENIZE)).await
}
