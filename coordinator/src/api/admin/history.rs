//! `GET /api/v1/history`: the last hour as columns of numbers, for charts.

use axum::response::Response;
use model_boss_http::body::json;
use model_boss_http::path::parameter;
use model_boss_protocol::ApiError;

use crate::api::route::Call;
use crate::history::POINTS;

/// Answers with the last `last` points; by default, with all.
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let last = match parameter(call.request.uri(), "last") {
        None => POINTS,
        Some(text) => text.parse().ok().filter(|last| (1..=POINTS).contains(last)).ok_or_else(|| {
            ApiError::invalid("last", format!("'last' must be a number from 1 to {POINTS}, not '{text}'"))
        })?,
    };
    json(&call.context.metrics.history().last(last))
}
