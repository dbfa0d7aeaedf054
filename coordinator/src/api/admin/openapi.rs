//! `GET /openapi.json`: the description of the API.

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use model_boss_protocol::{ApiError, ErrorCode};

use crate::api::route::Call;

/// `GET /openapi.json`. The document is made when the process starts.
pub(crate) async fn document(call: Call) -> Result<Response, ApiError> {
    let text = call.description.get().map(|api| api.text.clone());
    let text = text.ok_or_else(|| ApiError::new(ErrorCode::Internal, "the description of the API was not made"))?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
