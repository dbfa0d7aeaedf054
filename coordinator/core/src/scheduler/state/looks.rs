//! The models that still have to be looked at, and how many looks one event may take.

use std::collections::BTreeSet;

use crate::catalog::ModelIndex;
use crate::queue::Likeness;
use crate::{Event, Input};

/// How much is looked at within one event, so that its length does not depend on how many models wait.
#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) struct Budget {
    /// Models that are looked at.
    pub(in crate::scheduler) looks: usize,
    /// Models passed over because they wait for something else than room.
    pub(in crate::scheduler) passes: usize,
}

impl Budget {
    /// An event takes the first look, and ticks that follow at once take the others. An event that fills a slot with
    /// requests leaves all of them to ticks.
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

/// What came of a look at a model that wants a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduler) enum Looked {
    /// There is no room for it, and nobody whom it may send away: neither for those behind it that are like it.
    Blocked,
    /// It waits for something else than room. That cost nothing to see.
    Passed,
    /// Anything else, which says nothing about others.
    Alone,
}

/// Those that a change may concern.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct Unlooked {
    /// The first of each of these.
    pub(in crate::scheduler) kinds: BTreeSet<Likeness>,
    /// Single models: those with the next turn on a device, which are in no line, and those that only time concerns.
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

/// How much of what waits for a load has to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::scheduler) enum Reconsider {
    Nothing,
    /// What is still to be looked at.
    Rest,
    /// One of each kind.
    Kinds,
}
