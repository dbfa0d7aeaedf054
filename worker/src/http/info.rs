//! What a worker says about itself: health, its model, numbers.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use model_boss_engine::residency::{Adapted, LayerReport, Monitor, Residency, StreamTotals};
use model_boss_engine::{PlaceReport, Totals};
use model_boss_protocol::{ApiError, EngineStats, ErrorCode, HealthQuestion, Readiness};
use serde::Serialize;

use crate::state::Worker;

use super::error::Failure;

/// No answer waits longer for the model.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// 200 when the model answers, 503 while it is loaded.
pub(super) async fn health(State(worker): State<Arc<Worker>>, RawQuery(query): RawQuery) -> impl IntoResponse {
    let question = HealthQuestion::read(query.as_deref());
    worker.ready_within(question.wait.min(LONGEST_WAIT)).await;
    let health = worker.health();
    let status = if health.status == Readiness::Ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health))
}

/// Prometheus' text form.
pub(super) async fn metrics(State(worker): State<Arc<Worker>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], worker.metrics.render(&worker.activity, worker.monitor()))
}

/// Numbers for people and scripts.
#[derive(Serialize)]
pub(super) struct Stats {
    model: String,
    device: String,
    uptime_s: f64,
    context_length: Option<u64>,
    weight_bytes: Option<u64>,
    engine: EngineStats,
    totals: Totals,
    /// The model's parts on each device, in the order of the layers.
    places: Vec<PlaceReport>,
    /// Of layers that come and go; null where all stay on the device.
    residency: Option<Streaming>,
}

/// How layers live and what that takes (RS-9).
#[derive(Serialize)]
struct Streaming {
    plan: Residency,
    adapted: Adapted,
    totals: StreamTotals,
    bytes_per_second: f64,
    overlap: f64,
    /// Of the last step.
    layers: Vec<LayerReport>,
}

impl Streaming {
    fn of(monitor: &Monitor) -> Self {
        let totals = monitor.totals();
        Self {
            plan: monitor.residency().clone(),
            adapted: monitor.adapted(),
            totals,
            bytes_per_second: totals.bandwidth(),
            overlap: totals.overlap(),
            layers: monitor.layers(),
        }
    }
}

/// What has been done since the start.
pub(super) async fn stats(State(worker): State<Arc<Worker>>) -> Json<Stats> {
    let health = worker.health();
    Json(Stats {
        model: worker.spec.model.to_string(),
        device: worker.spec.device.to_string(),
        uptime_s: worker.started.elapsed().as_secs_f64(),
        context_length: health.context_length,
        weight_bytes: health.weight_bytes,
        engine: health.engine,
        totals: worker.activity.totals(),
        places: worker.places(),
        residency: worker.monitor().map(Streaming::of),
    })
}

/// OpenAI's model object.
#[derive(Serialize)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    context_length: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct Models {
    object: &'static str,
    data: Vec<Model>,
}

fn served(worker: &Worker) -> Model {
    let started = SystemTime::now().checked_sub(worker.started.elapsed()).unwrap_or(UNIX_EPOCH);
    Model {
        id: worker.spec.model.to_string(),
        object: "model",
        created: started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        owned_by: "model-boss",
        context_length: worker.health().context_length,
    }
}

/// The one model.
pub(super) async fn models(State(worker): State<Arc<Worker>>) -> Json<Models> {
    Json(Models { object: "list", data: vec![served(&worker)] })
}

/// The one model by its name, which may have slashes in it.
pub(super) async fn model(State(worker): State<Arc<Worker>>, Path(id): Path<String>) -> Result<Json<Model>, Failure> {
    if id == worker.spec.model.as_str() {
        return Ok(Json(served(&worker)));
    }
    let message = format!("this worker serves '{}', not '{id}'", worker.spec.model);
    Err(Failure(ApiError::new(ErrorCode::ModelNotFound, message)))
}
