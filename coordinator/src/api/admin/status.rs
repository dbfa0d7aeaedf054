//! The state of the process: liveness, health, figures, and the lists that operators read. None of these routes loads a
//! model or keeps one loaded (OP-4).

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use model_boss_config::model_folders;
use model_boss_core::{LedgerState, Scheduler, SlotState, SlotView};
use model_boss_host::clocks::unix_seconds;
use model_boss_http::body::{json, json_with};
use model_boss_protocol::{ApiError, DeviceId};

use super::view_bodies::{
    DecisionsAnswer, DeviceObject, DeviceTotals, DevicesAnswer, HealthAnswer, LoadedModel, ModelTotals, ProviderTotals,
    Recent, RootAnswer, SlotObject, SlotsAnswer, Stats, StatusWord,
};
use crate::api::blocking::blocking;
use crate::api::context::Context;
use crate::api::route::Call;
use crate::leases::StoreStatus;

/// `GET` and `HEAD /`: a sign of life, which Ollama's clients request first.
pub(crate) async fn root(call: Call) -> Result<Response, ApiError> {
    let accepted = call.request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepted.split(',').any(|kind| kind.trim().starts_with("application/json")) {
        return json(&RootAnswer { name: "model-boss", version: env!("CARGO_PKG_VERSION"), status: "ok" });
    }
    let mut response = Response::new(Body::from("model-boss is running\n"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}

/// `GET /live`: the process works.
pub(crate) async fn live(_: Call) -> Result<Response, ApiError> {
    json(&StatusWord { status: "ok" })
}

/// `GET /ready` and `/health`: requests are taken.
pub(crate) async fn ready(call: Call) -> Result<Response, ApiError> {
    let (draining, store) = (call.context.draining.is_cancelled(), call.context.store.status());
    let word = StatusWord { status: condition(draining, &store) };
    // Until the store is reached for the first time, no model can be loaded.
    let refuses = draining || !store.reached;
    json_with(if refuses { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }, &word)
}

/// The state of the process in one word. `ok` means that all parts work; without the ledger's store, loaded models
/// still serve.
fn condition(draining: bool, store: &StoreStatus) -> &'static str {
    match store.state {
        _ if draining => "draining",
        LedgerState::Open => "ok",
        LedgerState::Recovering { .. } => "lease_store_recovering",
        LedgerState::Away { .. } => "lease_store_unavailable",
    }
}

/// `GET /api/v1/health`.
pub(crate) async fn health(call: Call) -> Result<Response, ApiError> {
    let context = call.context;
    let mut slots = context.scheduling.view(|scheduler, _| scheduler.slots()).await.unwrap_or_default();
    slots.retain(|slot| matches!(slot.state, SlotState::Ready(_)));
    // The slot that was loaded last is first.
    slots.sort_by_key(|slot| std::cmp::Reverse(slot.ready_at));
    let store = context.store.status();
    let loaded: Vec<_> = slots.into_iter().map(|slot| loaded_model(&context, slot)).collect();
    json(&HealthAnswer {
        status: condition(context.draining.is_cancelled(), &store),
        leases: store,
        version: env!("CARGO_PKG_VERSION"),
        model_loaded: loaded.first().map(|model| model.model_name.clone()),
        checkpoint_loaded: loaded.first().and_then(|model| model.checkpoint.clone()),
        all_models_loaded: loaded,
        problems: problems(&context),
    })
}

/// Faults that an operator has to correct: in manifests, tasks, stored configuration, devices, the lease store, or
/// files that cannot be written.
fn problems(context: &Context) -> Vec<String> {
    let mut problems: Vec<String> = context.catalog.current().problems.iter().map(ToString::to_string).collect();
    problems.extend(context.tasks.problems());
    problems.extend(context.config.problems());
    problems.extend(context.devices.problems());
    let StoreStatus { store, state, warnings, .. } = context.store.status();
    problems.extend(warnings);
    if let LedgerState::Away { detail } = state {
        problems.push(format!("leases ({store}): {detail}; loaded models serve on, nothing is loaded or evicted"));
    }
    problems.extend(context.state.troubles());
    problems.extend(context.log.trouble());
    problems
}

fn loaded_model(context: &Context, slot: SlotView) -> LoadedModel {
    let catalog = context.catalog.current();
    let model = catalog.get(&slot.model);
    let devices: Vec<DeviceId> = slot.parts.into_iter().map(|(device, _)| device).collect();
    LoadedModel {
        checkpoint: model.map(|model| model_folders::checkpoint(&model.source)),
        last_use: context.clock.seconds(slot.last_used),
        category: slot.category,
        device: devices.first().cloned(),
        devices,
        backend: model.map_or("unknown", |model| context.catalog.backend(model).as_str()),
        backend_url: slot.port.map(|port| format!("http://127.0.0.1:{port}")),
        model_name: slot.model,
    }
}

/// `GET /api/v1/stats` (MM-9).
pub(crate) async fn stats(call: Call) -> Result<Response, ApiError> {
    let context = call.context;
    let look = |scheduler: &Scheduler, _| (scheduler.queued(), scheduler.running(), scheduler.devices());
    let (queued, running, devices) = context.scheduling.view(look).await.unwrap_or_default();
    let devices = devices.into_iter().map(|device| DeviceTotals {
        entries: device.models.len(),
        bytes: device.charged,
        budget: device.retention,
        device: device.id,
    });
    let none = Recent::None {
        input_tokens: None,
        output_tokens: None,
        time_to_first_token: None,
        tokens_per_second: None,
        model_name: None,
        at: None,
    };
    let totals = context.metrics.totals().into_iter();
    let (providers, _) = context.clouds.report(unix_seconds());
    let asked = providers.into_iter().filter(|provider| provider.since_start.requests > 0);
    json(&Stats {
        uptime_s: context.started.elapsed().as_secs_f64(),
        recent: context.metrics.recent().map_or(none, Recent::Some),
        models: totals.map(|(model_name, totals)| ModelTotals { model_name, totals }).collect(),
        providers: asked
            .map(|provider| ProviderTotals { provider: provider.name, totals: provider.since_start })
            .collect(),
        streams: context.streams.models().into_iter().filter_map(|(model, stats)| Some((model, stats?))).collect(),
        devices: devices.collect(),
        parking: context.parking.report(),
        request_memory: context.memory.figures(),
        queued,
        running,
    })
}

/// `GET /api/v1/slots`.
pub(crate) async fn slots(call: Call) -> Result<Response, ApiError> {
    let slots = call.context.scheduling.view(|scheduler, _| scheduler.slots()).await.unwrap_or_default();
    let context = call.context;
    blocking(move || {
        let with_layers = |slot: SlotView| {
            let adapters = context.catalog.adapters(&slot.model).into_keys().collect();
            SlotObject { layers: context.streams.of(slot.key()), adapters, slot }
        };
        let parked = context.parking.report().models;
        let slots = SlotsAnswer { slots: slots.into_iter().map(with_layers).collect(), parked };
        json(&context.clock.dated(serde_json::json!(slots)))
    })
    .await?
}

/// `GET /api/v1/devices` (DM-3).
pub(crate) async fn devices(call: Call) -> Result<Response, ApiError> {
    let context = call.context;
    let accounts = context.scheduling.view(|scheduler, _| scheduler.devices()).await.unwrap_or_default();
    let devices = context.devices.samples().into_iter().map(|sample| DeviceObject {
        available: sample.used.is_some(),
        name: sample.name,
        uuid: sample.uuid,
        total: sample.capacity,
        used: sample.used,
        problem: sample.trouble.as_ref().map(ToString::to_string),
        accounting: if sample.told_apart { "per_process" } else { "degraded" },
        sandbox: context.confinement.on(&sample.device),
        cpu_features: (sample.device == DeviceId::Cpu).then_some(context.instructions),
        account: accounts.iter().find(|account| account.id == sample.device).cloned(),
    });
    json(&DevicesAnswer { devices: devices.collect() })
}

/// `GET /api/v1/decisions`: recent decisions and their reasons, newest last.
pub(crate) async fn decisions(call: Call) -> Result<Response, ApiError> {
    let look = |scheduler: &Scheduler, _| scheduler.decisions().cloned().collect::<Vec<_>>();
    let decisions = call.context.scheduling.view(look).await.unwrap_or_default();
    let clock = call.context.clock;
    blocking(move || json(&clock.dated(serde_json::json!(DecisionsAnswer { decisions })))).await?
}
