//! `/api/v1/queue`: the waiting and the running requests, and the cancelling of one.

use std::ops::{Range, RangeInclusive};

use axum::response::Response;
use http::Uri;
use model_boss_core::Scheduler;
use model_boss_http::body::json;
use model_boss_http::path::parameter;
use model_boss_protocol::{ApiError, ErrorCode, RequestId};

use super::view_bodies::{CancelAnswer, QueueAnswer};
use crate::api::blocking::blocking;
use crate::api::route::Call;

/// The number of waiting requests in an answer, where the query does not say. The queue may be long, and an answer
/// takes memory and time for each of its requests.
const QUEUE_PAGE: usize = 1_000;
/// The most waiting requests of an answer.
const MAX_QUEUE_PAGE: usize = 10_000;
/// The largest place in the queue that a query may begin at.
const MAX_OFFSET: usize = 1_000_000_000;

/// `GET /api/v1/queue`: queued requests in their order, and the reason why each waits; and every running request.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let places = queue_places(call.request.uri())?;
    let look = |scheduler: &Scheduler, now| {
        (scheduler.queue(now, places), scheduler.queued(), scheduler.running_requests(now))
    };
    let (queue, total, running) = call.context.scheduling.view(look).await.unwrap_or_default();
    let clock = call.context.clock;
    blocking(move || json(&clock.dated(serde_json::json!(QueueAnswer { queue, total, running })))).await?
}

/// The places of the queue that a query asks for by `offset` and `limit`.
fn queue_places(target: &Uri) -> Result<Range<usize>, ApiError> {
    let number = |name: &'static str, usual: usize, valid: RangeInclusive<usize>| {
        let Some(given) = parameter(target, name) else { return Ok(usual) };
        given.parse().ok().filter(|number| valid.contains(number)).ok_or_else(|| {
            let (least, most) = valid.into_inner();
            ApiError::invalid(name, format!("'{name}' must be a whole number from {least} to {most}, not '{given}'"))
        })
    };
    let from = number("offset", 0, 0..=MAX_OFFSET)?;
    Ok(from..from + number("limit", QUEUE_PAGE, 1..=MAX_QUEUE_PAGE)?)
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
