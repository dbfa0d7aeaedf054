//! `/api/v1/leases`: memory that other programs of this host lease, in the bodies of `lease_http`.

use axum::response::Response;
use http::StatusCode;
use model_boss_client::lease_http::{AcquireBody, CancelledBody, ReassertBody, ReleaseBody, WaitingBody};
use model_boss_http::body::{json, json_with};
use model_boss_http::path::percent_decode;
use model_boss_lease_store::LeaseId;
use model_boss_protocol::{ApiError, ErrorCode, Priority};

use crate::api::route::Call;
use crate::leases::GuestAnswer;

/// The path before the id of a lease.
const PREFIX: &str = "/api/v1/leases/";

/// `GET /api/v1/leases`: leases and queued requests. While the store is unreachable, the last known ones are shown.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    json(&call.context.leases.list().await?)
}

/// `GET /api/v1/leases/ID`.
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let id = LeaseId::from(place(&call)?.as_str());
    json(&call.context.leases.show(id).await?)
}

/// `POST /api/v1/leases`.
pub(crate) async fn acquire(mut call: Call) -> Result<Response, ApiError> {
    let mut asked: AcquireBody = call.body().await?.parse().await?;
    asked.priority = most_important(&call, asked.priority)?;
    match call.context.leases.acquire_for(call.caller().await, asked).await? {
        GuestAnswer::Done(granted) => json_with(StatusCode::CREATED, &granted),
        GuestAnswer::Waits(waiting) => json_with(StatusCode::ACCEPTED, &WaitingBody { waiting }),
    }
}

/// `PUT /api/v1/leases`.
pub(crate) async fn renew(mut call: Call) -> Result<Response, ApiError> {
    let (caller, asked) = (call.caller().await, call.body().await?.parse().await?);
    json(&call.context.leases.renew_for(caller, asked).await?)
}

/// `DELETE /api/v1/leases`.
pub(crate) async fn cancel(mut call: Call) -> Result<Response, ApiError> {
    let asked = call.body().await?.parse().await?;
    call.context.leases.cancel_for(call.caller().await, asked).await?;
    json(&CancelledBody { cancelled: true })
}

/// `POST /api/v1/leases/ID/attach` and `/reassert`.
pub(crate) async fn order(mut call: Call) -> Result<Response, ApiError> {
    let place = place(&call)?;
    let body = call.body().await?;
    let (leases, caller) = (&call.context.leases, call.caller().await);
    match place.rsplit_once('/') {
        Some((id, "attach")) => json(&leases.attach_for(caller, LeaseId::from(id), body.parse().await?).await?),
        Some((id, "reassert")) => {
            let mut stated: ReassertBody = body.parse().await?;
            stated.priority = most_important(&call, stated.priority)?;
            match leases.reassert_for(caller, LeaseId::from(id), stated).await? {
                GuestAnswer::Done(stated) => json(&stated),
                GuestAnswer::Waits(waiting) => json_with(StatusCode::ACCEPTED, &WaitingBody { waiting }),
            }
        }
        _ => {
            let message = "behind the id of a lease comes 'attach' or 'reassert'";
            Err(ApiError::new(ErrorCode::NotFound, message))
        }
    }
}

/// `PUT /api/v1/leases/ID`.
pub(crate) async fn resize(mut call: Call) -> Result<Response, ApiError> {
    let id = LeaseId::from(place(&call)?.as_str());
    let body = call.body().await?;
    json(&call.context.leases.resize_for(call.caller().await, id, body.parse().await?).await?)
}

/// `DELETE /api/v1/leases/ID`.
pub(crate) async fn release(mut call: Call) -> Result<Response, ApiError> {
    let id = LeaseId::from(place(&call)?.as_str());
    let body: ReleaseBody = call.body().await?.parse_or_default().await?;
    let released = match body.force {
        true => call.context.leases.force(call.caller().await, id).await?,
        false => call.context.leases.release_for(call.caller().await, id, body).await?,
    };
    json_with(if released.released { StatusCode::OK } else { StatusCode::ACCEPTED }, &released)
}

/// The priority of a client's lease: the requested one, limited by the client's rule (RC-3).
fn most_important(call: &Call, asked: Priority) -> Result<Priority, ApiError> {
    let client = call.client()?;
    // Smaller priorities are more important, so the maximum is the less important of both.
    Ok(asked.max(call.context.tasks.client_rules().of(&client).max_priority))
}

/// The part of the path after [`PREFIX`].
fn place(call: &Call) -> Result<String, ApiError> {
    let path = call.request.uri().path();
    percent_decode(path.strip_prefix(PREFIX).unwrap_or_default())
        .ok_or_else(|| ApiError::invalid("id", "the id in the path is not properly percent-encoded"))
}
