//! The waiting requests and their order (RC-4, RC-5, RC-10). Knows which models are resident; knows no slots, devices or
//! reasons.
//!
//! One FIFO per (model, priority, client). Within a FIFO the oldest is always first, and among requests of one base
//! priority the older one is never aged less, so the order at any moment is a merge of few sorted heads: nothing is ever
//! sorted again as time passes. Every change is logarithmic.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use model_boss_protocol::{ClientId, KeepAlive, Priority, RequestId};

use crate::Moment;
use crate::catalog::ModelIndex;

const PRIORITIES: usize = 10;

/// A place in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival {
    pub(crate) at: Moment,
    number: u64,
}

/// RC-4's order without `warm_bump`: smaller goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OrderKey {
    pub(crate) effective: Priority,
    pub(crate) arrival: Arrival,
}

/// What a waiting caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be dispatched.
    Inference,
    /// That the model is loaded; answered with `Done`.
    Load,
}

/// A waiting request.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) id: RequestId,
    pub(crate) model: ModelIndex,
    pub(crate) purpose: Purpose,
    pub(crate) client: ClientId,
    pub(crate) priority: Priority,
    pub(crate) arrival: Arrival,
    pub(crate) deadline: Option<Moment>,
    pub(crate) keep_alive: Option<KeepAlive>,
    /// How often it was tried again after its worker died.
    pub(crate) retries: u32,
}

/// The first of a (model, priority): the one that stands for all of them when room is sought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) key: OrderKey,
    pub(crate) id: RequestId,
    pub(crate) base: Priority,
}

/// Where a model is, as far as the order cares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Residency {
    /// It needs a load: its waiting requests are candidates for one.
    #[default]
    Absent,
    /// A load is under way.
    Coming,
    /// It is resident: no bump (RC-4).
    Resident,
}

/// The queue is at a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFull {
    ForModel { limit: usize },
    InAll { limit: usize },
}

/// How many may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) per_model: usize,
    pub(crate) in_all: usize,
}

/// All waiting requests.
#[derive(Debug)]
pub(crate) struct InferenceQueue {
    limits: QueueLimits,
    aging_step: Duration,
    /// Looked up by id only, never iterated where order shows.
    waiting: HashMap<RequestId, Waiting>,
    models: Vec<ModelQueue>,
    /// Per base priority: the first request of every absent model, oldest first.
    wanting: [BTreeSet<(Arrival, ModelIndex)>; PRIORITIES],
    deadlines: BTreeSet<(Moment, RequestId)>,
    arrivals: u64,
}

#[derive(Debug, Default)]
struct ModelQueue {
    residency: Residency,
    lanes: [Lane; PRIORITIES],
    length: usize,
    loads: BTreeSet<RequestId>,
}

/// The waiting requests of one (model, base priority).
#[derive(Debug, Default)]
struct Lane {
    fifos: BTreeMap<ClientId, BTreeSet<(Arrival, RequestId)>>,
    heads: BTreeSet<(Arrival, RequestId)>,
    /// What stands for this lane in `wanting`.
    wanting: Option<Arrival>,
}

impl InferenceQueue {
    pub(crate) fn new(limits: QueueLimits, aging_step: Duration) -> Self {
        Self {
            limits,
            aging_step,
            waiting: HashMap::new(),
            models: Vec::new(),
            wanting: Default::default(),
            deadlines: BTreeSet::new(),
            arrivals: 0,
        }
    }

    /// A place at the end of the order of arrival.
    pub(crate) fn arrive(&mut self, now: Moment) -> Arrival {
        self.arrivals += 1;
        Arrival { at: now, number: self.arrivals }
    }

    /// Whether one more request for `model` may wait (RC-10).
    pub(crate) fn admit(&self, model: ModelIndex) -> Result<(), QueueFull> {
        if self.len_of(model) >= self.limits.per_model {
            return Err(QueueFull::ForModel { limit: self.limits.per_model });
        }
        if self.waiting.len() >= self.limits.in_all {
            return Err(QueueFull::InAll { limit: self.limits.in_all });
        }
        Ok(())
    }

    /// Adds a request at the place of its arrival: a new one at the end, one that is tried again where it was.
    pub(crate) fn push(&mut self, entry: Waiting) {
        let queue = self.entry(entry.model);
        queue.length += 1;
        if entry.purpose == Purpose::Load {
            queue.loads.insert(entry.id);
        }
        let lane = &mut queue.lanes[usize::from(entry.priority.number())];
        let fifo = lane.fifos.entry(entry.client.clone()).or_default();
        let before = fifo.first().copied();
        fifo.insert((entry.arrival, entry.id));
        let after = fifo.first().copied();
        lane.replace_head(before, after);
        if let Some(deadline) = entry.deadline {
            self.deadlines.insert((deadline, entry.id));
        }
        self.index(entry.model, entry.priority);
        self.waiting.insert(entry.id, entry);
    }

    /// Takes a request out, wherever it stands.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        let entry = self.waiting.remove(&id)?;
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let queue = self.entry(entry.model);
        queue.length -= 1;
        if entry.purpose == Purpose::Load {
            queue.loads.remove(&id);
        }
        let lane = &mut queue.lanes[usize::from(entry.priority.number())];
        if let Some(fifo) = lane.fifos.get_mut(&entry.client) {
            let before = fifo.first().copied();
            fifo.remove(&(entry.arrival, id));
            let after = fifo.first().copied();
            if fifo.is_empty() {
                lane.fifos.remove(&entry.client);
            }
            lane.replace_head(before, after);
        }
        self.index(entry.model, entry.priority);
        Some(entry)
    }

    /// The request for `model` that goes first.
    pub(crate) fn best(&self, model: ModelIndex, now: Moment) -> Option<Head> {
        self.heads(model, now).min_by_key(|head| head.key)
    }

    /// The first request of each base priority for `model`.
    pub(crate) fn heads(&self, model: ModelIndex, now: Moment) -> impl Iterator<Item = Head> {
        let lanes = self.models.get(model.get()).filter(|q| q.length > 0).map(|q| &q.lanes);
        lanes.into_iter().flatten().enumerate().filter_map(move |(number, lane)| {
            let &(arrival, id) = lane.heads.first()?;
            let base = priority(number);
            Some(Head { key: self.key(base, arrival, now), id, base })
        })
    }

    /// Models that need a load for somebody, in the order of their first request, at most `limit` of them.
    pub(crate) fn wanting(&self, now: Moment, limit: usize) -> Vec<ModelIndex> {
        let mut lanes: Vec<_> = self.wanting.iter().map(|lane| lane.iter().peekable()).collect();
        let mut found = Vec::new();
        while found.len() < limit {
            let next = lanes
                .iter_mut()
                .enumerate()
                .filter_map(|(number, lane)| {
                    lane.peek().map(|&&(arrival, _)| (self.key(priority(number), arrival, now), number))
                })
                .min();
            let Some((key, number)) = next else { break };
            let Some(&(_, model)) = lanes[number].next() else { break };
            // A model stands in one lane per base priority; it counts where its first request is.
            if self.best(model, now).is_some_and(|best| best.key == key) {
                found.push(model);
            }
        }
        found
    }

    pub(crate) fn anyone_wants_a_load(&self) -> bool {
        self.wanting.iter().any(|lane| !lane.is_empty())
    }

    /// Says where a model is; absent ones with waiting requests become candidates for a load.
    pub(crate) fn set_residency(&mut self, model: ModelIndex, residency: Residency) {
        self.entry(model).residency = residency;
        for number in 0..PRIORITIES {
            self.index(model, priority(number));
        }
    }

    pub(crate) fn residency(&self, model: ModelIndex) -> Residency {
        self.models.get(model.get()).map_or(Residency::Absent, |q| q.residency)
    }

    /// Takes the next request whose deadline is over.
    pub(crate) fn next_expired(&self, now: Moment) -> Option<RequestId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|&(_, id)| id)
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<&Waiting> {
        self.waiting.get(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn len_of(&self, model: ModelIndex) -> usize {
        self.models.get(model.get()).map_or(0, |q| q.length)
    }

    /// Callers who wait for `model` to be loaded and for nothing else.
    pub(crate) fn first_load(&self, model: ModelIndex) -> Option<RequestId> {
        self.models.get(model.get())?.loads.first().copied()
    }

    /// The requests that wait for `model`, most important base priority first, then by client.
    pub(crate) fn ids_of(&self, model: ModelIndex) -> Vec<RequestId> {
        let lanes = self.models.get(model.get()).map(|q| &q.lanes);
        lanes.into_iter().flatten().flat_map(|lane| lane.fifos.values().flatten().map(|&(_, id)| id)).collect()
    }

    /// Everybody in RC-4's order. For people: sorts all of them.
    pub(crate) fn in_order(&self, now: Moment) -> Vec<(OrderKey, &Waiting)> {
        let mut all: Vec<_> =
            self.waiting.values().map(|entry| (self.key(entry.priority, entry.arrival, now), entry)).collect();
        all.sort_unstable_by_key(|(key, entry)| {
            let warm_bump = u8::from(self.residency(entry.model) != Residency::Resident);
            (key.effective, warm_bump, key.arrival)
        });
        all
    }

    fn key(&self, base: Priority, arrival: Arrival, now: Moment) -> OrderKey {
        OrderKey { effective: base.aged(steps(now.since(arrival.at), self.aging_step)), arrival }
    }

    fn entry(&mut self, model: ModelIndex) -> &mut ModelQueue {
        if self.models.len() <= model.get() {
            self.models.resize_with(model.get() + 1, ModelQueue::default);
        }
        &mut self.models[model.get()]
    }

    /// Brings the lane's place in `wanting` up to date.
    fn index(&mut self, model: ModelIndex, priority: Priority) {
        let number = usize::from(priority.number());
        let queue = &mut self.models[model.get()];
        let absent = queue.residency == Residency::Absent;
        let lane = &mut queue.lanes[number];
        let first = if absent { lane.heads.first().map(|&(arrival, _)| arrival) } else { None };
        if lane.wanting == first {
            return;
        }
        if let Some(before) = lane.wanting {
            self.wanting[number].remove(&(before, model));
        }
        if let Some(first) = first {
            self.wanting[number].insert((first, model));
        }
        lane.wanting = first;
    }
}

impl Lane {
    fn replace_head(&mut self, before: Option<(Arrival, RequestId)>, after: Option<(Arrival, RequestId)>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.heads.remove(&before);
        }
        if let Some(after) = after {
            self.heads.insert(after);
        }
    }
}

/// Whole steps of `step` in `span`; none when `step` is zero.
pub(crate) fn steps(span: Duration, step: Duration) -> u64 {
    let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    nanos(span).checked_div(nanos(step)).unwrap_or(0)
}

fn priority(number: usize) -> Priority {
    u8::try_from(number).ok().and_then(|n| Priority::new(n).ok()).unwrap_or(Priority::LOWEST)
}

#[cfg(test)]
mod tests;
