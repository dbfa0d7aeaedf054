//! Reads of the whole queue, for views. They take as long as the queue is.

use std::ops::Range;

use model_boss_protocol::Priority;

use super::{InferenceQueue, LoadState, OrderKey, Waiting};
use crate::Moment;
use crate::catalog::ModelIndex;

impl InferenceQueue {
    /// The waiting requests at these places of RC-4's order. The call reads the keys of all, so it is only for views.
    pub(crate) fn in_order(&self, now: Moment, places: Range<usize>) -> Vec<(OrderKey, &Waiting)> {
        let key = |entry: &Waiting| self.terms.key(entry.priority, entry.arrival, entry.client, now);
        let keyed = |entry: &Waiting| (key(entry), self.residency(entry.model) != LoadState::Resident);
        let mut all: Vec<_> = self.waiting.values().map(|entry| (keyed(entry), entry.as_ref())).collect();
        let order = |((key, cold), _): &((OrderKey, bool), &Waiting)| (key.effective, *cold, key.service, key.arrival);
        // Only the requests of these places are sorted.
        if places.end < all.len() {
            all.select_nth_unstable_by_key(places.end, order);
            all.truncate(places.end);
        }
        if places.start >= all.len() {
            return Vec::new();
        }
        all.select_nth_unstable_by_key(places.start, order);
        let mut asked = all.split_off(places.start);
        asked.sort_unstable_by_key(order);
        asked.into_iter().map(|((key, _), entry)| (key, entry)).collect()
    }

    /// All waiting requests, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.values().map(Box::as_ref)
    }

    /// The number of requests for `model` that would be before one of this priority arriving now. The call reads all of
    /// these, so it is only for views.
    pub(crate) fn stand_before(&self, model: ModelIndex, base: Priority, now: Moment) -> usize {
        let aged = |waiting: &&Waiting| self.terms.effective(waiting.priority, waiting.arrival, now);
        let of_model = self.waiting.values().map(Box::as_ref).filter(|waiting| waiting.model == model);
        of_model.filter(|waiting| aged(waiting) <= base).count()
    }
}
