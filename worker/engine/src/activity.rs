//! An engine's activity, counted for readers on other threads.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use metrics::Histogram;
use model_boss_protocol::EngineStats;

/// Counters an engine keeps while it works. Reading them never waits for a step.
#[derive(Debug)]
pub struct Activity {
    steps: AtomicU64,
    active: AtomicU32,
    waiting: AtomicU32,
    kv_bytes: AtomicU64,
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    finished: AtomicU64,
    cancelled: AtomicU64,
    failed: AtomicU64,
    histograms: Histograms,
}

/// The histograms of durations, in seconds.
#[derive(Debug)]
pub struct Histograms {
    /// From submission to the first token.
    pub first_token: Histogram,
    /// From one token of a sequence to its next.
    pub next_token: Histogram,
    /// The time of one step of the batch.
    pub step: Histogram,
}

impl Default for Histograms {
    fn default() -> Self {
        Self { first_token: Histogram::noop(), next_token: Histogram::noop(), step: Histogram::noop() }
    }
}

/// A reading of [`Activity`]'s totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct EngineTotals {
    /// Prompt tokens evaluated.
    pub prompt_tokens: u64,
    /// Tokens sampled.
    pub completion_tokens: u64,
    /// Sequences that ended as they should.
    pub finished: u64,
    /// Sequences whose client went away.
    pub cancelled: u64,
    /// Sequences that failed.
    pub failed: u64,
    /// Bytes of keys and values held now.
    pub kv_bytes: u64,
}

impl Activity {
    /// Counts at zero.
    pub fn new(histograms: Histograms) -> Self {
        Self {
            steps: AtomicU64::new(0),
            active: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            kv_bytes: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            completion_tokens: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            histograms,
        }
    }

    /// The counts that `/health` reports.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            steps: self.steps.load(Ordering::Relaxed),
            active: self.active.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
        }
    }

    /// The sums that `/metrics` reports.
    pub fn totals(&self) -> EngineTotals {
        EngineTotals {
            prompt_tokens: self.prompt_tokens.load(Ordering::Relaxed),
            completion_tokens: self.completion_tokens.load(Ordering::Relaxed),
            finished: self.finished.load(Ordering::Relaxed),
            cancelled: self.cancelled.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            kv_bytes: self.kv_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn histograms(&self) -> &Histograms {
        &self.histograms
    }

    pub(crate) fn stepped(&self, prompt_tokens: usize) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.prompt_tokens.fetch_add(prompt_tokens as u64, Ordering::Relaxed);
    }

    pub(crate) fn sampled(&self) {
        self.completion_tokens.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, end: End) {
        match end {
            End::Finished => &self.finished,
            End::Cancelled => &self.cancelled,
            End::Failed => &self.failed,
        }
        .fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn occupied(&self, active: usize, waiting: usize, kv_bytes: u64) {
        self.active.store(u32::try_from(active).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.waiting.store(u32::try_from(waiting).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.kv_bytes.store(kv_bytes, Ordering::Relaxed);
    }
}

/// The way in which a sequence left the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished,
    Cancelled,
    Failed,
}
