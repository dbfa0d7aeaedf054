//! The scheduler's recent decisions and their reasons, in a ring in memory. Other modules record into it.

use std::collections::VecDeque;

use model_boss_protocol::{ModelId, RequestId};
use schemars::JsonSchema;
use serde::Serialize;

use crate::Moment;

/// One decision with its reasons.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Decision {
    /// A number that counts up from 1 and never repeats in one process.
    pub seq: u64,
    /// The moment of the decision.
    pub at: Moment,
    /// The kind of decision.
    pub what: Verdict,
    /// The model that the decision is about.
    pub model: ModelId,
    /// The request that the decision was made for, if there was one.
    pub request: Option<RequestId>,
    /// The reasons, in short human-readable sentences.
    pub reasons: Vec<String>,
}

/// The kinds of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A load begins.
    Load,
    /// A load succeeded.
    Ready,
    /// An idle slot is evicted for another model.
    Evict,
    /// A busy slot finishes its requests and is then evicted for another model.
    Drain,
    /// A drain was cancelled.
    Keep,
    /// A slot is stopped for another reason than another model.
    Unload,
    /// A model serves from another device now, or with another context (DM-5, RC-29).
    Move,
    /// A move failed, and the first copy serves on.
    MoveFailed,
    /// A worker exited without an order.
    Crash,
    /// The ledger refused a lease.
    LeaseRefused,
    /// Leases of other holders were revoked for a model.
    Revoke,
    /// Requests for a model were refused.
    Refuse,
    /// A request was assigned to another rung of its ladder than the first (TR-2).
    Rung,
}

/// The last decisions, oldest first.
#[derive(Debug)]
pub(crate) struct Decisions {
    ring: VecDeque<Decision>,
    kept: usize,
    next: u64,
}

impl Decisions {
    pub(crate) fn new(kept: usize) -> Self {
        Self { ring: VecDeque::new(), kept, next: 1 }
    }

    pub(crate) fn record(
        &mut self,
        at: Moment,
        what: Verdict,
        model: &ModelId,
        request: Option<RequestId>,
        reasons: Vec<String>,
    ) {
        let seq = self.next;
        self.next += 1;
        if self.kept == 0 {
            return;
        }
        if self.ring.len() == self.kept {
            self.ring.pop_front();
        }
        self.ring.push_back(Decision { seq, at, what, model: model.clone(), request, reasons });
    }

    /// Sets the number of decisions kept.
    pub(crate) fn keep(&mut self, kept: usize) {
        self.kept = kept;
        while self.ring.len() > kept {
            self.ring.pop_front();
        }
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Decision> + ExactSizeIterator {
        self.ring.iter()
    }
}
