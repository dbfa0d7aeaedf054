//! `POST /api/v1/plan`: what would happen to a request, without doing it.

use axum::response::Response;
use model_boss_core::{Ladder, PlanQuestion};
use model_boss_protocol::{ApiError, ErrorCode, Priority};
use serde::Deserialize;

use super::body::{json, parse};
use super::manage::{device, known, size_with};
use super::route::Call;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanRequest {
    model: String,
    /// The context it would serve, in tokens.
    ctx_size: Option<u64>,
    priority: Option<Priority>,
    device: Option<String>,
}

/// The same answers that the scheduler would give itself.
pub(super) async fn plan(mut call: Call) -> Result<Response, ApiError> {
    let body = call.body().await?;
    let request: PlanRequest = parse(&body)?;
    if request.ctx_size == Some(0) {
        return Err(ApiError::invalid("ctx_size", "'ctx_size' must be at least 1 token"));
    }
    let device = request.device.as_deref().map(device).transpose()?;
    let model = known(&call.context, &request.model).map_err(|error| error.with_param("model"))?;
    let size = match request.ctx_size {
        Some(context) => size_with(&call.context, &model, context).await,
        None => None,
    };
    let question = PlanQuestion {
        ladder: Ladder::from(model.as_str()),
        context: request.ctx_size,
        size,
        priority: request.priority,
        device,
    };
    let view = call.context.scheduling.view(move |scheduler, now| scheduler.plan(now, &question)).await;
    let view = view.ok_or_else(|| ApiError::new(ErrorCode::Draining, "the coordinator is shutting down"))?;
    json(&view?)
}
