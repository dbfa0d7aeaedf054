//! Models that are not loaded and have waiting requests. Each is in a queue of models with the same needs, or set
//! aside.

use std::collections::{BTreeMap, BTreeSet};

use super::heads::OrderTerms;
use super::line::Line;
use super::{Arrival, Likeness, Wanting};
use crate::Moment;
use crate::catalog::ModelIndex;
use crate::client::ClientIndex;

/// A family of models, and the step of the memory they need.
pub(super) type FamilyNeed = (u32, u16);

/// The models that want a load.
#[derive(Debug, Default)]
pub(super) struct Cold {
    lines: BTreeMap<Likeness, Line>,
    /// All models that want a load.
    models: BTreeSet<ModelIndex>,
    /// The models of `models` that are in no line.
    aside: BTreeSet<ModelIndex>,
    /// The number of models that are alike.
    counts: BTreeMap<FamilyNeed, usize>,
}

impl Cold {
    /// Adds a model that is not loaded and got its first waiting request.
    pub(super) fn add(&mut self, model: ModelIndex, like: FamilyNeed, aside: bool) {
        self.models.insert(model);
        if aside {
            self.aside.insert(model);
        }
        *self.counts.entry(like).or_default() += 1;
    }

    /// Removes a model that has no waiting request any more, or is loaded.
    pub(super) fn remove(&mut self, model: ModelIndex, like: FamilyNeed) {
        self.models.remove(&model);
        self.aside.remove(&model);
        if let Some(count) = self.counts.get_mut(&like) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&like);
            }
        }
    }

    /// The line of models that are alike, by the base priority of their requests.
    pub(super) fn line(&mut self, kind: Likeness) -> &mut Line {
        self.lines.entry(kind).or_insert_with(|| Line::new(kind.base))
    }

    /// Removes a client's oldest request for a model.
    pub(super) fn take(
        &mut self,
        kind: Likeness,
        client: ClientIndex,
        head: (Arrival, ModelIndex),
        now: Moment,
        terms: &OrderTerms,
    ) {
        let Some(line) = self.lines.get_mut(&kind) else { return };
        line.take(client, head, now, terms);
        if line.is_empty() {
            self.lines.remove(&kind);
        }
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = Likeness> {
        self.lines.keys().copied()
    }

    pub(super) fn seek(&mut self, kind: Likeness, now: Moment, terms: &OrderTerms) -> Option<Wanting> {
        self.lines.get_mut(&kind)?.seek(now, terms)
    }

    pub(super) fn seek_among_all(&mut self, now: Moment, terms: &OrderTerms) -> Option<Wanting> {
        self.lines.values_mut().filter_map(|line| line.seek(now, terms)).min()
    }

    pub(super) fn has_a_first(&self, now: Moment, terms: &OrderTerms) -> bool {
        self.lines.values().any(|line| line.has_a_first(now, terms))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    pub(super) fn next_model(&self, from: ModelIndex) -> Option<ModelIndex> {
        self.models.range(from..).next().copied()
    }

    pub(super) fn aside(&self) -> impl Iterator<Item = ModelIndex> {
        self.aside.iter().copied()
    }

    /// The numbers of models that are alike.
    pub(super) fn counts(&self) -> impl Iterator<Item = (FamilyNeed, usize)> {
        self.counts.iter().map(|(&like, &count)| (like, count))
    }
}
