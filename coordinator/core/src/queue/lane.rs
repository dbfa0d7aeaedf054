//! Lanes: the waiting requests of one (model, base priority), as a FIFO for each client.

use std::collections::{BTreeMap, VecDeque};

use model_boss_protocol::{Priority, RequestId};

use super::heads::{Heads, OrderTerms};
use super::{Arrival, Head};
use crate::Moment;
use crate::client::ClientIndex;

/// The waiting requests of one (model, base priority).
#[derive(Debug)]
pub(super) struct Lane {
    /// Requests by client, oldest first.
    fifos: BTreeMap<ClientIndex, VecDeque<(Arrival, RequestId)>>,
    heads: Heads<RequestId>,
}

/// The change that an added or removed request made to the heads of its lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeadChange {
    /// The head of the request's client before.
    pub(super) before: Option<Arrival>,
    /// The head of the request's client now.
    pub(super) after: Option<Arrival>,
}

impl Lane {
    pub(super) const fn new(base: Priority) -> Self {
        Self { fifos: BTreeMap::new(), heads: Heads::new(base) }
    }

    pub(super) fn base(&self) -> Priority {
        self.heads.base
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// All requests, client by client.
    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.fifos.values().flatten().map(|&(_, id)| id)
    }

    /// The first request of each client.
    pub(super) fn heads(&self) -> impl Iterator<Item = (Arrival, ClientIndex)> {
        self.heads.iter()
    }

    /// Whether a request is its client's first.
    pub(super) fn leads(&self, client: ClientIndex, id: RequestId) -> bool {
        self.fifos.get(&client).and_then(VecDeque::front).is_some_and(|&(_, first)| first == id)
    }

    /// The first request in the order among clients that may start one.
    pub(super) fn first(&self, now: Moment, terms: &OrderTerms) -> Option<Head> {
        let first = self.heads.first(now, terms)?;
        Some(Head { key: first.key, id: first.what, base: self.heads.base })
    }

    /// The first request in the order, cached for the next call.
    pub(super) fn seek(&mut self, now: Moment, terms: &OrderTerms) -> Option<RequestId> {
        self.heads.seek(now, terms).map(|first| first.what)
    }

    /// Adds a request at the place of its arrival.
    pub(super) fn push(
        &mut self,
        client: ClientIndex,
        arrival: Arrival,
        id: RequestId,
        now: Moment,
        terms: &OrderTerms,
    ) -> Option<HeadChange> {
        let fifo = self.fifos.entry(client).or_default();
        // Most requests arrive in order, so the place is searched from the end.
        let place = match fifo.back() {
            Some((newest, _)) if *newest < arrival => fifo.len(),
            _ => fifo.partition_point(|(other, _)| *other < arrival),
        };
        fifo.insert(place, (arrival, id));
        if place > 0 {
            return None;
        }
        let before = fifo.get(1).map(|&(before, _)| before);
        if let Some(before) = before {
            self.heads.take(before);
        }
        self.heads.put(arrival, client, id, now, terms);
        Some(HeadChange { before, after: Some(arrival) })
    }

    /// Removes a request.
    pub(super) fn remove(
        &mut self,
        client: ClientIndex,
        arrival: Arrival,
        now: Moment,
        terms: &OrderTerms,
    ) -> Option<HeadChange> {
        let fifo = self.fifos.get_mut(&client)?;
        let place = fifo.binary_search_by_key(&arrival, |(other, _)| *other).ok()?;
        fifo.remove(place);
        let next = fifo.front().copied();
        if next.is_none() {
            self.fifos.remove(&client);
        }
        if place > 0 {
            return None;
        }
        self.heads.take(arrival);
        if let Some((arrival, id)) = next {
            self.heads.put(arrival, client, id, now, terms);
        }
        Some(HeadChange { before: Some(arrival), after: next.map(|(arrival, _)| arrival) })
    }
}
