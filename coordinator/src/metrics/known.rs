//! The models with metrics, and what is counted of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use model_boss_core::Verdict;
use model_boss_host::clocks::unix_time;
use model_boss_protocol::ModelId;
use schemars::JsonSchema;
use serde::Serialize;

use super::of_llama_server::ServedSums;
use super::page::Page;
use super::series::{Series, SeriesPlace, SeriesPlaces};
use super::usage::RequestUsage;
use crate::history::LiveHistory;

/// The label of requests for models that are not in the catalog.
const UNKNOWN_MODEL: &str = "unknown";
/// The label of all models that are used when there is no place for more series.
const OTHER_MODELS: &str = "other";
/// The most models that left the catalog and keep their counts, so that a manifest that is absent for a moment loses
/// none.
const LEFT_KEPT: usize = 256;
/// They have this part of the places for series at most.
const LEFT_SHARE: usize = 4;

/// Every counter and histogram, and the figures of `GET /api/v1/stats`.
pub(crate) struct Metrics {
    models: RwLock<Models>,
    /// Metrics by provider prefix; all models of a provider share their series.
    providers: HashMap<String, Arc<ModelMetrics>>,
    unknown: Arc<ModelMetrics>,
    other: Arc<ModelMetrics>,
    places: Arc<SeriesPlaces>,
    left_kept: usize,
    recent: Mutex<Option<LastInference>>,
    history: Arc<LiveHistory>,
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
    /// The series, made on first use.
    series: OnceLock<ModelSeries>,
    totals: Mutex<Totals>,
    served: Mutex<ServedSums>,
    /// The sums on the last page as llama-server writes it.
    shown: Mutex<ServedSums>,
    /// The places of all models' series, and the metrics of those without one.
    shared: Option<(Arc<SeriesPlaces>, Arc<ModelMetrics>)>,
}

/// Where a model is counted.
enum ModelSeries {
    /// In series of its own.
    Own { series: Box<Series>, _place: Option<SeriesPlace> },
    /// With all others that have none.
    Shared(Arc<ModelMetrics>),
    /// Nowhere: Prometheus' library refuses the name.
    Refused,
}

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
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    time_to_first_token: Option<f64>,
    pub(super) tokens_per_second: Option<f64>,
    model_name: ModelId,
    /// The time in seconds since 1970.
    at: f64,
}

impl Metrics {
    /// Metrics without counts. `providers` are the prefixes of cloud providers, and `models` is the number of models
    /// that may have series of their own.
    pub(crate) fn new<'a>(
        providers: impl IntoIterator<Item = &'a str>,
        models: usize,
    ) -> Result<Self, prometheus::Error> {
        // If the library accepts this model's series, it accepts every model's.
        Series::new(UNKNOWN_MODEL)?;
        let of_provider = |name: &str| (name.to_owned(), Arc::new(ModelMetrics::new(format!("{name}:*"))));
        Ok(Self {
            models: RwLock::default(),
            providers: providers.into_iter().map(of_provider).collect(),
            unknown: Arc::new(ModelMetrics::new(UNKNOWN_MODEL.to_owned())),
            other: Arc::new(ModelMetrics::new(OTHER_MODELS.to_owned())),
            places: SeriesPlaces::new(models),
            left_kept: LEFT_KEPT.min(models / LEFT_SHARE),
            recent: Mutex::new(None),
            history: Arc::new(LiveHistory::start()),
        })
    }

    /// Sets the models that may be used as labels: those of the current catalog.
    pub(crate) fn know<'a>(&self, models: impl Iterator<Item = &'a ModelId>) {
        let mut all = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let mut gone = std::mem::take(&mut all.known);
        for id in models {
            let before = gone.remove(id);
            let entry = before.unwrap_or_else(|| Arc::new(self.of_model(id)));
            all.known.insert(id.clone(), entry);
        }
        let mut left: Vec<ModelId> =
            std::mem::take(&mut all.left).into_iter().filter(|id| gone.contains_key(id)).collect();
        let mut newly: Vec<ModelId> = gone.keys().filter(|id| !left.contains(id)).cloned().collect();
        newly.sort();
        left.append(&mut newly);
        left.drain(..left.len().saturating_sub(self.left_kept));
        for id in &left {
            if let Some(entry) = gone.remove(id) {
                all.known.insert(id.clone(), entry);
            }
        }
        all.left = left;
    }

    fn of_model(&self, id: &ModelId) -> ModelMetrics {
        let shared = Some((Arc::clone(&self.places), Arc::clone(&self.other)));
        ModelMetrics { shared, ..ModelMetrics::new(id.as_str().to_owned()) }
    }

    /// The label under which a model is counted; `None` where it was not used yet. A model `in_use` is used from now
    /// on.
    pub(crate) fn label(&self, id: &ModelId, in_use: bool) -> Option<String> {
        let model = self.model(Some(id));
        if in_use {
            model.count(|_| ());
        }
        match model.series.get()? {
            ModelSeries::Own { .. } => Some(model.name.clone()),
            ModelSeries::Shared(other) => Some(other.name.clone()),
            ModelSeries::Refused => None,
        }
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
            if let Some((prompt, answer)) = usage.worked {
                series.prompt_seconds.inc_by(prompt.as_secs_f64());
                series.completion_seconds.inc_by(answer.as_secs_f64());
            }
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
        model.served.lock().unwrap_or_else(PoisonError::into_inner).add(usage);
        let at = unix_time();
        let gaps = u32::try_from(usage.completion_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        let generated_for = usage.per_token.unwrap_or_default().saturating_mul(gaps);
        self.history.answered(generated_for, usage.completion_tokens, usage.first_token);
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
        self.history.loaded();
    }

    /// Counts a decision of the scheduler about a model.
    pub(crate) fn decided(&self, what: Verdict, id: &ModelId) {
        if matches!(what, Verdict::Evict | Verdict::Drain) {
            self.history.swapped();
        }
        self.model(Some(id)).count(|series| {
            series.decisions.with_label_values(&[word(what)]).inc();
            if matches!(what, Verdict::Evict | Verdict::Drain) {
                series.evictions.inc();
            }
        });
    }

    /// The last hour, for charts.
    pub(crate) fn history(&self) -> &Arc<LiveHistory> {
        &self.history
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

    /// Adds all counts so far to a page. The call takes as long as there are series, so it is not for a thread that
    /// serves sockets.
    pub(crate) fn fill(&self, page: &mut Page) {
        let mut entries: Vec<Arc<ModelMetrics>> = {
            let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
            let of_all = [&self.unknown, &self.other];
            models.known.values().chain(self.providers.values()).chain(of_all).map(Arc::clone).collect()
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            if let Some(ModelSeries::Own { series, .. }) = entry.series.get() {
                series.collect().into_iter().for_each(|family| page.add(family));
            }
        }
    }
}

impl ModelMetrics {
    fn new(name: String) -> Self {
        Self {
            name,
            series: OnceLock::new(),
            totals: Mutex::default(),
            served: Mutex::default(),
            shown: Mutex::default(),
            shared: None,
        }
    }

    /// The sums for llama-server's page, and those of the last one.
    pub(crate) fn served(&self) -> (ServedSums, ServedSums) {
        let now = *self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *self.shown.lock().unwrap_or_else(PoisonError::into_inner), now);
        (now, before)
    }

    /// Counts a request that left the queue for a worker after this time.
    pub(crate) fn queued(&self, waited: Duration) {
        self.count(|series| series.queue_time.observe(waited.as_secs_f64()));
    }

    fn count(&self, what: impl FnOnce(&Series)) {
        match self.series.get_or_init(|| self.first_use()) {
            ModelSeries::Own { series, .. } => what(series),
            ModelSeries::Shared(other) => {
                if let ModelSeries::Own { series, .. } = other.series.get_or_init(|| other.first_use()) {
                    what(series);
                }
            }
            ModelSeries::Refused => {}
        }
    }

    fn first_use(&self) -> ModelSeries {
        let place = match &self.shared {
            None => None,
            Some((places, other)) => match places.take() {
                Some(place) => Some(place),
                None => return ModelSeries::Shared(Arc::clone(other)),
            },
        };
        match Series::new(&self.name) {
            Ok(series) => ModelSeries::Own { series: Box::new(series), _place: place },
            Err(error) => {
                tracing::warn!(model = self.name, "nothing is counted of a model: {error}");
                ModelSeries::Refused
            }
        }
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
