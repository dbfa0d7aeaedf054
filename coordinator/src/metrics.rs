//! What is counted, in Prometheus' words. Label values come from the catalog and from HTTP's status codes, never from
//! what a client wrote, so the number of series is bounded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusRecorder};
use model_boss_core::Verdict;
use model_boss_protocol::ModelId;
use serde::Serialize;

const REQUESTS: &str = "model_boss_requests_total";
const PROMPT_TOKENS: &str = "model_boss_prompt_tokens_total";
const COMPLETION_TOKENS: &str = "model_boss_completion_tokens_total";
const FIRST_TOKEN: &str = "model_boss_time_to_first_token_seconds";
const PER_TOKEN: &str = "model_boss_time_per_output_token_seconds";
const QUEUE_TIME: &str = "model_boss_queue_time_seconds";
const REQUEST_TIME: &str = "model_boss_request_duration_seconds";
const LOADS: &str = "model_boss_load_duration_seconds";
const DECISIONS: &str = "model_boss_decisions_total";
const EVICTIONS: &str = "model_boss_evictions_total";

/// The label of requests for models that are not in the catalog.
const UNKNOWN_MODEL: &str = "unknown";

const METADATA: Metadata<'static> = Metadata::new("model-boss", Level::INFO, None);

/// Every counter and histogram, and the figures of `GET /api/v1/stats`.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    models: RwLock<HashMap<ModelId, Arc<ModelMetrics>>>,
    /// By prefix; all models of one share their series.
    providers: HashMap<String, Arc<ModelMetrics>>,
    unknown: Arc<ModelMetrics>,
    recent: Mutex<Option<Recent>>,
}

/// The handles of one model, looked up once for each request.
pub(crate) struct ModelMetrics {
    label: Label,
    by_status: Mutex<Vec<(u16, Counter)>>,
    prompt_tokens: Counter,
    completion_tokens: Counter,
    first_token: Histogram,
    per_token: Histogram,
    queue_time: Histogram,
    request_time: Histogram,
    load_time: Histogram,
    totals: Mutex<Totals>,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Totals {
    requests: u64,
    input_tokens: u64,
    output_tokens: u64,
}

/// The most recent inference (MM-9).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Recent {
    input_tokens: u64,
    output_tokens: u64,
    time_to_first_token: Option<f64>,
    tokens_per_second: Option<f64>,
    model_name: ModelId,
    /// Seconds since 1970.
    at: f64,
}

/// What one request used and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) first_token: Option<Duration>,
    pub(crate) per_token: Option<Duration>,
}

impl Metrics {
    /// Nothing counted yet. `providers` are the prefixes of models elsewhere.
    pub(crate) fn new<'a>(providers: impl IntoIterator<Item = &'a str>) -> Result<Self, BuildError> {
        let histogram = |name: &str, buckets: &[f64]| (Matcher::Full(name.to_owned()), buckets.to_vec());
        let buckets = [
            histogram(
                FIRST_TOKEN,
                &[
                    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
                    40.0, 80.0, 160.0,
                ],
            ),
            histogram(
                PER_TOKEN,
                &[
                    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                    0.75, 1.0, 2.5,
                ],
            ),
            histogram(
                QUEUE_TIME,
                &[0.001, 0.01, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 600.0],
            ),
            histogram(
                REQUEST_TIME,
                &[0.01, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 600.0],
            ),
            histogram(LOADS, &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0]),
        ];
        let mut builder = PrometheusBuilder::new();
        for (matcher, values) in buckets {
            builder = builder.set_buckets_for_metric(matcher, &values)?;
        }
        let recorder = builder.build_recorder();
        describe(&recorder);
        let unknown = Arc::new(ModelMetrics::new(&recorder, UNKNOWN_MODEL));
        let handles = |name: &str| (name.to_owned(), Arc::new(ModelMetrics::new(&recorder, &format!("{name}:*"))));
        let providers = providers.into_iter().map(handles).collect();
        Ok(Self { recorder, models: RwLock::default(), providers, unknown, recent: Mutex::new(None) })
    }

    /// The models that may be used as labels.
    pub(crate) fn know<'a>(&self, models: impl Iterator<Item = &'a ModelId>) {
        let mut known = self.models.write().unwrap_or_else(PoisonError::into_inner);
        for id in models {
            known.entry(id.clone()).or_insert_with(|| Arc::new(ModelMetrics::new(&self.recorder, id.as_str())));
        }
    }

    /// The handles of a model; those of `unknown` when it is in no catalog.
    pub(crate) fn model(&self, id: Option<&ModelId>) -> Arc<ModelMetrics> {
        let known = self.models.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(id.and_then(|id| known.get(id)).unwrap_or(&self.unknown))
    }

    /// The handles of everything that a provider serves.
    pub(crate) fn provider(&self, prefix: &str) -> Arc<ModelMetrics> {
        Arc::clone(self.providers.get(prefix).unwrap_or(&self.unknown))
    }

    /// A request got its last byte, or its refusal.
    pub(crate) fn answered(&self, model: &ModelMetrics, status: u16, took: Duration) {
        model.status(&self.recorder, status).increment(1);
        model.request_time.record(took.as_secs_f64());
        model.totals.lock().unwrap_or_else(PoisonError::into_inner).requests += 1;
    }

    /// What a request that got an answer used.
    pub(crate) fn used(&self, id: &ModelId, model: &ModelMetrics, usage: &Usage) {
        model.prompt_tokens.increment(usage.prompt_tokens);
        model.completion_tokens.increment(usage.completion_tokens);
        let first_token = usage.first_token.map(|time| time.as_secs_f64());
        let per_token = usage.per_token.map(|time| time.as_secs_f64());
        if let Some(seconds) = first_token {
            model.first_token.record(seconds);
        }
        if let Some(seconds) = per_token {
            model.per_token.record(seconds);
        }
        {
            let mut totals = model.totals.lock().unwrap_or_else(PoisonError::into_inner);
            totals.input_tokens += usage.prompt_tokens;
            totals.output_tokens += usage.completion_tokens;
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        *self.recent.lock().unwrap_or_else(PoisonError::into_inner) = Some(Recent {
            input_tokens: usage.prompt_tokens,
            output_tokens: usage.completion_tokens,
            time_to_first_token: first_token,
            tokens_per_second: per_token.filter(|seconds| *seconds > 0.0).map(|seconds| 1.0 / seconds),
            model_name: id.clone(),
            at,
        });
    }

    /// A model became ready this long after its spawn was ordered.
    pub(crate) fn loaded(&self, id: &ModelId, took: Duration) {
        self.model(Some(id)).load_time.record(took.as_secs_f64());
    }

    /// The scheduler decided something about a model.
    pub(crate) fn decided(&self, what: Verdict, id: &ModelId) {
        let model = self.model(Some(id)).label.clone();
        let count =
            |name, labels| self.recorder.register_counter(&Key::from_parts(name, labels), &METADATA).increment(1);
        count(DECISIONS, vec![model.clone(), Label::from_static_parts("what", word(what))]);
        if matches!(what, Verdict::Evict | Verdict::Drain) {
            count(EVICTIONS, vec![model]);
        }
    }

    /// The most recent inference.
    pub(crate) fn recent(&self) -> Option<Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sums per model.
    pub(crate) fn totals(&self) -> Vec<(ModelId, Totals)> {
        let known = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let total = |metrics: &ModelMetrics| *metrics.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals: Vec<_> = known.iter().map(|(id, metrics)| (id.clone(), total(metrics))).collect();
        totals.sort_by(|a, b| a.0.cmp(&b.0));
        totals
    }

    /// Sets a figure that is read off at the moment of the scrape.
    pub(crate) fn gauge(&self, name: &'static str, labels: Vec<Label>, value: f64) {
        self.gauge_handle(name, labels).set(value);
    }

    /// Sets a counter that is kept elsewhere to what it is at the moment of the scrape.
    pub(crate) fn count_so_far(&self, name: &'static str, labels: Vec<Label>, value: u64) {
        self.recorder.register_counter(&Key::from_parts(name, labels), &METADATA).absolute(value);
    }

    /// The page for Prometheus.
    pub(crate) fn render(&self) -> String {
        self.recorder.handle().render()
    }

    /// Moves recorded samples into their buckets; without it they pile up until the next scrape.
    pub(crate) fn upkeep(&self) {
        self.recorder.handle().run_upkeep();
    }

    fn gauge_handle(&self, name: &'static str, labels: Vec<Label>) -> Gauge {
        self.recorder.register_gauge(&Key::from_parts(name, labels), &METADATA)
    }
}

impl ModelMetrics {
    fn new(recorder: &PrometheusRecorder, model: &str) -> Self {
        let label = Label::new("model", SharedString::from(model.to_owned()));
        let key = |name: &'static str| Key::from_parts(name, vec![label.clone()]);
        let counter = |name| recorder.register_counter(&key(name), &METADATA);
        let histogram = |name| recorder.register_histogram(&key(name), &METADATA);
        Self {
            by_status: Mutex::default(),
            prompt_tokens: counter(PROMPT_TOKENS),
            completion_tokens: counter(COMPLETION_TOKENS),
            first_token: histogram(FIRST_TOKEN),
            per_token: histogram(PER_TOKEN),
            queue_time: histogram(QUEUE_TIME),
            request_time: histogram(REQUEST_TIME),
            load_time: histogram(LOADS),
            totals: Mutex::default(),
            label,
        }
    }

    /// A request left the queue for a worker after this long.
    pub(crate) fn queued(&self, waited: Duration) {
        self.queue_time.record(waited.as_secs_f64());
    }

    fn status(&self, recorder: &PrometheusRecorder, status: u16) -> Counter {
        let mut known = self.by_status.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counter)) = known.iter().find(|(code, _)| *code == status) {
            return counter.clone();
        }
        let labels = vec![self.label.clone(), Label::new("status", status.to_string())];
        let counter = recorder.register_counter(&Key::from_parts(REQUESTS, labels), &METADATA);
        known.push((status, counter.clone()));
        counter
    }
}

/// The name of a kind of decision, as `GET /api/v1/decisions` writes it.
fn word(what: Verdict) -> &'static str {
    match what {
        Verdict::Load => "load",
        Verdict::Ready => "ready",
        Verdict::Evict => "evict",
        Verdict::Drain => "drain",
        Verdict::Keep => "keep",
        Verdict::Unload => "unload",
        Verdict::Move => "move",
        Verdict::MoveFailed => "move_failed",
        Verdict::Crash => "crash",
        Verdict::LeaseRefused => "lease_refused",
        Verdict::Revoke => "revoke",
        Verdict::Refuse => "refuse",
        Verdict::Rung => "rung",
    }
}

fn describe(recorder: &PrometheusRecorder) {
    let counters = [
        (REQUESTS, Unit::Count, "Inference requests that ended, by model and HTTP status; 499: the client went away"),
        (PROMPT_TOKENS, Unit::Count, "Tokens of prompts"),
        (COMPLETION_TOKENS, Unit::Count, "Tokens generated"),
        (DECISIONS, Unit::Count, "Decisions of the scheduler, by model and kind"),
        (EVICTIONS, Unit::Count, "Times a model was told to leave for another one"),
        ("model_boss_cloud_requests_total", Unit::Count, "Requests sent to providers, by provider and model"),
        ("model_boss_cloud_errors_total", Unit::Count, "Requests to providers that got no answer"),
        ("model_boss_cloud_prompt_tokens_total", Unit::Count, "Tokens of prompts that providers read"),
        ("model_boss_cloud_completion_tokens_total", Unit::Count, "Tokens that providers generated"),
    ];
    for (name, unit, help) in counters {
        recorder.describe_counter(KeyName::from_const_str(name), Some(unit), help.into());
    }
    let histograms = [
        (FIRST_TOKEN, "From the request's arrival to the first byte of its answer"),
        (PER_TOKEN, "Between two tokens of an answer, on average over the answer"),
        (QUEUE_TIME, "From the request's arrival to its dispatch"),
        (REQUEST_TIME, "From the request's arrival to the last byte of its answer"),
        (LOADS, "From the order to start a worker to its readiness"),
    ];
    for (name, help) in histograms {
        recorder.describe_histogram(KeyName::from_const_str(name), Some(Unit::Seconds), help.into());
    }
    let gauges = [
        ("model_boss_cloud_spent_usd", "US dollars spent at providers since the start; NaN: no price is known"),
        (
            "model_boss_cloud_spent_today_usd",
            "US dollars spent at a provider on this day of UTC; NaN: no price is known",
        ),
        ("model_boss_client_spent_today_usd", "US dollars spent on this day of UTC by a client that has a limit"),
        ("model_boss_client_daily_spend_limit_usd", "What a client may spend in a day, in US dollars"),
        ("model_boss_queue_depth", "Requests that wait, by model"),
        ("model_boss_requests_running", "Requests that workers work on, by model"),
        ("model_boss_slots", "Slots by state"),
        ("model_boss_stream_layers", "Layers of a streamed model: those that stay and those that come and go"),
        ("model_boss_stream_bytes", "Bytes of layers brought to the device since its worker started"),
        ("model_boss_stream_bytes_per_second", "The same in a second of its steps"),
        ("model_boss_stream_overlap_ratio", "The longer of reading and computing as a share of the time both took"),
        ("model_boss_stream_time_seconds", "Where the time of its steps went"),
        ("model_boss_device_capacity_bytes", "Memory that may be used for models; NaN: unknown"),
        ("model_boss_device_foreign_bytes", "Memory in use by programs without a lease; NaN: unknown"),
        ("model_boss_device_leased_bytes", "Memory held by slots"),
        ("model_boss_device_free_bytes", "Memory that a load could take now; NaN: unknown"),
        ("model_boss_lease_store_available", "Whether memory can be leased: 0 while the store is away or recovering"),
        ("model_boss_manifest_problems", "Manifests that could not be read"),
        ("model_boss_config_last_reload_successful", "1: the file as it stands is in use; 0: its last good version is"),
        ("model_boss_config_last_reload_success_timestamp_seconds", "When the file in use was read"),
        ("model_boss_config_reloads", "Edits that took effect, and those that made no sense"),
        ("model_boss_runtime_config_ok", "0: the stored runtime configuration cannot be read or makes no sense"),
    ];
    for (name, help) in gauges {
        recorder.describe_gauge(KeyName::from_const_str(name), None, help.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_shows_up_under_its_model_and_status() {
        let metrics = Metrics::new([]).unwrap();
        let guide = ModelId::from("guide");
        metrics.know([&guide].into_iter());
        let model = metrics.model(Some(&guide));
        metrics.answered(&model, 200, Duration::from_millis(30));
        let usage = Usage {
            prompt_tokens: 7,
            completion_tokens: 3,
            first_token: Some(Duration::from_millis(12)),
            per_token: Some(Duration::from_millis(4)),
        };
        metrics.used(&guide, &model, &usage);
        let page = metrics.render();
        assert!(page.contains(r#"model_boss_requests_total{model="guide",status="200"} 1"#), "{page}");
        assert!(page.contains(r#"model_boss_completion_tokens_total{model="guide"} 3"#), "{page}");
        assert!(page.contains(r#"model_boss_time_to_first_token_seconds_bucket{model="guide",le="0.02"} 1"#), "{page}");
        assert!(
            page.contains(r#"model_boss_time_per_output_token_seconds_bucket{model="guide",le="0.0025"} 0"#),
            "{page}"
        );
        let recent = metrics.recent().unwrap();
        assert_eq!((recent.input_tokens, recent.output_tokens, recent.tokens_per_second), (7, 3, Some(250.0)));
    }

    #[test]
    fn models_of_a_provider_share_its_series() {
        let metrics = Metrics::new(["claude"]).unwrap();
        metrics.answered(&metrics.provider("claude"), 200, Duration::ZERO);
        metrics.answered(&metrics.provider("made-up"), 200, Duration::ZERO);
        let page = metrics.render();
        assert!(page.contains(r#"model_boss_requests_total{model="claude:*",status="200"} 1"#), "{page}");
        assert!(page.contains(r#"model_boss_requests_total{model="unknown",status="200"} 1"#), "{page}");
        assert!(metrics.totals().is_empty());
    }

    #[test]
    fn a_model_that_nobody_described_makes_no_series_of_its_own() {
        let metrics = Metrics::new([]).unwrap();
        let stranger = metrics.model(Some(&ModelId::from("made-up")));
        metrics.answered(&stranger, 404, Duration::ZERO);
        let page = metrics.render();
        assert!(page.contains(r#"model_boss_requests_total{model="unknown",status="404"} 1"#), "{page}");
        assert!(!page.contains("made-up"));
    }
}
