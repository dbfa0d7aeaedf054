//! The waiting requests of one (model, base priority), and which of them goes first.

use std::collections::{BTreeMap, VecDeque};
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
    /// The first of each FIFO, oldest first. Side by side in memory: seeking the first of all reads them one after another,
    /// and that is what happens whenever a client got more.
    heads: Vec<LaneHead>,
    /// The one that goes first, or went first when it was last looked at: its key is never larger than the truth.
    pub(super) first: Option<Head>,
    /// When aging may put another one first.
    pub(super) ages_at: Option<Moment>,
}

/// The first of a FIFO.
#[derive(Clone, Copy, Debug)]
struct LaneHead {
    arrival: Arrival,
    id: RequestId,
    client: ClientIndex,
}

impl Lane {
    pub(super) const fn new(base: Priority) -> Self {
        Self { base, fifos: BTreeMap::new(), heads: Vec::new(), first: None, ages_at: None }
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
        let place = fifo.partition_point(|(other, _)| *other < arrival);
        fifo.insert(place, (arrival, id));
        if place > 0 {
            return false;
        }
        if let Some(&(before, _)) = fifo.get(1) {
            self.take_head(before);
        }
        self.put_head(LaneHead { arrival, id, client });
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
                self.put_head(LaneHead { arrival, id, client });
            }
        }
    }

    fn put_head(&mut self, head: LaneHead) {
        let place = self.heads.partition_point(|other| other.arrival < head.arrival);
        self.heads.insert(place, head);
    }

    fn take_head(&mut self, arrival: Arrival) {
        if let Ok(place) = self.heads.binary_search_by_key(&arrival, |head| head.arrival) {
            self.heads.remove(place);
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
        if self.is_stale(now, terms) { self.search(now, terms) } else { self.first }
    }

    /// Finds the first anew, and when it may be another one.
    pub(super) fn index(&mut self, now: Moment, terms: &Terms) {
        self.first = self.search(now, terms);
        self.ages_at = self.next_aging(now, terms);
    }

    /// The one that goes first: of those that aged as far as the oldest, the one whose client got least.
    fn search(&self, now: Moment, terms: &Terms) -> Option<Head> {
        let (oldest, aged_as_far) = self.oldest(now, terms)?;
        let mut first = (terms.standing(oldest.client).service, oldest);
        for head in aged_as_far {
            let standing = terms.standing(head.client);
            // At the same service the older one stays.
            if standing.service < first.0 && !standing.held_back {
                first = (standing.service, head);
            }
        }
        let &LaneHead { arrival, id, client } = first.1;
        Some(Head { key: terms.key(self.base, arrival, client, now), id, base: self.base, client })
    }

    /// The oldest head whose client may start something, and those behind it that aged as far.
    fn oldest(&self, now: Moment, terms: &Terms) -> Option<(&LaneHead, &[LaneHead])> {
        let place = self.heads.iter().position(|head| !terms.standing(head.client).held_back)?;
        let (oldest, behind) = self.heads[place..].split_first()?;
        // Aging beyond what makes a request most important does not count.
        let steps_that_count = u64::from(self.base.number().saturating_sub(1));
        let aged = steps(now.since(oldest.arrival.at), terms.aging_step).min(steps_that_count);
        if aged == 0 {
            return Some((oldest, behind));
        }
        // Whoever is less aged came after this moment.
        let since = now - terms.aging_step.saturating_mul(u32::try_from(aged).unwrap_or(u32::MAX));
        Some((oldest, &behind[..behind.partition_point(|head| head.arrival.at <= since)]))
    }

    /// When the first may be another one by aging: the oldest gets more important, or the first of those who are less
    /// aged than the oldest may come to stand beside it, with less service.
    fn next_aging(&self, now: Moment, terms: &Terms) -> Option<Moment> {
        let (oldest, aged_as_far) = self.oldest(now, terms)?;
        let less_aged = aged_as_far.last().unwrap_or(oldest).arrival;
        let later = &self.heads[self.heads.partition_point(|head| head.arrival <= less_aged)..];
        let younger = later.iter().find(|head| !terms.standing(head.client).held_back);
        let next = |head: &LaneHead| terms.ages_at(self.base, head.arrival, now);
        [next(oldest), younger.and_then(next)].into_iter().flatten().min()
    }
}
