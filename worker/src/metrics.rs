//! The worker's own metrics in Prometheus' text form.

use metrics::{Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use model_boss_engine::residency::Monitor;
use model_boss_engine::{Activity, Histograms};
use tracing::warn;

/// Buckets in seconds: a token takes from a fraction of a millisecond to seconds, a first token up to minutes.
const BUCKETS: [f64; 18] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0];

const FIRST_TOKEN: &str = "model_boss_worker_first_token_seconds";
const NEXT_TOKEN: &str = "model_boss_worker_token_seconds";
const STEP: &str = "model_boss_worker_step_seconds";
const REQUESTS: &str = "model_boss_worker_requests_total";

/// Counts and durations of one worker. No global state, so that tests run side by side.
pub(crate) struct WorkerMetrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl WorkerMetrics {
    pub(crate) fn new() -> Self {
        let recorder = with_buckets().unwrap_or_else(|error| {
            warn!(%error, "histograms are kept as summaries");
            PrometheusBuilder::new().build_recorder()
        });
        let handle = recorder.handle();
        let describe = |name: &'static str, text: &'static str| {
            recorder.describe_histogram(KeyName::from_const_str(name), Some(Unit::Seconds), SharedString::from(text));
        };
        describe(FIRST_TOKEN, "From submission to the first token");
        describe(NEXT_TOKEN, "From one token of an answer to its next");
        describe(STEP, "One step of the batch");
        Self { recorder, handle }
    }

    /// The histograms in which the engine records durations.
    pub(crate) fn histograms(&self) -> Histograms {
        let histogram = |name| self.histogram(name);
        Histograms { first_token: histogram(FIRST_TOKEN), next_token: histogram(NEXT_TOKEN), step: histogram(STEP) }
    }

    /// Counts one answered request.
    pub(crate) fn answered(&self, route: &str, status: u16) {
        let labels = vec![Label::new("route", route.to_owned()), Label::new("status", status.to_string())];
        self.recorder.register_counter(&Key::from_parts(REQUESTS, labels), &METADATA).increment(1);
        // Without this, samples would pile up while no scraper runs.
        self.handle.run_upkeep();
    }

    /// All metrics, in the text format of Prometheus.
    pub(crate) fn render(
        &self,
        activity: &Activity,
        kv_bytes_per_token: Option<usize>,
        streaming: Option<&Monitor>,
    ) -> String {
        let (stats, totals) = (activity.stats(), activity.totals());
        let counter = |name: &'static str, value: u64| {
            self.recorder.register_counter(&Key::from_static_name(name), &METADATA).absolute(value);
        };
        counter("model_boss_worker_steps_total", stats.steps);
        counter("model_boss_worker_prompt_tokens_total", totals.prompt_tokens);
        counter("model_boss_worker_completion_tokens_total", totals.completion_tokens);
        for (end, value) in [("finished", totals.finished), ("cancelled", totals.cancelled), ("failed", totals.failed)]
        {
            let key = Key::from_parts("model_boss_worker_sequences_total", vec![Label::new("end", end)]);
            self.recorder.register_counter(&key, &METADATA).absolute(value);
        }
        let gauge = |name: &'static str, value: f64| {
            self.recorder.register_gauge(&Key::from_static_name(name), &METADATA).set(value);
        };
        gauge("model_boss_worker_sequences_active", f64::from(stats.active));
        gauge("model_boss_worker_sequences_waiting", f64::from(stats.waiting));
        gauge("model_boss_worker_kv_bytes", totals.kv_bytes as f64);
        gauge("model_boss_worker_kv_blocks_used", totals.kv_used_blocks as f64);
        gauge("model_boss_worker_kv_blocks_cached", totals.kv_cached_blocks as f64);
        if let Some(bytes) = kv_bytes_per_token {
            gauge("model_boss_worker_kv_bytes_per_token", bytes as f64);
        }
        if let Some(limit) = totals.kv_limit_blocks {
            gauge("model_boss_worker_kv_blocks_limit", limit as f64);
        }
        counter("model_boss_worker_cached_tokens_total", totals.found_tokens);
        counter("model_boss_worker_preemptions_total", totals.preempted);
        counter("model_boss_worker_drafted_tokens_total", totals.drafted_tokens);
        counter("model_boss_worker_accepted_tokens_total", totals.accepted_tokens);
        if let Some(monitor) = streaming {
            self.record_streaming(monitor);
        }
        self.handle.render()
    }

    /// Streamed layers (RS-9): sums, and for each layer its part of the last step.
    fn record_streaming(&self, monitor: &Monitor) {
        let gauge = |name: &'static str, labels: Vec<Label>, value: f64| {
            self.recorder.register_gauge(&Key::from_parts(name, labels), &METADATA).set(value);
        };
        let totals = monitor.totals();
        let counter = Key::from_static_name("model_boss_worker_stream_bytes_total");
        self.recorder.register_counter(&counter, &METADATA).absolute(totals.bytes);
        for (part, seconds) in [
            ("read", totals.read_seconds),
            ("place", totals.place_seconds),
            ("compute", totals.compute_seconds),
            ("ends", totals.ends_seconds),
            ("stall", totals.stall_seconds),
            ("wall", totals.wall_seconds),
        ] {
            gauge("model_boss_worker_stream_time_seconds", vec![Label::new("part", part)], seconds);
        }
        gauge("model_boss_worker_stream_overlap_ratio", Vec::new(), totals.overlap());
        gauge("model_boss_worker_stream_bytes_per_second", Vec::new(), totals.bandwidth());
        let adapted = monitor.adapted();
        gauge("model_boss_worker_stream_look_ahead_blocks", Vec::new(), adapted.look_ahead as f64);
        gauge("model_boss_worker_stream_expected_step_seconds", Vec::new(), adapted.expected_step_seconds);
        let changes = Key::from_static_name("model_boss_worker_stream_look_ahead_changes_total");
        self.recorder.register_counter(&changes, &METADATA).absolute(adapted.changes);
        if let Some(experts) = monitor.experts() {
            let counts = [
                ("model_boss_worker_expert_uses_total", experts.uses),
                ("model_boss_worker_expert_hits_total", experts.hits),
                ("model_boss_worker_expert_reads_total", experts.reads),
                ("model_boss_worker_expert_reads_ahead_total", experts.reads_ahead),
            ];
            for (name, count) in counts {
                self.recorder.register_counter(&Key::from_static_name(name), &METADATA).absolute(count);
            }
        }
        for layer in monitor.layers() {
            let label = || vec![Label::new("layer", layer.layer.to_string())];
            gauge("model_boss_worker_layer_h2d_ms", label(), layer.h2d_ms);
            gauge("model_boss_worker_layer_compute_ms", label(), layer.compute_ms);
            gauge("model_boss_worker_layer_stall_ms", label(), layer.stall_ms);
            gauge("model_boss_worker_layer_bytes", label(), layer.bytes as f64);
        }
    }

    fn histogram(&self, name: &'static str) -> Histogram {
        self.recorder.register_histogram(&Key::from_static_name(name), &METADATA)
    }
}

static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

fn with_buckets() -> Result<PrometheusRecorder, BuildError> {
    let seconds = Matcher::Suffix("_seconds".to_owned());
    Ok(PrometheusBuilder::new().set_buckets_for_metric(seconds, &BUCKETS)?.build_recorder())
}
