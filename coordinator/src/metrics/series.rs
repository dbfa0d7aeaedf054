//! The series of one model, and the number of models that may have some.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts};

use super::listed::{
    COMPLETION_SECONDS, COMPLETION_TOKENS, DECISIONS, EVICTIONS, FIRST_TOKEN, LOADS, PER_TOKEN, PROMPT_SECONDS,
    PROMPT_TOKENS, QUEUE_TIME, REQUEST_TIME, REQUESTS, help,
};

/// The series of one model.
pub(super) struct Series {
    pub(super) requests: IntCounterVec,
    pub(super) decisions: IntCounterVec,
    pub(super) evictions: IntCounter,
    pub(super) prompt_tokens: IntCounter,
    pub(super) completion_tokens: IntCounter,
    pub(super) prompt_seconds: Counter,
    pub(super) completion_seconds: Counter,
    pub(super) first_token: Histogram,
    pub(super) per_token: Histogram,
    pub(super) queue_time: Histogram,
    pub(super) request_time: Histogram,
    pub(super) load_time: Histogram,
}

impl Series {
    pub(super) fn new(model: &str) -> Result<Self, prometheus::Error> {
        let opts = |name: &str| Opts::new(name, help(name)).const_label("model", model);
        let histogram = |name: &str, buckets: &[f64]| {
            let opts = HistogramOpts::from(opts(name)).buckets(buckets.to_vec());
            Histogram::with_opts(opts)
        };
        // Few buckets: each is a line for every model, and its twins by other names are more.
        let long = [0.1, 0.3, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 600.0];
        Ok(Self {
            requests: IntCounterVec::new(opts(REQUESTS), &["status"])?,
            decisions: IntCounterVec::new(opts(DECISIONS), &["what"])?,
            evictions: IntCounter::with_opts(opts(EVICTIONS))?,
            prompt_tokens: IntCounter::with_opts(opts(PROMPT_TOKENS))?,
            completion_tokens: IntCounter::with_opts(opts(COMPLETION_TOKENS))?,
            prompt_seconds: Counter::with_opts(opts(PROMPT_SECONDS))?,
            completion_seconds: Counter::with_opts(opts(COMPLETION_SECONDS))?,
            first_token: histogram(
                FIRST_TOKEN,
                &[0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0, 160.0],
            )?,
            per_token: histogram(
                PER_TOKEN,
                &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5],
            )?,
            queue_time: histogram(QUEUE_TIME, &[0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0])?,
            request_time: histogram(REQUEST_TIME, &long)?,
            load_time: histogram(LOADS, &long)?,
        })
    }

    pub(super) fn collect(&self) -> Vec<MetricFamily> {
        let all: [&dyn Collector; 12] = [
            &self.requests,
            &self.decisions,
            &self.evictions,
            &self.prompt_tokens,
            &self.completion_tokens,
            &self.prompt_seconds,
            &self.completion_seconds,
            &self.first_token,
            &self.per_token,
            &self.queue_time,
            &self.request_time,
            &self.load_time,
        ];
        all.into_iter().flat_map(Collector::collect).collect()
    }
}

/// The places for models with series of their own.
#[derive(Debug)]
pub(super) struct SeriesPlaces(AtomicUsize);

impl SeriesPlaces {
    pub(super) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(places)))
    }

    /// One place, unless all are taken.
    pub(super) fn take(self: &Arc<Self>) -> Option<SeriesPlace> {
        let one_less = |left: usize| left.checked_sub(1);
        let taken = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
        taken.ok().map(|_| SeriesPlace(Arc::clone(self)))
    }
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct SeriesPlace(Arc<SeriesPlaces>);

impl Drop for SeriesPlace {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::AcqRel);
    }
}
