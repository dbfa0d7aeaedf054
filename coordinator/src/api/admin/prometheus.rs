//! `GET /metrics`: the counters, and figures that are read at the time of the request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use model_boss_core::{LedgerState, Scheduler, SlotState, SlotView};
use model_boss_host::clocks::unix_seconds;
use model_boss_protocol::{ApiError, ByteCount, ErrorCode, ModelId, StreamStats};
use percent_encoding::percent_decode_str;
use tokio::task::spawn_blocking;

use super::providers;
use crate::api::context::Context;
use crate::api::route::Call;
use crate::metrics::{NameSet, Page};

/// The most pairs of a device and a loaded model on the page.
const MOST_HOLDERS: usize = 500;

/// `GET /metrics`.
pub(crate) async fn metrics(call: Call) -> Result<Response, ApiError> {
    let names = names(call.request.uri().query())?;
    let mut page = Page::default();
    read_off(&call.context, &mut page).await;
    let metrics = Arc::clone(&call.context.metrics);
    // The text of many models takes milliseconds, in which this thread would serve nobody.
    let written = spawn_blocking(move || {
        metrics.fill(&mut page);
        page.named(&names).render()
    });
    let text = written.await.map_err(|_| ApiError::new(ErrorCode::Internal, "the metrics could not be written"))?;
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

/// Whose names `?names=` selects: all by default.
fn names(query: Option<&str>) -> Result<BTreeSet<NameSet>, ApiError> {
    let given = query.unwrap_or_default().split('&').find_map(|field| field.strip_prefix("names="));
    let Some(given) = given else { return Ok(NameSet::ALL.into()) };
    let read = |word: &str| {
        NameSet::ALL.into_iter().find(|set| set.word() == word).ok_or_else(|| {
            let message = format!("'{word}' is no set of names; there are model_boss, vllm and llamacpp");
            ApiError::invalid("names", message)
        })
    };
    let given = percent_decode_str(given).decode_utf8_lossy();
    given.split(',').map(read).collect()
}

/// The numbers of jobs and of batches.
fn jobs(context: &Context, page: &mut Page) {
    let (jobs, files) = context.jobs.figures();
    let queued = jobs.kept.waiting.saturating_add(jobs.kept.in_flight).saturating_sub(jobs.running);
    let kept = jobs.kept;
    for (state, count) in [
        ("queued", queued),
        ("running", jobs.running),
        ("succeeded", kept.succeeded),
        ("failed", kept.failed),
        ("cancelled", kept.cancelled),
    ] {
        page.gauge("model_boss_jobs", &[("state", state)], count as f64);
    }
    let ended = jobs.ended;
    for (state, count) in [("succeeded", ended.succeeded), ("failed", ended.failed), ("cancelled", ended.cancelled)] {
        page.count_so_far("model_boss_jobs_ended_total", &[("state", state)], count as u64);
    }
    page.gauge("model_boss_jobs_available", &[], f64::from(u8::from(context.jobs.trouble().is_none())));
    page.gauge("model_boss_job_storage_bytes", &[], files.used as f64);
    page.gauge("model_boss_job_storage_limit_bytes", &[], files.limit as f64);
    page.gauge("model_boss_batches", &[], jobs.batches as f64);
    page.gauge("model_boss_batch_lines_open", &[], jobs.lines_open as f64);
}

/// Parked prefixes.
fn parking(context: &Context, page: &mut Page) {
    let report = context.parking.report();
    for parked in report.models.iter().take(MOST_HOLDERS) {
        let labels = [("model", parked.model_name.as_str()), ("place", parked.place)];
        page.gauge("model_boss_parked_bytes", &labels, parked.bytes.0 as f64);
    }
    page.gauge("model_boss_parked_limit_bytes", &[], report.limit.0 as f64);
    let counts = report.counts;
    page.count_so_far("model_boss_parkings_total", &[], counts.parked);
    page.count_so_far("model_boss_parking_restores_total", &[], counts.restored);
    page.count_so_far("model_boss_parking_restored_tokens_total", &[], counts.restored_tokens);
    for (reason, count) in counts.refused {
        page.count_so_far("model_boss_parking_refused_total", &[("reason", reason)], count);
    }
    for (reason, count) in counts.dropped {
        page.count_so_far("model_boss_parking_dropped_total", &[("reason", reason)], count);
    }
}

async fn read_off(context: &Context, page: &mut Page) {
    let look =
        |scheduler: &Scheduler, now| (scheduler.models(), scheduler.slots(), scheduler.devices(), scheduler.waits(now));
    let (models, slots, devices, waits) = context.scheduling.view(look).await.unwrap_or_default();
    let mut loads: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for model in models {
        let label = context.metrics.label(&model.id, model.queued + model.running > 0);
        if let Some(label) = label {
            let load = loads.entry(label).or_default();
            *load = (load.0 + model.queued, load.1 + model.running);
        }
    }
    for (model, (queued, running)) in loads {
        let label = [("model", model.as_str())];
        page.gauge("model_boss_queue_depth", &label, queued as f64);
        page.gauge("model_boss_requests_running", &label, running as f64);
    }
    for (reason, count) in waits.0 {
        page.gauge("model_boss_waiting_requests", &[("reason", reason)], count as f64);
    }
    page.gauge("model_boss_queue_oldest_seconds", &[], waits.1.unwrap_or_default().as_secs_f64());
    page.gauge("model_boss_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    traces(context, page);
    parking(context, page);
    held(&slots, page);
    for state in ["loading", "ready", "stopping"] {
        let count = slots.iter().filter(|slot| word(slot.state) == state).count();
        page.gauge("model_boss_slots", &[("state", state)], count as f64);
    }
    for (model, stats) in context.streams.models() {
        // Figures of several models have no sum.
        if context.metrics.label(&model, true).as_deref() == Some(model.as_str()) {
            stream(page, &model, &stats.unwrap_or_default());
        }
    }
    for device in devices {
        let name = device.id.to_string();
        let label = [("device", name.as_str())];
        // Unknown is not zero (RC-21): Prometheus writes it as NaN.
        let bytes = |known: Option<ByteCount>| known.map_or(f64::NAN, |bytes| bytes.0 as f64);
        page.gauge("model_boss_device_capacity_bytes", &label, bytes(device.capacity));
        page.gauge("model_boss_device_foreign_bytes", &label, bytes(device.foreign));
        page.gauge("model_boss_device_leased_bytes", &label, bytes(Some(device.charged)));
        page.gauge("model_boss_device_free_bytes", &label, bytes(device.free));
        page.gauge("model_boss_device_others_bytes", &label, bytes(Some(device.leased)));
        page.gauge("model_boss_device_leases", &label, device.leases.len() as f64);
        page.gauge("model_boss_device_leaking_bytes", &label, bytes(Some(device.leaking)));
        page.gauge("model_boss_device_lost", &label, f64::from(u8::from(device.lost)));
        page.gauge("model_boss_device_closed", &label, f64::from(u8::from(device.closed)));
        // BC-6 requires entries and budget. The bytes are those of leases.
        page.gauge("model_boss_device_models", &label, device.models.len() as f64);
        if let Some(budget) = device.retention {
            page.gauge("model_boss_device_retention_budget_bytes", &label, budget.0 as f64);
        }
    }
    jobs(context, page);
    let memory = context.memory.figures();
    page.gauge("model_boss_request_memory_used_bytes", &[], memory.used.0 as f64);
    page.gauge("model_boss_request_memory_limit_bytes", &[], memory.limit.0 as f64);
    page.count_so_far("model_boss_request_memory_refused_total", &[], memory.refused);
    let open = context.store.status().state == LedgerState::Open;
    page.gauge("model_boss_lease_store_available", &[], f64::from(u8::from(open)));
    let problems = context.catalog.current().problems.len();
    page.gauge("model_boss_manifest_problems", &[], problems as f64);
    let tasks = context.tasks.current();
    for (file, good) in [("manifests", problems == 0), ("tasks", tasks.problems.is_empty())] {
        page.gauge("model_boss_config_last_reload_successful", &[("file", file)], f64::from(u8::from(good)));
    }
    let read = "model_boss_config_last_reload_success_timestamp_seconds";
    page.gauge(read, &[("file", "tasks")], tasks.reloads.at);
    for (outcome, count) in [("adopted", tasks.reloads.adopted), ("refused", tasks.reloads.refused)] {
        page.gauge("model_boss_config_reloads", &[("file", "tasks"), ("outcome", outcome)], count as f64);
    }
    let runtime_ok = context.config.problems().is_empty();
    page.gauge("model_boss_runtime_config_ok", &[], f64::from(u8::from(runtime_ok)));
    clouds(context, page);
}

/// Spans by what became of them.
fn traces(context: &Context, page: &mut Page) {
    let Some(figures) = context.traces.figures() else { return };
    page.count_so_far("model_boss_trace_spans_exported_total", &[], figures.exported);
    for (reason, count) in [("queue_full", figures.dropped_full), ("export_failed", figures.dropped_failed)] {
        page.count_so_far("model_boss_trace_spans_dropped_total", &[("reason", reason)], count);
    }
}

/// The memory of each loaded model on each device. A model may have two slots while it moves.
fn held(slots: &[SlotView], page: &mut Page) {
    let mut held: BTreeMap<(String, &str), u64> = BTreeMap::new();
    for slot in slots {
        for (device, bytes) in &slot.parts {
            *held.entry((device.to_string(), slot.model.as_str())).or_default() += bytes.0;
        }
    }
    for ((device, model), bytes) in held.iter().take(MOST_HOLDERS) {
        page.gauge("model_boss_device_held_bytes", &[("device", device), ("model", model)], *bytes as f64);
    }
}

/// Requests to providers and their cost (RC-27).
fn clouds(context: &Context, page: &mut Page) {
    let (providers, today) = context.clouds.report(unix_seconds());
    for provider in &providers {
        let of_provider = ("provider", provider.name.as_str());
        for model in &provider.models {
            let labels = [of_provider, ("model", model.model.as_str())];
            let tally = &model.since_start;
            page.count_so_far("model_boss_cloud_requests_total", &labels, tally.requests);
            page.count_so_far("model_boss_cloud_errors_total", &labels, tally.errors);
            page.count_so_far("model_boss_cloud_prompt_tokens_total", &labels, tally.input_tokens);
            page.count_so_far("model_boss_cloud_completion_tokens_total", &labels, tally.output_tokens);
            page.gauge("model_boss_cloud_spent_usd", &labels, tally.spent_usd.unwrap_or(f64::NAN));
        }
        let today = provider.today.spent_usd.unwrap_or(f64::NAN);
        page.gauge("model_boss_cloud_spent_today_usd", &[of_provider], today);
    }
    // Clients choose their own names, so only configured ones, which are few, become labels.
    for client in providers::budgets(context, &today).into_iter().filter(|client| client.is_profile) {
        let label = [("client", client.id.as_str())];
        page.gauge("model_boss_client_spent_today_usd", &label, client.spent_usd);
        page.gauge("model_boss_client_daily_spend_limit_usd", &label, client.daily_limit_usd.unwrap_or(f64::NAN));
    }
}

/// Figures of streamed layers (RS-9), as the model's worker last reported them; empty where all layers are resident by
/// now.
fn stream(page: &mut Page, model: &ModelId, stats: &StreamStats) {
    let of_model = ("model", model.as_str());
    for (kind, count) in [("resident", stats.resident_layers), ("streamed", stats.streamed_layers)] {
        page.gauge("model_boss_stream_layers", &[of_model, ("kind", kind)], f64::from(count));
    }
    page.gauge("model_boss_stream_bytes", &[of_model], stats.bytes as f64);
    page.gauge("model_boss_stream_bytes_per_second", &[of_model], stats.bytes_per_second);
    page.gauge("model_boss_stream_overlap_ratio", &[of_model], stats.overlap);
    for (part, seconds) in [
        ("read", stats.read_seconds),
        ("place", stats.place_seconds),
        ("compute", stats.compute_seconds),
        ("stall", stats.stall_seconds),
        ("wall", stats.wall_seconds),
    ] {
        page.gauge("model_boss_stream_time_seconds", &[of_model, ("part", part)], seconds);
    }
}

fn word(state: SlotState) -> &'static str {
    match state {
        SlotState::Idle => "idle",
        SlotState::Loading(_) => "loading",
        SlotState::Ready(_) => "ready",
        SlotState::Stopping(_) => "stopping",
    }
}
