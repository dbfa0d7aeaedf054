//! The first request of each client that waits, and the first of these in order.
//!
//! The order depends on the clients' service, which changes with every completion, and on time. These changes do not
//! update an index: the first head is searched on demand, and cached while it is certain to stay first.

use std::ops::Range;
use std::time::Duration;

use model_boss_protocol::Priority;

use super::{Arrival, OrderKey};
use crate::Moment;
use crate::client::{ClientIndex, ClientStanding};
use crate::time::steps;

/// The state that decides the order besides the requests themselves.
#[derive(Debug)]
pub(super) struct OrderTerms {
    aging_step: Duration,
    /// Standings by client. A search for the first head reads many of these and no other data of a client.
    standings: Vec<ClientStanding>,
    /// A version of the terms. It rises when heads may move forward for another reason than aging, and then a cached
    /// first head has to be checked.
    edition: u64,
}

impl OrderTerms {
    pub(super) const fn new(aging_step: Duration) -> Self {
        Self { aging_step, standings: Vec::new(), edition: 0 }
    }

    pub(super) fn set_aging_step(&mut self, aging_step: Duration) {
        self.aging_step = aging_step;
        self.edition += 1;
    }

    fn standing(&self, client: ClientIndex) -> ClientStanding {
        self.standings.get(client.get()).copied().unwrap_or_default()
    }

    /// Sets a client's standing; returns whether it was held back before and is not any more.
    pub(super) fn set_standing(&mut self, client: ClientIndex, standing: ClientStanding) -> bool {
        if self.standings.len() <= client.get() {
            self.standings.resize(client.get() + 1, ClientStanding::default());
        }
        let before = std::mem::replace(&mut self.standings[client.get()], standing);
        let freed = before.held_back && !standing.held_back;
        self.edition += u64::from(freed || standing.service < before.service);
        freed
    }

    /// The priority of a request of this base priority after aging.
    pub(super) fn effective(&self, base: Priority, arrival: Arrival, now: Moment) -> Priority {
        base.aged(steps(now.since(arrival.at), self.aging_step))
    }

    pub(super) fn key(&self, base: Priority, arrival: Arrival, client: ClientIndex, now: Moment) -> OrderKey {
        OrderKey { effective: self.effective(base, arrival, now), service: self.standing(client).service, arrival }
    }

    /// The moment when a request of this base priority next gets more important.
    fn ages_at(&self, base: Priority, arrival: Arrival, now: Moment) -> Option<Moment> {
        let aged = steps(now.since(arrival.at), self.aging_step);
        if self.aging_step.is_zero() || base.aged(aged) == base.aged(u64::MAX) {
            return None;
        }
        let steps = u32::try_from(aged + 1).unwrap_or(u32::MAX);
        Some(arrival.at + self.aging_step.saturating_mul(steps))
    }
}

/// The first head in the order, with its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct First<T> {
    pub(super) key: OrderKey,
    pub(super) client: ClientIndex,
    pub(super) what: T,
}

/// The heads of all clients that wait for the same model or kind with one base priority.
#[derive(Debug)]
pub(super) struct Heads<T> {
    pub(super) base: Priority,
    /// Heads, oldest first.
    heads: Vec<(Arrival, T)>,
    /// The heads' clients, in the same order. They are stored apart, because a search for the first head reads mainly
    /// these.
    clients: Vec<ClientIndex>,
    /// The first head of the last search: its key is never larger than the true one.
    first: Option<First<T>>,
    /// The moment when aging may put another head first.
    ages_at: Option<Moment>,
    /// The version of the terms at the last search; `None` when a new search is needed anyway.
    edition: Option<u64>,
}

impl<T: Copy> Heads<T> {
    pub(super) const fn new(base: Priority) -> Self {
        Self { base, heads: Vec::new(), clients: Vec::new(), first: None, ages_at: None, edition: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// All heads with their clients, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Arrival, ClientIndex)> {
        self.heads.iter().zip(&self.clients).map(|(&(arrival, _), &client)| (arrival, client))
    }

    /// Adds the head of a client, which may only bring the first head forward.
    pub(super) fn put(&mut self, arrival: Arrival, client: ClientIndex, what: T, now: Moment, terms: &OrderTerms) {
        let place = match self.heads.last() {
            Some((newest, _)) if *newest < arrival => self.heads.len(),
            _ => self.heads.partition_point(|(other, _)| *other < arrival),
        };
        self.heads.insert(place, (arrival, what));
        self.clients.insert(place, client);
        if self.edition != Some(terms.edition) || terms.standing(client).held_back {
            return;
        }
        let key = terms.key(self.base, arrival, client, now);
        if self.first.is_none_or(|first| key < first.key) {
            self.first = Some(First { key, client, what });
        }
        let ages_at = terms.ages_at(self.base, arrival, now);
        self.ages_at = [self.ages_at, ages_at].into_iter().flatten().min();
    }

    /// Removes a head.
    pub(super) fn take(&mut self, arrival: Arrival) {
        let Ok(place) = self.heads.binary_search_by_key(&arrival, |(other, _)| *other) else { return };
        self.heads.remove(place);
        self.clients.remove(place);
        if self.first.is_some_and(|first| first.key.arrival == arrival) {
            self.edition = None;
        }
    }

    /// Whether the cached first head may be outdated. Apart from aging and a new version of the terms, keys only
    /// grow.
    fn is_in_doubt(&self, now: Moment, terms: &OrderTerms) -> bool {
        if self.edition != Some(terms.edition) || self.ages_at.is_some_and(|at| at <= now) {
            return true;
        }
        self.first.is_some_and(|first| {
            let standing = terms.standing(first.client);
            standing.held_back || standing.service != first.key.service
        })
    }

    /// The first head in the order, searched again only if necessary.
    pub(super) fn first(&self, now: Moment, terms: &OrderTerms) -> Option<First<T>> {
        if self.is_in_doubt(now, terms) { self.search(self.oldest(now, terms)?, now, terms) } else { self.first }
    }

    /// The first head in the order, cached for the next call.
    pub(super) fn seek(&mut self, now: Moment, terms: &OrderTerms) -> Option<First<T>> {
        if self.is_in_doubt(now, terms) {
            let oldest = self.oldest(now, terms);
            self.first = oldest.clone().and_then(|oldest| self.search(oldest, now, terms));
            self.ages_at = oldest.and_then(|oldest| self.next_aging(oldest, now, terms));
            self.edition = Some(terms.edition);
        }
        self.first
    }

    /// The head whose client got the least service, among those that aged as far as the oldest.
    fn search(&self, oldest: Range<usize>, now: Moment, terms: &OrderTerms) -> Option<First<T>> {
        let mut first: Option<(u64, usize)> = None;
        for place in oldest {
            let standing = terms.standing(self.clients[place]);
            // Of two clients with equal service, the one with the older head is first.
            if !standing.held_back && first.is_none_or(|(least, _)| standing.service < least) {
                first = Some((standing.service, place));
            }
        }
        let (_, place) = first?;
        let ((arrival, what), client) = (self.heads[place], self.clients[place]);
        Some(First { key: terms.key(self.base, arrival, client, now), client, what })
    }

    /// The oldest head whose client may start a request, and the next heads that aged by as many steps.
    fn oldest(&self, now: Moment, terms: &OrderTerms) -> Option<Range<usize>> {
        let place = self.clients.iter().position(|&client| !terms.standing(client).held_back)?;
        // Only aging up to the most important priority counts.
        let steps_that_count = u64::from(self.base.number().saturating_sub(1));
        let aged = steps(now.since(self.heads[place].0.at), terms.aging_step).min(steps_that_count);
        if aged == 0 {
            return Some(place..self.heads.len());
        }
        // Heads that aged less arrived after this moment.
        let since = now - terms.aging_step.saturating_mul(u32::try_from(aged).unwrap_or(u32::MAX));
        let behind = &self.heads[place + 1..];
        Some(place..place + 1 + behind.partition_point(|(arrival, _)| arrival.at <= since))
    }

    /// The moment when aging may put another head first. Then the oldest head gets more important, or a less aged one
    /// with less service reaches the oldest one's priority.
    fn next_aging(&self, oldest: Range<usize>, now: Moment, terms: &OrderTerms) -> Option<Moment> {
        let may_start = |place: &usize| !terms.standing(self.clients[*place]).held_back;
        let younger = (oldest.end..self.heads.len()).find(may_start);
        let next = |place: usize| terms.ages_at(self.base, self.heads[place].0, now);
        [next(oldest.start), younger.and_then(next)].into_iter().flatten().min()
    }
}
