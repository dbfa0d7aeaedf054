//! What the scheduler decided lately and why. A ring in memory; knows nothing of how decisions come about.

use std::collections::VecDeque;

use model_boss_protocol::{ModelId, RequestId};
use serde::Serialize;

use crate::Moment;

/// One decision with its reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Counts up from 1 and never repeats in one process.
    pub seq: u64,
    /// When.
    pub at: Moment,
    /// What was decided.
    pub what: Verdict,
    /// About which model.
    pub model: ModelId,
    /// For which request, when there was one.
    pub request: Option<RequestId>,
    /// Why, in short sentences for people.
    pub reasons: Vec<String>,
}

/// The kinds of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A load begins.
    Load,
    /// A load ended well.
    Ready,
    /// A slot is taken for another model, at once.
    Evict,
    /// A slot ends its requests and is then taken for another model.
    Drain,
    /// A drain was called off.
    Keep,
    /// A slot leaves for another reason than another model.
    Unload,
    /// A model serves from another place now (DM-5, RC-29).
    Move,
    /// It does not, and stays where it was.
    MoveFailed,
    /// A worker went away by itself.
    Crash,
    /// The ledger did not give the memory.
    LeaseRefused,
    /// Holders of other leases were asked to make way for a model.
    Revoke,
    /// Requests for a model were refused.
    Refuse,
    /// A request went to another rung of its ladder than the first (TR-2).
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

    /// Keeps so many from now on.
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
