//! An engine's activity, counted for readers on other threads.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use metrics::Histogram;
use model_boss_protocol::EngineStats;

use crate::kv::KvUse;

/// Counters an engine keeps while it works. Reading them never waits for a step.
#[derive(Debug)]
pub struct Activity {
    steps: AtomicU64,
    active: AtomicU32,
    waiting: AtomicU32,
    kv_bytes: AtomicU64,
    kv_used: AtomicU64,
    kv_cached: AtomicU64,
    kv_limit: AtomicU64,
    found_tokens: AtomicU64,
    preempted: AtomicU64,
    drafted_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
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
    /// Bytes of keys and values held now, those that are kept for later sequences included.
    pub kv_bytes: u64,
    /// Blocks of keys and values of the sequences in the batch.
    pub kv_used_blocks: u64,
    /// Blocks that are kept for later sequences.
    pub kv_cached_blocks: u64,
    /// The most blocks at the same time; none without a limit.
    pub kv_limit_blocks: Option<u64>,
    /// Tokens that did not have to be evaluated, because an earlier sequence had begun with them.
    pub found_tokens: u64,
    /// The number of times that a sequence gave its blocks back to one that had come before it.
    pub preempted: u64,
    /// Tokens that were evaluated in advance, because they probably came next.
    pub drafted_tokens: u64,
    /// Those of them that did.
    pub accepted_tokens: u64,
}

impl Activity {
    /// Counts at zero.
    pub fn new(histograms: Histograms) -> Self {
        Self {
            steps: AtomicU64::new(0),
            active: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            kv_bytes: AtomicU64::new(0),
            kv_used: AtomicU64::new(0),
            kv_cached: AtomicU64::new(0),
            kv_limit: AtomicU64::new(u64::MAX),
            found_tokens: AtomicU64::new(0),
            preempted: AtomicU64::new(0),
            drafted_tokens: AtomicU64::new(0),
            accepted_tokens: AtomicU64::new(0),
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
            kv_used_blocks: self.kv_used.load(Ordering::Relaxed),
            kv_cached_blocks: self.kv_cached.load(Ordering::Relaxed),
            kv_limit_blocks: Some(self.kv_limit.load(Ordering::Relaxed)).filter(|limit| *limit != u64::MAX),
            found_tokens: self.found_tokens.load(Ordering::Relaxed),
            preempted: self.preempted.load(Ordering::Relaxed),
            drafted_tokens: self.drafted_tokens.load(Ordering::Relaxed),
            accepted_tokens: self.accepted_tokens.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn histograms(&self) -> &Histograms {
        &self.histograms
    }

    pub(crate) fn stepped(&self, prompt_tokens: usize) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.prompt_tokens.fetch_add(prompt_tokens as u64, Ordering::Relaxed);
    }

    /// A batch of texts or images with so many rows was computed in this time.
    pub fn encoded(&self, rows: usize, took: Duration) {
        self.stepped(rows);
        self.histograms.step.record(took);
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

    /// A sequence was let in, and this many of its tokens were there.
    pub(crate) fn found(&self, tokens: usize) {
        self.found_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// A draft ended: so many tokens were evaluated, and so many of them came.
    pub(crate) fn drafted(&self, (drafted, accepted): (usize, usize)) {
        self.drafted_tokens.fetch_add(drafted as u64, Ordering::Relaxed);
        self.accepted_tokens.fetch_add(accepted as u64, Ordering::Relaxed);
    }

    pub(crate) fn preempted(&self) {
        self.preempted.fetch_add(1, Ordering::Relaxed);
    }

    /// So many sequences or requests are computed, and so many wait.
    pub fn occupied(&self, active: usize, waiting: usize) {
        self.active.store(u32::try_from(active).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.waiting.store(u32::try_from(waiting).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    pub(crate) fn holds(&self, blocks: KvUse, block_bytes: usize) {
        let held = blocks.used.saturating_add(blocks.cached).saturating_mul(block_bytes);
        let limit = if blocks.limit == usize::MAX { u64::MAX } else { blocks.limit as u64 };
        let values = [
            (&self.kv_bytes, held as u64),
            (&self.kv_used, blocks.used as u64),
            (&self.kv_cached, blocks.cached as u64),
            (&self.kv_limit, limit),
        ];
        values.into_iter().for_each(|(count, value)| count.store(value, Ordering::Relaxed));
    }
}

/// The way in which a sequence left the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished,
    Cancelled,
    Failed,
}
