//! One head for each client that waits somewhere, and which of them goes first.
//!
//! The order of heads is a matter of their clients' service, which changes with every completion, and of time. Nothing is
//! put right when they change: the first is sought when somebody asks, and kept while it is sure to be the first.

use std::ops::Range;
use std::time::Duration;

use model_boss_protocol::Priority;

use super::{Arrival, OrderKey};
use crate::Moment;
use crate::client::{ClientIndex, ClientStanding};
use crate::time::steps;

/// What decides the order beside the requests themselves.
#[derive(Debug)]
pub(super) struct Terms {
    aging_step: Duration,
    /// By client. Whoever seeks a first reads many of these and nothing else of a client.
    standings: Vec<ClientStanding>,
    /// Rises when heads may come forward by something else than aging: a first found before is then in doubt.
    edition: u64,
}

impl Terms {
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

    /// Says where a client stands; whether it was held back before and is not any more.
    pub(super) fn set_standing(&mut self, client: ClientIndex, standing: ClientStanding) -> bool {
        if self.standings.len() <= client.get() {
            self.standings.resize(client.get() + 1, ClientStanding::default());
        }
        let before = std::mem::replace(&mut self.standings[client.get()], standing);
        let freed = before.held_back && !standing.held_back;
        self.edition += u64::from(freed || standing.service < before.service);
        freed
    }

    /// How important a request of this base priority is by now.
    pub(super) fn effective(&self, base: Priority, arrival: Arrival, now: Moment) -> Priority {
        base.aged(steps(now.since(arrival.at), self.aging_step))
    }

    pub(super) fn key(&self, base: Priority, arrival: Arrival, client: ClientIndex, now: Moment) -> OrderKey {
        OrderKey { effective: self.effective(base, arrival, now), service: self.standing(client).service, arrival }
    }

    /// When a request of this base priority gets more important the next time.
    fn ages_at(&self, base: Priority, arrival: Arrival, now: Moment) -> Option<Moment> {
        let aged = steps(now.since(arrival.at), self.aging_step);
        if self.aging_step.is_zero() || base.aged(aged) == base.aged(u64::MAX) {
            return None;
        }
        let steps = u32::try_from(aged + 1).unwrap_or(u32::MAX);
        Some(arrival.at + self.aging_step.saturating_mul(steps))
    }
}

/// The head that goes first.
#[derive(Clone, Copy, Debug)]
pub(super) struct First<T> {
    pub(super) key: OrderKey,
    pub(super) client: ClientIndex,
    pub(super) what: T,
}

/// The heads of all clients that wait with one base priority for the same.
#[derive(Debug)]
pub(super) struct Heads<T> {
    pub(super) base: Priority,
    /// Oldest first.
    heads: Vec<(Arrival, T)>,
    /// Whose they are, in the same order. Apart from them: seeking the first of all reads these one after another and little
    /// else.
    clients: Vec<ClientIndex>,
    /// The one that went first when it was last sought: its key is never larger than the truth.
    first: Option<First<T>>,
    /// When aging may put another one first.
    ages_at: Option<Moment>,
    /// The edition of the terms that the first was found by; `None` when it has to be sought anyway.
    edition: Option<u64>,
}

impl<T: Copy> Heads<T> {
    pub(super) const fn new(base: Priority) -> Self {
        Self { base, heads: Vec::new(), clients: Vec::new(), first: None, ages_at: None, edition: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// All of them with their clients, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Arrival, ClientIndex)> {
        self.heads.iter().zip(&self.clients).map(|(&(arrival, _), &client)| (arrival, client))
    }

    /// Adds the head of a client, which may bring the first forward and nothing else.
    pub(super) fn put(&mut self, arrival: Arrival, client: ClientIndex, what: T, now: Moment, terms: &Terms) {
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

    /// Takes a head out.
    pub(super) fn take(&mut self, arrival: Arrival) {
        let Ok(place) = self.heads.binary_search_by_key(&arrival, |(other, _)| *other) else { return };
        self.heads.remove(place);
        self.clients.remove(place);
        if self.first.is_some_and(|first| first.key.arrival == arrival) {
            self.edition = None;
        }
    }

    /// Whether the first that was found before may not be the first any more. Apart from aging and a new edition of the
    /// terms, keys only grow.
    fn is_in_doubt(&self, now: Moment, terms: &Terms) -> bool {
        if self.edition != Some(terms.edition) || self.ages_at.is_some_and(|at| at <= now) {
            return true;
        }
        self.first.is_some_and(|first| {
            let standing = terms.standing(first.client);
            standing.held_back || standing.service != first.key.service
        })
    }

    /// The one that goes first, sought anew only if it has to be.
    pub(super) fn first(&self, now: Moment, terms: &Terms) -> Option<First<T>> {
        if self.is_in_doubt(now, terms) { self.search(self.oldest(now, terms)?, now, terms) } else { self.first }
    }

    /// The same, remembered for the next time.
    pub(super) fn seek(&mut self, now: Moment, terms: &Terms) -> Option<First<T>> {
        if self.is_in_doubt(now, terms) {
            let oldest = self.oldest(now, terms);
            self.first = oldest.clone().and_then(|oldest| self.search(oldest, now, terms));
            self.ages_at = oldest.and_then(|oldest| self.next_aging(oldest, now, terms));
            self.edition = Some(terms.edition);
        }
        self.first
    }

    /// Of those that aged as far as the oldest, the one whose client got least.
    fn search(&self, oldest: Range<usize>, now: Moment, terms: &Terms) -> Option<First<T>> {
        let mut first: Option<(u64, usize)> = None;
        for place in oldest {
            let standing = terms.standing(self.clients[place]);
            // At the same service the older one stays.
            if !standing.held_back && first.is_none_or(|(least, _)| standing.service < least) {
                first = Some((standing.service, place));
            }
        }
        let (_, place) = first?;
        let ((arrival, what), client) = (self.heads[place], self.clients[place]);
        Some(First { key: terms.key(self.base, arrival, client, now), client, what })
    }

    /// The oldest head whose client may start something, and those behind it that aged as far.
    fn oldest(&self, now: Moment, terms: &Terms) -> Option<Range<usize>> {
        let place = self.clients.iter().position(|&client| !terms.standing(client).held_back)?;
        // Aging beyond what makes a request most important does not count.
        let steps_that_count = u64::from(self.base.number().saturating_sub(1));
        let aged = steps(now.since(self.heads[place].0.at), terms.aging_step).min(steps_that_count);
        if aged == 0 {
            return Some(place..self.heads.len());
        }
        // Whoever is less aged came after this moment.
        let since = now - terms.aging_step.saturating_mul(u32::try_from(aged).unwrap_or(u32::MAX));
        let behind = &self.heads[place + 1..];
        Some(place..place + 1 + behind.partition_point(|(arrival, _)| arrival.at <= since))
    }

    /// When the first may be another one by aging: the oldest gets more important, or the first of those who are less
    /// aged than the oldest may come to stand beside it, with less service.
    fn next_aging(&self, oldest: Range<usize>, now: Moment, terms: &Terms) -> Option<Moment> {
        let may_start = |place: &usize| !terms.standing(self.clients[*place]).held_back;
        let younger = (oldest.end..self.heads.len()).find(may_start);
        let next = |place: usize| terms.ages_at(self.base, self.heads[place].0, now);
        [next(oldest.start), younger.and_then(next)].into_iter().flatten().min()
    }
}
