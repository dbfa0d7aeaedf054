//! `/api/v1/queue`: the waiting and the running requests, and the cancelling of one.

use axum::response::Response;
use model_boss_core::Scheduler;
use model_boss_http::body::json;
use model_boss_protocol::{ApiError, ErrorCode, RequestId};

use super::view_bodies::{CancelAnswer, QueueAnswer};
use crate::api::route::Call;

/// `GET /api/v1/queue`: every waiting request and the reason why it waits, and every running one.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let look = |scheduler: &Scheduler, now| (scheduler.queue(now), scheduler.running_requests(now));
    let (queue, running) = call.context.scheduling.view(look).await.unwrap_or_default();
    json(&call.context.clock.dated(serde_json::json!(QueueAnswer { queue, running })))
}

/// `DELETE /api/v1/queue/{id}`: the request's client gets the error `request_cancelled`.
pub(crate) async fn cancel(call: Call) -> Result<Response, ApiError> {
    let text = call.request.uri().path().rsplit('/').next().unwrap_or_default();
    let Some(id) = text.parse().ok().map(RequestId) else {
        let message = format!("'{text}' is no number of a request; GET /api/v1/queue lists them");
        return Err(ApiError::new(ErrorCode::RequestNotFound, message));
    };
    call.context.scheduling.cancel_request(call.permit_cancel()?, id).done().await?;
    json(&CancelAnswer { status: "cancelled", id })
}
