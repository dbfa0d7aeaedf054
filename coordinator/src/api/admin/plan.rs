//! `POST /api/v1/plan`: simulates a request without executing it.

use axum::response::Response;
use model_boss_core::{LayerOptions, PlanQuestion, Target};
use model_boss_http::body::json;
use model_boss_protocol::{
    ApiError, ByteCount, Category, ClientId, DeviceId, ErrorCode, KvCacheType, Priority, ResidencyMode,
};
use model_boss_tasks::NameQuestion;
use schemars::JsonSchema;
use serde::Deserialize;

use super::manage::{check_layers, device, kv_cache_type, residency, size_with};
use crate::api::route::Call;
use crate::refusals::api_error;

/// A question about a request or a load.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanRequest {
    /// A model's name or alias, `task:NAME`, or `PROVIDER:MODEL`.
    model: Option<String>,
    /// The name of a task; `model` is then a wish for one of its rungs.
    task: Option<String>,
    /// The category of the request, where neither the task nor the models of this machine determine it.
    category: Option<Category>,
    /// The client whose names and permissions apply.
    client: Option<ClientId>,
    /// The requested context, in tokens.
    #[schemars(range(min = 1))]
    ctx_size: Option<u64>,
    priority: Option<Priority>,
    #[schemars(with = "Option<DeviceId>")]
    device: Option<String>,
    /// The residency of the model's layers (RS-11), as in a load.
    #[schemars(with = "Option<ResidencyMode>")]
    residency: Option<String>,
    #[schemars(range(min = 1))]
    window: Option<u32>,
    #[schemars(range(min = 1))]
    block: Option<u32>,
    vram: Option<ByteCount>,
    #[schemars(with = "Option<KvCacheType>")]
    kv_cache_type: Option<String>,
}

/// Answers with the scheduler's own verdicts.
pub(crate) async fn plan(mut call: Call) -> Result<Response, ApiError> {
    let request: PlanRequest = call.body().await?.parse().await?;
    if request.ctx_size == Some(0) {
        return Err(ApiError::invalid("ctx_size", "'ctx_size' must be at least 1 token"));
    }
    let device = request.device.as_deref().map(device).transpose()?;
    let client = call.client_named(request.client.clone())?;
    let (model, task) = (request.model.as_deref(), request.task.as_deref());
    if model.is_none() && task.is_none() {
        return Err(ApiError::invalid("model", "name a 'model' or a 'task'"));
    }
    let question = NameQuestion { model, task, client: &client, no_fallback: false };
    let resolved = call.context.tasks.resolve(&question, &call.context.catalog)?;
    let mode = request.residency.as_deref().map(residency).transpose()?;
    let PlanRequest { window, block, vram: memory, .. } = request;
    let kv_cache_type = request.kv_cache_type.as_deref().map(kv_cache_type).transpose()?;
    let layers = LayerOptions { mode, window, block, memory, kv_cache_type };
    let size = match &resolved.ladder().first.target {
        Target::Local(model) => {
            check_layers(&call.context, model, &layers)?;
            size_with(&call.context, model, request.ctx_size, layers).await
        }
        Target::Cloud { .. } => None,
    };
    let priority = request.priority.or(resolved.priority);
    let context = request.ctx_size;
    let category = request.category.or_else(|| resolved.category());
    let question =
        PlanQuestion { ladder: resolved.ladder().clone(), category, context, layers, size, priority, device };
    let view = call.context.scheduling.view(move |scheduler, now| scheduler.plan(now, &question)).await;
    let view = view.ok_or_else(|| ApiError::new(ErrorCode::Draining, "the coordinator is shutting down"))?;
    json(&view.map_err(api_error)?)
}
