//! What the process says about itself: liveness, health, figures, and every list an operator looks at. Nothing here wakes
//! or keeps a model (OP-4).

use std::time::UNIX_EPOCH;

use axum::response::Response;
use http::StatusCode;
use model_boss_core::{Moment, SlotState, SlotView};
use model_boss_protocol::{ApiError, Category, DeviceId, ModelId};
use serde::{Deserialize, Serialize};

use super::Context;
use super::body::{json, json_with};
use super::route::Call;

#[derive(Serialize)]
struct Word {
    status: &'static str,
}

/// `GET /live`: the process works.
pub(super) async fn live(_: Call) -> Result<Response, ApiError> {
    json(&Word { status: "ok" })
}

/// `GET /ready` and `/health`: requests are taken.
pub(super) async fn ready(call: Call) -> Result<Response, ApiError> {
    if call.context.draining.is_cancelled() {
        return json_with(StatusCode::SERVICE_UNAVAILABLE, &Word { status: "draining" });
    }
    json(&Word { status: "ok" })
}

/// The fields of MM-8.
#[derive(Serialize)]
struct Health {
    status: &'static str,
    version: &'static str,
    model_loaded: Option<ModelId>,
    checkpoint_loaded: Option<String>,
    all_models_loaded: Vec<LoadedModel>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct LoadedModel {
    model_name: ModelId,
    checkpoint: Option<String>,
    /// Seconds since 1970.
    last_use: f64,
    #[serde(rename = "type")]
    category: Category,
    device: Option<DeviceId>,
    backend: &'static str,
    backend_url: Option<String>,
}

/// `GET /api/v1/health`.
pub(super) async fn health(call: Call) -> Result<Response, ApiError> {
    let context = call.context;
    let mut slots = context.scheduling.view(|scheduler, _| scheduler.slots()).await.unwrap_or_default();
    slots.retain(|slot| matches!(slot.state, SlotState::Ready(_)));
    slots.sort_by_key(|slot| std::cmp::Reverse(slot.last_used));
    let loaded: Vec<_> = slots.into_iter().map(|slot| loaded_model(&context, slot)).collect();
    json(&Health {
        status: if context.draining.is_cancelled() { "draining" } else { "ok" },
        version: env!("CARGO_PKG_VERSION"),
        model_loaded: loaded.first().map(|model| model.model_name.clone()),
        checkpoint_loaded: loaded.first().and_then(|model| model.checkpoint.clone()),
        all_models_loaded: loaded,
        problems: context.catalog.current().problems.iter().map(ToString::to_string).collect(),
    })
}

fn loaded_model(context: &Context, slot: SlotView) -> LoadedModel {
    LoadedModel {
        checkpoint: context.catalog.current().get(&slot.model).map(|model| model.source.display().to_string()),
        last_use: wall_clock(context, slot.last_used),
        category: slot.category,
        device: slot.parts.into_iter().next().map(|(device, _)| device),
        backend: "candle",
        backend_url: slot.port.map(|port| format!("http://127.0.0.1:{port}")),
        model_name: slot.model,
    }
}

fn wall_clock(context: &Context, moment: Moment) -> f64 {
    let at = context.started.1 + moment.since_start();
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// `GET /api/v1/stats` (MM-9).
pub(super) async fn stats(call: Call) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    struct ModelTotals {
        model_name: ModelId,
        #[serde(flatten)]
        totals: crate::metrics::Totals,
    }
    #[derive(Serialize)]
    struct Stats {
        uptime_s: f64,
        /// The most recent inference.
        #[serde(flatten)]
        recent: Recent,
        models: Vec<ModelTotals>,
        queued: usize,
        running: usize,
    }
    /// Its fields are there even before the first.
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Recent {
        Some(crate::metrics::Recent),
        None {
            input_tokens: Option<u64>,
            output_tokens: Option<u64>,
            time_to_first_token: Option<f64>,
            tokens_per_second: Option<f64>,
            model_name: Option<ModelId>,
            at: Option<f64>,
        },
    }
    let context = call.context;
    let counts = context.scheduling.view(|scheduler, _| (scheduler.queued(), scheduler.running())).await;
    let (queued, running) = counts.unwrap_or_default();
    let none = Recent::None {
        input_tokens: None,
        output_tokens: None,
        time_to_first_token: None,
        tokens_per_second: None,
        model_name: None,
        at: None,
    };
    let totals = context.metrics.totals().into_iter();
    json(&Stats {
        uptime_s: context.started.0.elapsed().as_secs_f64(),
        recent: context.metrics.recent().map_or(none, Recent::Some),
        models: totals.map(|(model_name, totals)| ModelTotals { model_name, totals }).collect(),
        queued,
        running,
    })
}

/// `GET /api/v1/slots`.
pub(super) async fn slots(call: Call) -> Result<Response, ApiError> {
    let slots = call.context.scheduling.view(|scheduler, _| scheduler.slots()).await.unwrap_or_default();
    dated(&call.context, serde_json::json!({ "slots": slots }))
}

/// `GET /api/v1/queue`: every waiting request with what it waits for.
pub(super) async fn queue(call: Call) -> Result<Response, ApiError> {
    let queue = call.context.scheduling.view(|scheduler, now| scheduler.queue(now)).await.unwrap_or_default();
    dated(&call.context, serde_json::json!({ "queue": queue }))
}

/// `GET /api/v1/devices` (DM-3).
pub(super) async fn devices(call: Call) -> Result<Response, ApiError> {
    let context = call.context;
    let accounts = context.scheduling.view(|scheduler, _| scheduler.devices()).await.unwrap_or_default();
    let devices: Vec<_> = context
        .devices
        .samples()
        .into_iter()
        .map(|sample| {
            let mut value = serde_json::json!({
                "available": sample.used.is_some(),
                "name": sample.name,
                "uuid": sample.uuid,
                "total": sample.capacity,
                "used": sample.used,
            });
            let account = accounts.iter().find(|account| account.id == sample.device);
            if let (Some(object), Ok(serde_json::Value::Object(account))) =
                (value.as_object_mut(), serde_json::to_value(account))
            {
                object.extend(account);
            }
            value
        })
        .collect();
    json(&serde_json::json!({ "devices": devices }))
}

/// `GET /api/v1/decisions`: what was decided lately and why, newest last.
pub(super) async fn decisions(call: Call) -> Result<Response, ApiError> {
    let look = |scheduler: &model_boss_core::Scheduler, _| scheduler.decisions().cloned().collect::<Vec<_>>();
    let decisions = call.context.scheduling.view(look).await.unwrap_or_default();
    dated(&call.context, serde_json::json!({ "decisions": decisions }))
}

/// The scheduler counts from its own start; people outside know only seconds since 1970.
fn dated(context: &Context, mut value: serde_json::Value) -> Result<Response, ApiError> {
    fn date(context: &Context, value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Array(items) => items.iter_mut().for_each(|item| date(context, item)),
            serde_json::Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    let moment = MOMENTS.contains(&name.as_str()).then(|| Moment::deserialize(&*field).ok()).flatten();
                    match moment {
                        Some(moment) => *field = wall_clock(context, moment).into(),
                        None => date(context, field),
                    }
                }
            }
            _ => {}
        }
    }
    date(context, &mut value);
    json(&value)
}

/// The fields of the core's views that are moments.
const MOMENTS: [&str; 5] = ["at", "last_used", "ready_at", "unload_at", "deadline"];

/// `GET /api/v1/leases`: what the ledger promises to whom.
pub(super) async fn leases(call: Call) -> Result<Response, ApiError> {
    json(&serde_json::json!({ "leases": call.context.leases.list().await }))
}
