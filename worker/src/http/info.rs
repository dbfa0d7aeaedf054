//! Routes that report on the worker: health, its model, numbers.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use model_boss_engine::residency::{Adapted, ExpertTotals, LayerReport, Monitor, ResidencySummary, StreamTotals};
use model_boss_engine::{EngineTotals, PlaceReport};
use model_boss_protocol::{
    ApiError, CpuShare, EngineStats, ErrorCode, HealthQuestion, InstructionSet, KvCacheType, Readiness, WorkProgress,
};
use serde::Serialize;

use crate::state::WorkerState;

use super::error::ErrorAnswer;

/// No answer waits longer for the model.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// 200 when the model answers, 503 while it is loaded.
pub(super) async fn health(State(worker): State<Arc<WorkerState>>, RawQuery(query): RawQuery) -> impl IntoResponse {
    let question = HealthQuestion::read(query.as_deref());
    worker.ready_within(question.wait.min(LONGEST_WAIT)).await;
    let health = worker.health();
    let status = if health.status == Readiness::Ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health))
}

/// How far the request with this id has come.
pub(super) async fn progress(
    State(worker): State<Arc<WorkerState>>,
    Path(id): Path<String>,
) -> Result<Json<WorkProgress>, ErrorAnswer> {
    let none = || ApiError::new(ErrorCode::NotFound, "no request with this id is being computed");
    Ok(Json(worker.meters.of(&id).ok_or_else(none)?))
}

/// Prometheus' text form.
pub(super) async fn metrics(State(worker): State<Arc<WorkerState>>) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4")],
        worker.metrics.render(&worker.activity, worker.kv_bytes_per_token(), worker.monitor()),
    )
}

/// Numbers for people and scripts.
#[derive(Serialize)]
pub(super) struct WorkerStats {
    model: String,
    device: String,
    /// The instructions of the processor that products on the CPU use.
    cpu_features: InstructionSet,
    /// The threads that compute on the CPU.
    threads: usize,
    /// The share of the threads that the coordinator ordered last; null before an order.
    cpu_share: Option<CpuShare>,
    uptime_s: f64,
    context_length: Option<u64>,
    weight_bytes: Option<u64>,
    /// The chosen type of keys and values, and the bytes that one token takes on all devices.
    kv_cache_type: KvCacheType,
    kv_bytes_per_token: Option<usize>,
    engine: EngineStats,
    totals: EngineTotals,
    /// The model's parts on each device, in the order of the layers.
    places: Vec<PlaceReport>,
    /// The state of streaming; null where all layers are resident.
    residency: Option<StreamingStats>,
}

/// The residency of layers and the times of streaming (RS-9).
#[derive(Serialize)]
struct StreamingStats {
    plan: ResidencySummary,
    adapted: Adapted,
    totals: StreamTotals,
    /// The counts of expert pages; null where whole layers are streamed.
    experts: Option<ExpertTotals>,
    bytes_per_second: f64,
    overlap: f64,
    /// The layers of the last step.
    layers: Vec<LayerReport>,
}

impl StreamingStats {
    fn of(monitor: &Monitor) -> Self {
        let totals = monitor.totals();
        Self {
            plan: monitor.residency().clone(),
            adapted: monitor.adapted(),
            totals,
            experts: monitor.experts(),
            bytes_per_second: totals.bandwidth(),
            overlap: totals.overlap(),
            layers: monitor.layers(),
        }
    }
}

/// Answers with the sums since the start.
pub(super) async fn stats(State(worker): State<Arc<WorkerState>>) -> Json<WorkerStats> {
    let health = worker.health();
    Json(WorkerStats {
        model: worker.spec.model.to_string(),
        device: worker.spec.device.to_string(),
        cpu_features: worker.instructions,
        threads: worker.threads.count(),
        cpu_share: *worker.shares.borrow(),
        uptime_s: worker.started.elapsed().as_secs_f64(),
        context_length: health.context_length,
        weight_bytes: health.weight_bytes,
        kv_cache_type: worker.spec.residency.kv_cache_type,
        kv_bytes_per_token: worker.kv_bytes_per_token(),
        engine: health.engine,
        totals: worker.activity.totals(),
        places: worker.places(),
        residency: worker.monitor().map(StreamingStats::of),
    })
}

/// OpenAI's model object.
#[derive(Serialize)]
pub(super) struct ModelEntry {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    context_length: Option<u64>,
    kv_cache_type: KvCacheType,
    /// The model of an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
}

#[derive(Serialize)]
pub(super) struct ModelList {
    object: &'static str,
    data: Vec<ModelEntry>,
}

fn served(worker: &WorkerState) -> ModelEntry {
    let started = SystemTime::now().checked_sub(worker.started.elapsed()).unwrap_or(UNIX_EPOCH);
    ModelEntry {
        id: worker.spec.model.to_string(),
        object: "model",
        created: started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        owned_by: "model-boss",
        context_length: worker.health().context_length,
        kv_cache_type: worker.spec.residency.kv_cache_type,
        parent: None,
    }
}

/// The one model, and its adapters.
pub(super) async fn models(State(worker): State<Arc<WorkerState>>) -> Json<ModelList> {
    let adapters = worker.serving().map(|serving| serving.adapters.list()).unwrap_or_default();
    let model = worker.spec.model.to_string();
    let of_adapter = |(name, _): &(String, u64)| {
        let (id, parent) = (format!("{model}:{name}"), Some(model.clone()));
        ModelEntry { id, parent, ..served(&worker) }
    };
    let data = std::iter::once(served(&worker)).chain(adapters.iter().map(of_adapter)).collect();
    Json(ModelList { object: "list", data })
}

/// The one model by its name, which may have slashes in it.
pub(super) async fn model(
    State(worker): State<Arc<WorkerState>>,
    Path(id): Path<String>,
) -> Result<Json<ModelEntry>, ErrorAnswer> {
    if id == worker.spec.model.as_str() {
        return Ok(Json(served(&worker)));
    }
    let message = format!("this worker serves '{}', not '{id}'", worker.spec.model);
    Err(ErrorAnswer(ApiError::new(ErrorCode::ModelNotFound, message)))
}
