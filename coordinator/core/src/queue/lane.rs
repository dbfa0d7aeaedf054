//! The waiting requests of one (model, base priority), and which of them goes first.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use model_boss_protocol::{Priority, RequestId};

use super::{Arrival, ClientStanding, Head, OrderKey, steps};
use crate::Moment;
use crate::client::ClientIndex;

/// What decides the order beside the requests themselves.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) aging_step: Duration,
    /// By client. Whoever seeks the first of a lane reads many of these and nothing else of a client.
    pub(super) standings: Vec<ClientStanding>,
}

impl Terms {
    pub(super) fn standing(&self, client: ClientIndex) -> ClientStanding {
        self.standings.get(client.get()).copied().unwrap_or_default()
    }

    /// Says where a client stands; where it stood before.
    pub(super) fn set_standing(&mut self, client: ClientIndex, standing: ClientStanding) -> ClientStanding {
        if self.standings.len() <= client.get() {
            self.standings.resize(client.get() + 1, ClientStanding::default());
        }
        std::mem::replace(&mut self.standings[client.get()], standing)
    }

    pub(super) fn key(&self, base: Priority, arrival: Arrival, client: ClientIndex, now: Moment) -> OrderKey {
        let effective = base.aged(steps(now.since(arrival.at), self.aging_step));
        OrderKey { effective, service: self.standing(client).service, arrival }
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

/// The waiting requests of one (model, base priority).
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) base: Priority,
    /// Oldest first.
    fifos: BTreeMap<ClientIndex, VecDeque<(Arrival, RequestId)>>,
    /// The first of each FIFO, oldest first.
    heads: Vec<(Arrival, RequestId)>,
    /// Whose they are, in the same order. Apart from them: seeking the first of all reads these one after another and little
    /// else, and that is what happens whenever a client got more.
    clients: Vec<ClientIndex>,
    /// The one that goes first, or went first when it was last looked at: its key is never larger than the truth.
    pub(super) first: Option<Head>,
    /// When aging may put another one first.
    pub(super) ages_at: Option<Moment>,
}

impl Lane {
    pub(super) const fn new(base: Priority) -> Self {
        Self { base, fifos: BTreeMap::new(), heads: Vec::new(), clients: Vec::new(), first: None, ages_at: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Its requests, client by client.
    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.fifos.values().flatten().map(|&(_, id)| id)
    }

    /// Whether a request is the first of its client's.
    pub(super) fn leads(&self, client: ClientIndex, id: RequestId) -> bool {
        self.fifos.get(&client).and_then(VecDeque::front).is_some_and(|&(_, first)| first == id)
    }

    /// Adds a request; whether it is the first of its client's now.
    pub(super) fn push(&mut self, client: ClientIndex, arrival: Arrival, id: RequestId) -> bool {
        let fifo = self.fifos.entry(client).or_default();
        // Most come last.
        let place = match fifo.back() {
            Some((newest, _)) if *newest < arrival => fifo.len(),
            _ => fifo.partition_point(|(other, _)| *other < arrival),
        };
        fifo.insert(place, (arrival, id));
        if place > 0 {
            return false;
        }
        if let Some(&(before, _)) = fifo.get(1) {
            self.take_head(before);
        }
        self.put_head(arrival, id, client);
        true
    }

    /// A request that is the first of its client's may bring its lane forward, and nothing else; whether it did.
    pub(super) fn head_came(&mut self, head: Head, now: Moment, terms: &Terms) -> bool {
        let ages_at = terms.ages_at(self.base, head.key.arrival, now);
        let comes_first = self.first.is_none_or(|first| head.key < first.key);
        let ages_earlier = ages_at.is_some_and(|at| self.ages_at.is_none_or(|before| at < before));
        if comes_first {
            self.first = Some(head);
        }
        if ages_earlier {
            self.ages_at = ages_at;
        }
        comes_first || ages_earlier
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, client: ClientIndex, arrival: Arrival) {
        let Some(fifo) = self.fifos.get_mut(&client) else { return };
        let Ok(place) = fifo.binary_search_by_key(&arrival, |(other, _)| *other) else { return };
        fifo.remove(place);
        let next = fifo.front().copied();
        if next.is_none() {
            self.fifos.remove(&client);
        }
        if place == 0 {
            self.take_head(arrival);
            if let Some((arrival, id)) = next {
                self.put_head(arrival, id, client);
            }
        }
    }

    fn put_head(&mut self, arrival: Arrival, id: RequestId, client: ClientIndex) {
        let place = match self.heads.last() {
            Some((newest, _)) if *newest < arrival => self.heads.len(),
            _ => self.heads.partition_point(|(other, _)| *other < arrival),
        };
        self.heads.insert(place, (arrival, id));
        self.clients.insert(place, client);
    }

    fn take_head(&mut self, arrival: Arrival) {
        if let Ok(place) = self.heads.binary_search_by_key(&arrival, |(other, _)| *other) {
            self.heads.remove(place);
            self.clients.remove(place);
        }
    }

    /// Whether the first that was found before does not stand any more where it stood, or somebody aged meanwhile. Apart
    /// from aging keys only grow, so otherwise it is still the first.
    pub(super) fn is_stale(&self, now: Moment, terms: &Terms) -> bool {
        self.first.is_some_and(|first| {
            let standing = terms.standing(first.client);
            standing.held_back || standing.service != first.key.service || self.ages_at.is_some_and(|at| at <= now)
        })
    }

    /// The first, sought anew only if it has to be.
    pub(super) fn true_first(&self, now: Moment, terms: &Terms) -> Option<Head> {
        if self.is_stale(now, terms) { self.search(self.oldest(now, terms)?, now, terms) } else { self.first }
    }

    /// Finds the first anew, and when it may be another one.
    pub(super) fn index(&mut self, now: Moment, terms: &Terms) {
        let oldest = self.oldest(now, terms);
        self.first = oldest.clone().and_then(|oldest| self.search(oldest, now, terms));
        self.ages_at = oldest.and_then(|oldest| self.next_aging(oldest, now, terms));
    }

    /// The one that goes first: of those that aged as far as the oldest, the one whose client got least.
    fn search(&self, oldest: Range<usize>, now: Moment, terms: &Terms) -> Option<Head> {
        let mut first: Option<(u64, usize)> = None;
        for place in oldest {
            let standing = terms.standing(self.clients[place]);
            // At the same service the older one stays.
            if !standing.held_back && first.is_none_or(|(least, _)| standing.service < least) {
                first = Some((standing.service, place));
            }
        }
        let (_, place) = first?;
        let ((arrival, id), client) = (self.heads[place], self.clients[place]);
        Some(Head { key: terms.key(self.base, arrival, client, now), id, base: self.base, client })
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
