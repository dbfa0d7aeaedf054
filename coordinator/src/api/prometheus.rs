//! `GET /metrics`: the counters, and the figures that are read off at this moment.

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use metrics::Label;
use model_boss_core::{LedgerState, Scheduler, SlotState};
use model_boss_protocol::{ApiError, ByteCount, ModelId, StreamStats};

use super::route::Call;
use super::{Context, providers};
use crate::metrics::Metrics;

/// `GET /metrics`.
pub(super) async fn metrics(call: Call) -> Result<Response, ApiError> {
    read_off(&call.context).await;
    let mut response = Response::new(Body::from(call.context.metrics.render()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

async fn read_off(context: &Context) {
    let metrics = &context.metrics;
    let look = |scheduler: &Scheduler, _| (scheduler.models(), scheduler.slots(), scheduler.devices());
    let (models, slots, devices) = context.scheduling.view(look).await.unwrap_or_default();
    for model in models {
        let label = || vec![Label::new("model", text(&model.id))];
        metrics.gauge("model_boss_queue_depth", label(), model.queued as f64);
        metrics.gauge("model_boss_requests_running", label(), model.running as f64);
    }
    for state in ["loading", "ready", "stopping"] {
        let count = slots.iter().filter(|slot| word(slot.state) == state).count();
        metrics.gauge("model_boss_slots", vec![Label::new("state", state)], count as f64);
    }
    for (model, stats) in context.streams.models() {
        stream(metrics, &model, &stats.unwrap_or_default());
    }
    for device in devices {
        let label = || vec![Label::new("device", device.id.to_string())];
        // Unknown is not zero (RC-21): Prometheus' word for it is NaN.
        let bytes = |known: Option<ByteCount>| known.map_or(f64::NAN, |bytes| bytes.0 as f64);
        metrics.gauge("model_boss_device_capacity_bytes", label(), bytes(device.capacity));
        metrics.gauge("model_boss_device_foreign_bytes", label(), bytes(device.foreign));
        metrics.gauge("model_boss_device_leased_bytes", label(), bytes(Some(device.charged)));
        metrics.gauge("model_boss_device_free_bytes", label(), bytes(device.free));
    }
    let memory = context.memory.figures();
    metrics.gauge("model_boss_request_memory_used_bytes", Vec::new(), memory.used.0 as f64);
    metrics.gauge("model_boss_request_memory_limit_bytes", Vec::new(), memory.limit.0 as f64);
    metrics.count_so_far("model_boss_request_memory_refused_total", Vec::new(), memory.refused);
    let open = context.store.status().state == LedgerState::Open;
    metrics.gauge("model_boss_lease_store_available", Vec::new(), f64::from(u8::from(open)));
    let problems = context.catalog.current().problems.len();
    metrics.gauge("model_boss_manifest_problems", Vec::new(), problems as f64);
    let tasks = context.tasks.current();
    let reloaded = |file: &'static str, good: bool| {
        metrics.gauge(
            "model_boss_config_last_reload_successful",
            vec![Label::new("file", file)],
            f64::from(u8::from(good)),
        );
    };
    reloaded("manifests", problems == 0);
    reloaded("tasks", tasks.problems.is_empty());
    metrics.gauge(
        "model_boss_config_last_reload_success_timestamp_seconds",
        vec![Label::new("file", "tasks")],
        tasks.reloads.at,
    );
    for (outcome, count) in [("adopted", tasks.reloads.adopted), ("refused", tasks.reloads.refused)] {
        let labels = vec![Label::new("file", "tasks"), Label::new("outcome", outcome)];
        metrics.gauge("model_boss_config_reloads", labels, count as f64);
    }
    metrics.gauge(
        "model_boss_runtime_config_ok",
        Vec::new(),
        f64::from(u8::from(context.config.problems().is_empty())),
    );
    clouds(context);
}

/// What was asked of providers and spent there (RC-27).
fn clouds(context: &Context) {
    let metrics = &context.metrics;
    let (providers, today) = context.clouds.report(providers::now());
    for provider in &providers {
        let of_provider = || Label::new("provider", provider.name.clone());
        for model in &provider.models {
            let labels = || vec![of_provider(), Label::new("model", model.model.clone())];
            let tally = &model.since_start;
            metrics.count_so_far("model_boss_cloud_requests_total", labels(), tally.requests);
            metrics.count_so_far("model_boss_cloud_errors_total", labels(), tally.errors);
            metrics.count_so_far("model_boss_cloud_prompt_tokens_total", labels(), tally.input_tokens);
            metrics.count_so_far("model_boss_cloud_completion_tokens_total", labels(), tally.output_tokens);
            metrics.gauge("model_boss_cloud_spent_usd", labels(), tally.spent_usd.unwrap_or(f64::NAN));
        }
        metrics.gauge(
            "model_boss_cloud_spent_today_usd",
            vec![of_provider()],
            provider.today.spent_usd.unwrap_or(f64::NAN),
        );
    }
    // Names of clients come from strangers: those that an operator wrote down are few.
    for client in providers::budgets(context, &today).into_iter().filter(|client| client.is_profile) {
        let label = || vec![Label::new("client", client.id.clone())];
        metrics.gauge("model_boss_client_spent_today_usd", label(), client.spent_usd);
        metrics.gauge("model_boss_client_daily_spend_limit_usd", label(), client.daily_limit_usd.unwrap_or(f64::NAN));
    }
}

/// Layers that come and go (RS-9), as the model's worker told last; nothing where all stay by now.
fn stream(metrics: &Metrics, model: &ModelId, stats: &StreamStats) {
    let label = || vec![Label::new("model", text(model))];
    for (kind, count) in [("resident", stats.resident_layers), ("streamed", stats.streamed_layers)] {
        let labels = vec![Label::new("model", text(model)), Label::new("kind", kind)];
        metrics.gauge("model_boss_stream_layers", labels, f64::from(count));
    }
    metrics.gauge("model_boss_stream_bytes", label(), stats.bytes as f64);
    metrics.gauge("model_boss_stream_bytes_per_second", label(), stats.bytes_per_second);
    metrics.gauge("model_boss_stream_overlap_ratio", label(), stats.overlap);
    for (part, seconds) in [
        ("read", stats.read_seconds),
        ("place", stats.place_seconds),
        ("compute", stats.compute_seconds),
        ("stall", stats.stall_seconds),
        ("wall", stats.wall_seconds),
    ] {
        let labels = vec![Label::new("model", text(model)), Label::new("part", part)];
        metrics.gauge("model_boss_stream_time_seconds", labels, seconds);
    }
}

fn text(model: &ModelId) -> String {
    model.as_str().to_owned()
}

fn word(state: SlotState) -> &'static str {
    match state {
        SlotState::Idle => "idle",
        SlotState::Loading(_) => "loading",
        SlotState::Ready(_) => "ready",
        SlotState::Stopping(_) => "stopping",
    }
}
