//! Lines: the models of one kind that want a load, as a row for each client. A change of a client's service therefore
//! moves all its rows at once.

use std::collections::BTreeSet;

use model_boss_protocol::Priority;

use super::heads::{Heads, OrderTerms};
use super::{Arrival, Wanting};
use crate::Moment;
use crate::by_number::ByNumber;
use crate::catalog::ModelIndex;
use crate::client::ClientIndex;

/// The models of one kind, by the waiting requests of one base priority.
#[derive(Debug)]
pub(super) struct Line {
    /// The models that a client waits for, by its oldest request. The map is only searched by client, never iterated,
    /// so its order does not matter.
    rows: ByNumber<ClientIndex, BTreeSet<(Arrival, ModelIndex)>>,
    heads: Heads<ModelIndex>,
}

impl Line {
    pub(super) fn new(base: Priority) -> Self {
        Self { rows: ByNumber::default(), heads: Heads::new(base) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// The first model in the order, by its first request.
    pub(super) fn seek(&mut self, now: Moment, terms: &OrderTerms) -> Option<Wanting> {
        self.heads.seek(now, terms).map(|first| (first.key, first.what))
    }

    pub(super) fn has_a_first(&self, now: Moment, terms: &OrderTerms) -> bool {
        self.heads.first(now, terms).is_some()
    }

    /// Adds the oldest request of a client for a model.
    pub(super) fn put(&mut self, client: ClientIndex, head: (Arrival, ModelIndex), now: Moment, terms: &OrderTerms) {
        let (arrival, model) = head;
        let row = self.rows.entry(client).or_default();
        let first = row.first().map(|&(first, _)| first);
        row.insert(head);
        if first.is_none_or(|first| arrival < first) {
            if let Some(first) = first {
                self.heads.take(first);
            }
            self.heads.put(arrival, client, model, now, terms);
        }
    }

    /// Removes the oldest request of a client for a model.
    pub(super) fn take(&mut self, client: ClientIndex, head: (Arrival, ModelIndex), now: Moment, terms: &OrderTerms) {
        let Some(row) = self.rows.get_mut(&client) else { return };
        let was_first = row.first() == Some(&head);
        row.remove(&head);
        if !was_first {
            return;
        }
        self.heads.take(head.0);
        match row.first() {
            Some(&(arrival, model)) => self.heads.put(arrival, client, model, now, terms),
            None => drop(self.rows.remove(&client)),
        }
    }
}
