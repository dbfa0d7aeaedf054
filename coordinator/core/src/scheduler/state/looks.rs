//! Examinations of waiting models: those that remain to be examined for a load, and how many one event may examine.

use std::collections::BTreeSet;

use crate::catalog::ModelIndex;
use crate::queue::Likeness;
use crate::{Event, Input};

/// The amount of work within one event, so that its duration does not depend on the number of waiting models.
#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) struct EventBudget {
    /// The number of models that may still be examined.
    pub(in crate::scheduler) looks: usize,
    /// Models that may still be skipped because they wait for another condition than room.
    pub(in crate::scheduler) passes: usize,
}

impl EventBudget {
    /// The budget of an input: an event considers one model, and the ticks that follow at once consider the others.
    /// An event that fills a slot with requests leaves all of them to ticks.
    pub(in crate::scheduler) const fn with(input: &Input) -> Self {
        match input {
            Input::Event(Event::Tick) => Self { looks: 4, passes: 16 },
            Input::Event(Event::WorkerReady { .. }) => Self { looks: 0, passes: 0 },
            Input::Event(_) | Input::Order(_) => Self { looks: 1, passes: 4 },
        }
    }

    pub(in crate::scheduler) const fn is_left(self) -> bool {
        self.looks > 0 && self.passes > 0
    }
}

/// The result of considering a model that wants a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduler) enum Looked {
    /// The model does not fit, and may evict no slot. The same holds for all models of its kind after it.
    Blocked,
    /// The model waits for another condition than room, which is cheap to see.
    Passed,
    /// Any other result, which permits no conclusion about other models.
    Alone,
}

/// The models that a change may concern.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct Unlooked {
    /// Kinds of which the first model remains to be considered.
    pub(in crate::scheduler) kinds: BTreeSet<Likeness>,
    /// Single models: those with the next turn on a device, which are in no queue, and those whose chances change only
    /// with time.
    pub(in crate::scheduler) models: BTreeSet<ModelIndex>,
}

impl Unlooked {
    pub(in crate::scheduler) fn is_empty(&self) -> bool {
        self.kinds.is_empty() && self.models.is_empty()
    }

    pub(in crate::scheduler) fn clear(&mut self) {
        self.kinds.clear();
        self.models.clear();
    }
}

/// The extent to which models that wait for a load have to be considered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::scheduler) enum Reconsider {
    Nothing,
    /// Only the models that remain from earlier changes are examined.
    Rest,
    /// One model of each kind.
    Kinds,
}
