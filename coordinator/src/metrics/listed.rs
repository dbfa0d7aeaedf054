//! Every metric with its type, its labels and its help. The table of docs/observability.md is made of it.

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric of the page.
pub(super) struct ListedMetric {
    pub(super) name: &'static str,
    pub(super) kind: MetricKind,
    pub(super) labels: &'static str,
    pub(super) help: &'static str,
}

pub(super) const REQUESTS: &str = "model_boss_requests_total";
pub(super) const PROMPT_TOKENS: &str = "model_boss_prompt_tokens_total";
pub(super) const COMPLETION_TOKENS: &str = "model_boss_completion_tokens_total";
pub(super) const PROMPT_SECONDS: &str = "model_boss_prefill_seconds_total";
pub(super) const COMPLETION_SECONDS: &str = "model_boss_decode_seconds_total";
pub(super) const FIRST_TOKEN: &str = "model_boss_time_to_first_token_seconds";
pub(super) const PER_TOKEN: &str = "model_boss_time_per_output_token_seconds";
pub(super) const QUEUE_TIME: &str = "model_boss_queue_time_seconds";
pub(super) const REQUEST_TIME: &str = "model_boss_request_duration_seconds";
pub(super) const LOADS: &str = "model_boss_load_duration_seconds";
pub(super) const DECISIONS: &str = "model_boss_decisions_total";
pub(super) const EVICTIONS: &str = "model_boss_evictions_total";
pub(super) const QUEUE_DEPTH: &str = "model_boss_queue_depth";
pub(super) const RUNNING: &str = "model_boss_requests_running";

const fn row(name: &'static str, kind: MetricKind, labels: &'static str, help: &'static str) -> ListedMetric {
    ListedMetric { name, kind, labels, help }
}

use MetricKind::{Counter, Gauge, Histogram};

/// All metrics.
#[rustfmt::skip]
const LISTED: &[ListedMetric] = &[
    row("model_boss_build_info", Gauge, "version", "Always 1; the version of this coordinator"),
    row(REQUESTS, Counter, "model, status", "Inference requests that ended, by HTTP status; 499: the client went away"),
    row(PROMPT_TOKENS, Counter, "model", "Tokens of prompts"),
    row(COMPLETION_TOKENS, Counter, "model", "Tokens generated"),
    row(PROMPT_SECONDS, Counter, "model", "Time in which workers read prompts, as they measured it"),
    row(COMPLETION_SECONDS, Counter, "model", "Time in which workers wrote answers, as they measured it"),
    row(FIRST_TOKEN, Histogram, "model", "From the request's arrival to the first byte of its answer"),
    row(PER_TOKEN, Histogram, "model", "Between two tokens of an answer, on average over the answer"),
    row(QUEUE_TIME, Histogram, "model", "From the request's arrival to its dispatch"),
    row(REQUEST_TIME, Histogram, "model", "From the request's arrival to the last byte of its answer"),
    row(LOADS, Histogram, "model", "From the order to start a worker to its readiness"),
    row(DECISIONS, Counter, "model, what", "Decisions of the scheduler, by kind"),
    row(EVICTIONS, Counter, "model", "Times a model was told to leave for another one"),
    row(QUEUE_DEPTH, Gauge, "model", "Requests that wait"),
    row(RUNNING, Gauge, "model", "Requests that workers work on"),
    row("model_boss_waiting_requests", Gauge, "reason", "Requests that wait, by the reason in GET /api/v1/queue"),
    row("model_boss_queue_oldest_seconds", Gauge, "", "How long the request waits that waits longest"),
    row("model_boss_slots", Gauge, "state", "Slots by state"),
    row("model_boss_stream_layers", Gauge, "model, kind", "Layers of a streamed model: resident ones and streamed ones"),
    row("model_boss_stream_bytes", Gauge, "model", "Bytes of layers brought to the device since its worker started"),
    row("model_boss_stream_bytes_per_second", Gauge, "model", "The same in a second of its steps"),
    row("model_boss_stream_overlap_ratio", Gauge, "model", "The longer of reading and computing as a share of the time both took"),
    row("model_boss_stream_time_seconds", Gauge, "model, part", "Where the time of its steps went"),
    row("model_boss_parked_bytes", Gauge, "model, place", "Bytes of parked prefixes of a model, in memory or in a file"),
    row("model_boss_parked_limit_bytes", Gauge, "", "The most that all parked prefixes may have"),
    row("model_boss_parkings_total", Counter, "", "Times a worker parked prefixes before it ended"),
    row("model_boss_parking_restores_total", Counter, "", "Times a worker got parked prefixes back"),
    row("model_boss_parking_restored_tokens_total", Counter, "", "Tokens of parked prefixes that workers got back"),
    row("model_boss_parking_refused_total", Counter, "reason", "Times prefixes were not parked or not restored: changed, damaged, no_room, failed, no_memory, late, lost, unreadable"),
    row("model_boss_parking_dropped_total", Counter, "reason", "Times parked prefixes were dropped: age, bound, memory, invalidated, removed"),
    row("model_boss_device_capacity_bytes", Gauge, "device", "Memory that may be used for models; NaN: unknown"),
    row("model_boss_device_foreign_bytes", Gauge, "device", "Memory in use by programs without a lease; NaN: unknown"),
    row("model_boss_device_leased_bytes", Gauge, "device", "Memory held by slots"),
    row("model_boss_device_others_bytes", Gauge, "device", "Memory held by leases of others"),
    row("model_boss_device_leases", Gauge, "device", "Leases of others"),
    row("model_boss_device_leaking_bytes", Gauge, "device", "Memory of ended workers that the driver still shows"),
    row("model_boss_device_free_bytes", Gauge, "device", "Memory that a load could take now; NaN: unknown"),
    row("model_boss_device_held_bytes", Gauge, "device, model", "Memory held by the slots of a model"),
    row("model_boss_device_models", Gauge, "device", "Models with memory there"),
    row("model_boss_device_retention_budget_bytes", Gauge, "device", "The most that idle models may keep"),
    row("model_boss_device_lost", Gauge, "device", "1: its driver does not list the device any more"),
    row("model_boss_device_closed", Gauge, "device", "1: an operator closed the device to models"),
    row("model_boss_request_memory_used_bytes", Gauge, "", "Memory of bodies and answers in flight"),
    row("model_boss_request_memory_limit_bytes", Gauge, "", "The most that they may have"),
    row("model_boss_request_memory_refused_total", Counter, "", "Requests refused for that limit"),
    row("model_boss_jobs", Gauge, "state", "Jobs by state; queued ones wait, or their request does"),
    row("model_boss_jobs_ended_total", Counter, "state", "Jobs that ended since the start"),
    row("model_boss_jobs_available", Gauge, "", "Whether jobs can be kept: 0 while their store is away"),
    row("model_boss_job_storage_bytes", Gauge, "", "Bytes of bodies, results and files"),
    row("model_boss_job_storage_limit_bytes", Gauge, "", "The most that they may have"),
    row("model_boss_batches", Gauge, "", "Batches that have not ended"),
    row("model_boss_batch_lines_open", Gauge, "", "Lines of batches in work that are not answered"),
    row("model_boss_lease_store_available", Gauge, "", "Whether memory can be leased: 0 while the store is away or recovering"),
    row("model_boss_manifest_problems", Gauge, "", "Manifests that could not be read"),
    row("model_boss_config_last_reload_successful", Gauge, "file", "1: the file as it stands is in use; 0: its last good version is"),
    row("model_boss_config_last_reload_success_timestamp_seconds", Gauge, "file", "When the file in use was read"),
    row("model_boss_config_reloads", Gauge, "file, outcome", "Edits that took effect, and those that made no sense"),
    row("model_boss_runtime_config_ok", Gauge, "", "0: the stored runtime configuration cannot be read or makes no sense"),
    row("model_boss_cloud_requests_total", Counter, "provider, model", "Requests sent to providers"),
    row("model_boss_cloud_errors_total", Counter, "provider, model", "Requests to providers that got no answer"),
    row("model_boss_cloud_prompt_tokens_total", Counter, "provider, model", "Tokens of prompts that providers read"),
    row("model_boss_cloud_completion_tokens_total", Counter, "provider, model", "Tokens that providers generated"),
    row("model_boss_cloud_spent_usd", Gauge, "provider, model", "US dollars spent at providers since the start; NaN: no price is known"),
    row("model_boss_cloud_spent_today_usd", Gauge, "provider", "US dollars spent at a provider on this day of UTC; NaN: no price is known"),
    row("model_boss_client_spent_today_usd", Gauge, "client", "US dollars spent on this day of UTC by a client that has a limit"),
    row("model_boss_client_daily_spend_limit_usd", Gauge, "client", "What a client may spend in a day, in US dollars; NaN: no limit"),
    row("model_boss_trace_spans_exported_total", Counter, "", "Spans that the collector took; absent without traces"),
    row("model_boss_trace_spans_dropped_total", Counter, "reason", "Spans that were dropped: queue_full or export_failed; absent without traces"),
    row("vllm:num_requests_running", Gauge, "model_name, engine", "As model_boss_requests_running"),
    row("vllm:num_requests_waiting", Gauge, "model_name, engine", "As model_boss_queue_depth"),
    row("vllm:prompt_tokens_total", Counter, "model_name, engine", "As model_boss_prompt_tokens_total"),
    row("vllm:generation_tokens_total", Counter, "model_name, engine", "As model_boss_completion_tokens_total"),
    row("vllm:time_to_first_token_seconds", Histogram, "model_name, engine", "As model_boss_time_to_first_token_seconds"),
    row("vllm:time_per_output_token_seconds", Histogram, "model_name, engine", "As model_boss_time_per_output_token_seconds"),
    row("vllm:inter_token_latency_seconds", Histogram, "model_name, engine", "As model_boss_time_per_output_token_seconds"),
    row("vllm:e2e_request_latency_seconds", Histogram, "model_name, engine", "As model_boss_request_duration_seconds"),
    row("vllm:request_queue_time_seconds", Histogram, "model_name, engine", "As model_boss_queue_time_seconds"),
    row("llamacpp:prompt_tokens_total", Counter, "model", "As model_boss_prompt_tokens_total"),
    row("llamacpp:prompt_seconds_total", Counter, "model", "As model_boss_prefill_seconds_total"),
    row("llamacpp:tokens_predicted_total", Counter, "model", "As model_boss_completion_tokens_total"),
    row("llamacpp:tokens_predicted_seconds_total", Counter, "model", "As model_boss_decode_seconds_total"),
    row("llamacpp:prompt_tokens_seconds", Gauge, "model", "Tokens of prompts in a second of reading them, on average since the start"),
    row("llamacpp:predicted_tokens_seconds", Gauge, "model", "Tokens in a second of writing them, on average since the start"),
    row("llamacpp:requests_processing", Gauge, "model", "As model_boss_requests_running"),
    row("llamacpp:requests_deferred", Gauge, "model", "As model_boss_queue_depth"),
];

/// The help of a metric. A metric that is not listed is a fault of this program, which a test finds.
pub(super) fn help(name: &str) -> &'static str {
    find(name).map_or("", |listed| listed.help)
}

pub(super) fn find(name: &str) -> Option<&'static ListedMetric> {
    LISTED.iter().find(|listed| listed.name == name)
}

/// The table of all metrics in Markdown.
#[cfg(test)]
pub(crate) fn table() -> String {
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for ListedMetric { name, kind, labels, help } in LISTED {
        let kind = format!("{kind:?}").to_lowercase();
        let labels = labels.split(", ").filter(|label| !label.is_empty()).map(|label| format!("`{label}`"));
        let labels = labels.collect::<Vec<_>>().join(", ");
        table += &format!("| `{name}` | {kind} | {labels} | {help} |\n");
    }
    table
}
