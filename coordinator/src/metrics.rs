//! The metrics, in Prometheus' format. Label values come from the catalog and from HTTP's status codes, never from
//! clients. A model's series begin with its first use and end with its entry here. Their number is thus limited by the
//! number of models.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use model_boss_core::Verdict;
use model_boss_host::clocks::unix_time;
use model_boss_protocol::ModelId;
use prometheus::core::Collector;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, TextEncoder};
use schemars::JsonSchema;
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
/// The number of models that left the catalog and keep their counts, so that a manifest that is absent for a moment
/// loses none.
const LEFT_KEPT: usize = 256;

/// Every counter and histogram, and the figures of `GET /api/v1/stats`.
pub(crate) struct Metrics {
    models: RwLock<Models>,
    /// Metrics by provider prefix; all models of a provider share their series.
    providers: HashMap<String, Arc<ModelMetrics>>,
    unknown: Arc<ModelMetrics>,
    recent: Mutex<Option<LastInference>>,
}

/// The models of the catalog, and the last that left it.
#[derive(Default)]
struct Models {
    known: HashMap<ModelId, Arc<ModelMetrics>>,
    /// The models that left, the earliest first.
    left: Vec<ModelId>,
}

/// The metrics of one model, looked up once for each request.
pub(crate) struct ModelMetrics {
    name: String,
    /// The series, made on first use; `None` where Prometheus' library refuses them.
    series: OnceLock<Option<Series>>,
    totals: Mutex<Totals>,
}

/// The series of one model.
struct Series {
    requests: IntCounterVec,
    decisions: IntCounterVec,
    evictions: IntCounter,
    prompt_tokens: IntCounter,
    completion_tokens: IntCounter,
    first_token: Histogram,
    per_token: Histogram,
    queue_time: Histogram,
    request_time: Histogram,
    load_time: Histogram,
}

/// The page for Prometheus, built at each scrape. A figure that is read at that time has no series that could outlive
/// its subject.
pub(crate) struct Page(BTreeMap<String, MetricFamily>);

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Totals {
    requests: u64,
    input_tokens: u64,
    output_tokens: u64,
}

/// The most recent inference (MM-9).
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct LastInference {
    input_tokens: u64,
    output_tokens: u64,
    time_to_first_token: Option<f64>,
    tokens_per_second: Option<f64>,
    model_name: ModelId,
    /// The time in seconds since 1970.
    at: f64,
}

/// The tokens and times of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RequestUsage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) first_token: Option<Duration>,
    pub(crate) per_token: Option<Duration>,
    /// The tokens of the prompt that were cached, as far as the answer tells.
    pub(crate) cached_tokens: Option<u64>,
    /// The times that the worker measured for the prompt and for the answer.
    pub(crate) worked: Option<(Duration, Duration)>,
}

impl Metrics {
    /// Metrics without counts. `providers` are the prefixes of cloud providers.
    pub(crate) fn new<'a>(providers: impl IntoIterator<Item = &'a str>) -> Result<Self, prometheus::Error> {
        // If the library accepts this model's series, it accepts every model's.
        Series::new(UNKNOWN_MODEL)?;
        let of_provider = |name: &str| (name.to_owned(), Arc::new(ModelMetrics::new(format!("{name}:*"))));
        Ok(Self {
            models: RwLock::default(),
            providers: providers.into_iter().map(of_provider).collect(),
            unknown: Arc::new(ModelMetrics::new(UNKNOWN_MODEL.to_owned())),
            recent: Mutex::new(None),
        })
    }

    /// Sets the models that may be used as labels: those of the current catalog.
    pub(crate) fn know<'a>(&self, models: impl Iterator<Item = &'a ModelId>) {
        let mut all = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let mut gone = std::mem::take(&mut all.known);
        for id in models {
            let before = gone.remove(id);
            let entry = before.unwrap_or_else(|| Arc::new(ModelMetrics::new(id.as_str().to_owned())));
            all.known.insert(id.clone(), entry);
        }
        let mut left: Vec<ModelId> =
            std::mem::take(&mut all.left).into_iter().filter(|id| gone.contains_key(id)).collect();
        let mut newly: Vec<ModelId> = gone.keys().filter(|id| !left.contains(id)).cloned().collect();
        newly.sort();
        left.append(&mut newly);
        left.drain(..left.len().saturating_sub(LEFT_KEPT));
        for id in &left {
            if let Some(entry) = gone.remove(id) {
                all.known.insert(id.clone(), entry);
            }
        }
        all.left = left;
    }

    /// The metrics of a model; those of `unknown` when no catalog has it.
    pub(crate) fn model(&self, id: Option<&ModelId>) -> Arc<ModelMetrics> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(id.and_then(|id| models.known.get(id)).unwrap_or(&self.unknown))
    }

    /// The common metrics of all models of a provider.
    pub(crate) fn provider(&self, prefix: &str) -> Arc<ModelMetrics> {
        Arc::clone(self.providers.get(prefix).unwrap_or(&self.unknown))
    }

    /// Counts a request that got its last byte, or its refusal.
    pub(crate) fn answered(&self, model: &ModelMetrics, status: u16, took: Duration) {
        model.count(|series| {
            series.requests.with_label_values(&[status.to_string()]).inc();
            series.request_time.observe(took.as_secs_f64());
        });
        model.totals.lock().unwrap_or_else(PoisonError::into_inner).requests += 1;
    }

    /// Counts the usage of a request that got an answer.
    pub(crate) fn used(&self, id: &ModelId, model: &ModelMetrics, usage: &RequestUsage) {
        let first_token = usage.first_token.map(|time| time.as_secs_f64());
        let per_token = usage.per_token.map(|time| time.as_secs_f64());
        model.count(|series| {
            series.prompt_tokens.inc_by(usage.prompt_tokens);
            series.completion_tokens.inc_by(usage.completion_tokens);
            if let Some(seconds) = first_token {
                series.first_token.observe(seconds);
            }
            if let Some(seconds) = per_token {
                series.per_token.observe(seconds);
            }
        });
        {
            let mut totals = model.totals.lock().unwrap_or_else(PoisonError::into_inner);
            totals.input_tokens += usage.prompt_tokens;
            totals.output_tokens += usage.completion_tokens;
        }
        let at = unix_time();
        *self.recent.lock().unwrap_or_else(PoisonError::into_inner) = Some(LastInference {
            input_tokens: usage.prompt_tokens,
            output_tokens: usage.completion_tokens,
            time_to_first_token: first_token,
            tokens_per_second: per_token.filter(|seconds| *seconds > 0.0).map(|seconds| 1.0 / seconds),
            model_name: id.clone(),
            at,
        });
    }

    /// Counts a load: the model became ready this long after its spawn was ordered.
    pub(crate) fn loaded(&self, id: &ModelId, took: Duration) {
        self.model(Some(id)).count(|series| series.load_time.observe(took.as_secs_f64()));
    }

    /// Counts a decision of the scheduler about a model.
    pub(crate) fn decided(&self, what: Verdict, id: &ModelId) {
        self.model(Some(id)).count(|series| {
            series.decisions.with_label_values(&[word(what)]).inc();
            if matches!(what, Verdict::Evict | Verdict::Drain) {
                series.evictions.inc();
            }
        });
    }

    /// The most recent inference.
    pub(crate) fn recent(&self) -> Option<LastInference> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sums per model.
    pub(crate) fn totals(&self) -> Vec<(ModelId, Totals)> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let total = |metrics: &ModelMetrics| *metrics.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals: Vec<_> = models.known.iter().map(|(id, metrics)| (id.clone(), total(metrics))).collect();
        totals.sort_by(|a, b| a.0.cmp(&b.0));
        totals
    }

    /// The page with all counts so far.
    pub(crate) fn page(&self) -> Page {
        let mut entries: Vec<Arc<ModelMetrics>> = {
            let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
            models.known.values().chain(self.providers.values()).chain([&self.unknown]).map(Arc::clone).collect()
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let mut page = Page(BTreeMap::new());
        for series in entries.iter().filter_map(|entry| entry.series.get()?.as_ref()) {
            for family in series.collect() {
                page.add(family);
            }
        }
        page
    }
}

impl ModelMetrics {
    fn new(name: String) -> Self {
        Self { name, series: OnceLock::new(), totals: Mutex::default() }
    }

    /// Counts a request that left the queue for a worker after this time.
    pub(crate) fn queued(&self, waited: Duration) {
        self.count(|series| series.queue_time.observe(waited.as_secs_f64()));
    }

    fn count(&self, what: impl FnOnce(&Series)) {
        let series = self.series.get_or_init(|| {
            let made = Series::new(&self.name);
            made.inspect_err(|error| tracing::warn!(model = self.name, "nothing is counted of a model: {error}")).ok()
        });
        if let Some(series) = series {
            what(series);
        }
    }
}

impl Series {
    fn new(model: &str) -> Result<Self, prometheus::Error> {
        let opts = |name: &str| Opts::new(name, help(name)).const_label("model", model);
        let histogram = |name: &str, buckets: &[f64]| {
            let opts = HistogramOpts::from(opts(name)).buckets(buckets.to_vec());
            Histogram::with_opts(opts)
        };
        Ok(Self {
            requests: IntCounterVec::new(opts(REQUESTS), &["status"])?,
            decisions: IntCounterVec::new(opts(DECISIONS), &["what"])?,
            evictions: IntCounter::with_opts(opts(EVICTIONS))?,
            prompt_tokens: IntCounter::with_opts(opts(PROMPT_TOKENS))?,
            completion_tokens: IntCounter::with_opts(opts(COMPLETION_TOKENS))?,
            first_token: histogram(
                FIRST_TOKEN,
                &[
                    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
                    40.0, 80.0, 160.0,
                ],
            )?,
            per_token: histogram(
                PER_TOKEN,
                &[
                    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                    0.75, 1.0, 2.5,
                ],
            )?,
            queue_time: histogram(
                QUEUE_TIME,
                &[0.001, 0.01, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 600.0],
            )?,
            request_time: histogram(
                REQUEST_TIME,
                &[0.01, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 600.0],
            )?,
            load_time: histogram(
                LOADS,
                &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0],
            )?,
        })
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let all: [&dyn Collector; 10] = [
            &self.requests,
            &self.decisions,
            &self.evictions,
            &self.prompt_tokens,
            &self.completion_tokens,
            &self.first_token,
            &self.per_token,
            &self.queue_time,
            &self.request_time,
            &self.load_time,
        ];
        all.into_iter().flat_map(Collector::collect).collect()
    }
}

impl Page {
    /// Adds a figure that is read at the time of the scrape.
    pub(crate) fn gauge(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        let mut metric = labelled(labels);
        metric.set_gauge(gauge);
        self.add(family(name, MetricType::GAUGE, metric));
    }

    /// Adds a counter that another part keeps, with its value at the time of the scrape.
    pub(crate) fn count_so_far(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let mut counter = Counter::default();
        counter.set_value(value as f64);
        let mut metric = labelled(labels);
        metric.set_counter(counter);
        self.add(family(name, MetricType::COUNTER, metric));
    }

    /// The page as text.
    pub(crate) fn render(self) -> String {
        let families: Vec<MetricFamily> = self.0.into_values().collect();
        TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
            tracing::warn!("the page for Prometheus could not be written: {error}");
            String::new()
        })
    }

    fn add(&mut self, mut family: MetricFamily) {
        if family.get_metric().is_empty() {
            return;
        }
        match self.0.get_mut(family.name()) {
            Some(known) => known.mut_metric().append(family.mut_metric()),
            None => _ = self.0.insert(family.name().to_owned(), family),
        }
    }
}

fn labelled(labels: &[(&str, &str)]) -> Metric {
    let pair = |&(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    };
    Metric::from_label(labels.iter().map(pair).collect())
}

fn family(name: &str, kind: MetricType, metric: Metric) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help(name).to_owned());
    family.set_field_type(kind);
    family.set_metric(vec![metric]);
    family
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

/// The help of each metric, by name. Metrics with self-explanatory names have none.
const HELP: &[(&str, &str)] = &[
    (REQUESTS, "Inference requests that ended, by model and HTTP status; 499: the client went away"),
    (PROMPT_TOKENS, "Tokens of prompts"),
    (COMPLETION_TOKENS, "Tokens generated"),
    (DECISIONS, "Decisions of the scheduler, by model and kind"),
    (EVICTIONS, "Times a model was told to leave for another one"),
    ("model_boss_cloud_requests_total", "Requests sent to providers, by provider and model"),
    ("model_boss_cloud_errors_total", "Requests to providers that got no answer"),
    ("model_boss_cloud_prompt_tokens_total", "Tokens of prompts that providers read"),
    ("model_boss_cloud_completion_tokens_total", "Tokens that providers generated"),
    (FIRST_TOKEN, "From the request's arrival to the first byte of its answer"),
    (PER_TOKEN, "Between two tokens of an answer, on average over the answer"),
    (QUEUE_TIME, "From the request's arrival to its dispatch"),
    (REQUEST_TIME, "From the request's arrival to the last byte of its answer"),
    (LOADS, "From the order to start a worker to its readiness"),
    ("model_boss_cloud_spent_usd", "US dollars spent at providers since the start; NaN: no price is known"),
    ("model_boss_cloud_spent_today_usd", "US dollars spent at a provider on this day of UTC; NaN: no price is known"),
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

fn help(name: &str) -> &'static str {
    HELP.iter().find(|(known, _)| *known == name).map_or("", |(_, help)| help)
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
        let usage = RequestUsage {
            prompt_tokens: 7,
            completion_tokens: 3,
            first_token: Some(Duration::from_millis(12)),
            per_token: Some(Duration::from_millis(4)),
            ..RequestUsage::default()
        };
        metrics.used(&guide, &model, &usage);
        let page = metrics.page().render();
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
        let page = metrics.page().render();
        assert!(page.contains(r#"model_boss_requests_total{model="claude:*",status="200"} 1"#), "{page}");
        assert!(page.contains(r#"model_boss_requests_total{model="unknown",status="200"} 1"#), "{page}");
        assert!(metrics.totals().is_empty());
    }

    #[test]
    fn a_model_that_nobody_described_makes_no_series_of_its_own() {
        let metrics = Metrics::new([]).unwrap();
        let stranger = metrics.model(Some(&ModelId::from("made-up")));
        metrics.answered(&stranger, 404, Duration::ZERO);
        let page = metrics.page().render();
        assert!(page.contains(r#"model_boss_requests_total{model="unknown",status="404"} 1"#), "{page}");
        assert!(!page.contains("made-up"));
    }

    #[test]
    fn a_model_that_was_never_used_has_no_series() {
        let metrics = Metrics::new([]).unwrap();
        let models: Vec<ModelId> = (0..1_000).map(|n| ModelId::from(format!("m{n}"))).collect();
        metrics.know(models.iter());
        metrics.answered(&metrics.model(Some(&models[7])), 200, Duration::ZERO);
        let page = metrics.page().render();
        assert!(page.contains(r#"model_boss_requests_total{model="m7",status="200"} 1"#), "{page}");
        assert!(page.lines().filter(|line| !line.starts_with('#')).all(|line| line.contains("model=\"m7\"")), "{page}");
        assert_eq!(metrics.totals().len(), 1_000, "the figures for people have them all");
    }

    #[test]
    fn the_series_of_models_that_left_are_bounded_and_one_that_is_back_soon_counts_on() {
        let metrics = Metrics::new([]).unwrap();
        let stays = ModelId::from("stays");
        for n in 0..5_000 {
            let id = ModelId::from(format!("file:{n}"));
            metrics.know([&stays, &id].into_iter());
            for id in [&stays, &id] {
                let model = metrics.model(Some(id));
                metrics.answered(&model, 200, Duration::ZERO);
                model.queued(Duration::ZERO);
                metrics.decided(Verdict::Load, id);
            }
        }
        let requests = |page: &str| page.lines().filter(|line| line.starts_with("model_boss_requests_total{")).count();
        let page = metrics.page().render();
        assert!(requests(&page) <= LEFT_KEPT + 2, "{} series", requests(&page));
        assert!(metrics.totals().len() <= LEFT_KEPT + 2);
        assert!(page.contains(r#"model_boss_requests_total{model="stays",status="200"} 5000"#));
        assert!(!page.contains(r#"model="file:7""#));
        // A request that began before its model was forgotten may end later, and must not recreate the model's series.
        let late = metrics.model(Some(&"file:4999".into()));
        for n in 5_000..6_000 {
            metrics.know([&stays, &ModelId::from(format!("file:{n}"))].into_iter());
        }
        metrics.answered(&late, 200, Duration::ZERO);
        assert!(!metrics.page().render().contains(r#"model="file:4999""#));

        metrics.know(std::iter::empty());
        metrics.know([&stays].into_iter());
        metrics.answered(&metrics.model(Some(&stays)), 200, Duration::ZERO);
        assert!(metrics.page().render().contains(r#"model_boss_requests_total{model="stays",status="200"} 5001"#));
    }

    #[test]
    fn what_is_read_off_is_as_it_is_now() {
        let metrics = Metrics::new([]).unwrap();
        let mut page = metrics.page();
        page.gauge("model_boss_queue_depth", &[("model", "a \"b\"")], 2.0);
        page.gauge("model_boss_device_free_bytes", &[("device", "cuda:0")], f64::NAN);
        page.count_so_far("model_boss_cloud_requests_total", &[("provider", "far"), ("model", "x")], 7);
        let page = page.render();
        assert!(
            page.contains("# TYPE model_boss_queue_depth gauge\nmodel_boss_queue_depth{model=\"a \\\"b\\\"\"} 2\n"),
            "{page}"
        );
        assert!(page.contains("model_boss_device_free_bytes{device=\"cuda:0\"} NaN\n"), "{page}");
        assert!(page.contains("model_boss_cloud_requests_total{provider=\"far\",model=\"x\"} 7\n"), "{page}");
        assert!(!metrics.page().render().contains("queue_depth"), "nothing of an earlier scrape is left");
    }
}
