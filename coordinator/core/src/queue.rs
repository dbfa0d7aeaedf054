//! The waiting requests and their order (RC-4, RC-5, RC-10). Knows which models are resident and which clients may start
//! something; knows no slots, devices or reasons.
//!
//! One FIFO per (model, priority, client). Within a FIFO the oldest is always first, and among requests of one base
//! priority the older one is never aged less, so the order at any moment is a merge of few heads: nothing is ever sorted
//! again as time passes. What a client got moves all its requests at once and is looked up when heads are compared. Every
//! change is logarithmic; finding the first request of a model looks at one head per client that waits for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::time::Duration;

use model_boss_protocol::{KeepAlive, Priority, RequestId};

use crate::Moment;
use crate::catalog::ModelIndex;
use crate::client::ClientIndex;

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
    /// What its client got, in whole steps.
    pub(crate) service: u64,
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
    pub(crate) client: ClientIndex,
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

/// What the order knows of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientStanding {
    /// What it got, in whole steps. Never falls while the client waits.
    pub(crate) service: u64,
    /// Its rules let it start nothing now: its requests keep their places and are passed over.
    pub(crate) held_back: bool,
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
    /// The latest moment heard of: what is indexed is indexed as of then.
    now: Moment,
    /// Looked up by id only, never iterated where order shows.
    waiting: HashMap<RequestId, Waiting>,
    models: Vec<ModelQueue>,
    clients: Vec<ClientPlaces>,
    /// Every absent model by its first request. A key may be smaller than the true one (its client got more, or may start
    /// nothing), never larger: whoever reads an entry looks at the truth first.
    wanting: BTreeSet<(OrderKey, ModelIndex)>,
    /// When a key in `wanting` may get smaller by aging.
    aging: BTreeSet<(Moment, ModelIndex)>,
    deadlines: BTreeSet<(Moment, RequestId)>,
    arrivals: u64,
}

#[derive(Debug, Default)]
struct ModelQueue {
    residency: Residency,
    lanes: [Lane; PRIORITIES],
    length: usize,
    loads: BTreeSet<RequestId>,
    /// What stands for this model in `wanting`, and whose request it is.
    wanting: Option<(OrderKey, RequestId)>,
    /// What stands for this model in `aging`.
    ages_at: Option<Moment>,
}

/// The waiting requests of one (model, base priority).
#[derive(Debug, Default)]
struct Lane {
    fifos: BTreeMap<ClientIndex, BTreeSet<(Arrival, RequestId)>>,
    /// The first of each FIFO, oldest first.
    heads: BTreeSet<(Arrival, RequestId, ClientIndex)>,
}

/// What a client waits for.
#[derive(Debug, Default)]
struct ClientPlaces {
    standing: ClientStanding,
    /// How many of its requests wait for each model.
    models: BTreeMap<ModelIndex, usize>,
}

impl InferenceQueue {
    pub(crate) fn new(limits: QueueLimits, aging_step: Duration) -> Self {
        Self {
            limits,
            aging_step,
            now: Moment::START,
            waiting: HashMap::new(),
            models: Vec::new(),
            clients: Vec::new(),
            wanting: BTreeSet::new(),
            aging: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            arrivals: 0,
        }
    }

    /// Other limits and another aging from now on; what waits stays.
    pub(crate) fn reconfigure(&mut self, limits: QueueLimits, aging_step: Duration) {
        self.limits = limits;
        self.aging_step = aging_step;
        for number in 0..self.models.len() {
            self.index(ModelIndex::new(number));
        }
    }

    /// A place at the end of the order of arrival.
    pub(crate) fn arrive(&mut self, now: Moment) -> Arrival {
        self.advance(now);
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
        *self.places(entry.client).models.entry(entry.model).or_default() += 1;
        let queue = self.entry(entry.model);
        queue.length += 1;
        if entry.purpose == Purpose::Load {
            queue.loads.insert(entry.id);
        }
        let lane = &mut queue.lanes[usize::from(entry.priority.number())];
        let fifo = lane.fifos.entry(entry.client).or_default();
        let before = fifo.first().copied();
        fifo.insert((entry.arrival, entry.id));
        let after = fifo.first().copied();
        lane.replace_head(entry.client, before, after);
        if let Some(deadline) = entry.deadline {
            self.deadlines.insert((deadline, entry.id));
        }
        if before != after {
            self.index_head(&entry);
        }
        self.waiting.insert(entry.id, entry);
    }

    /// Takes a request out, wherever it stands.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        let entry = self.waiting.remove(&id)?;
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let models = &mut self.places(entry.client).models;
        if let Some(count) = models.get_mut(&entry.model) {
            *count -= 1;
            if *count == 0 {
                models.remove(&entry.model);
            }
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
            lane.replace_head(entry.client, before, after);
        }
        if queue.wanting.is_some_and(|(_, first)| first == id) {
            self.index(entry.model);
        }
        Some(entry)
    }

    /// The request for `model` that goes first.
    pub(crate) fn best(&self, model: ModelIndex, now: Moment) -> Option<Head> {
        self.heads(model, now).min_by_key(|head| head.key)
    }

    /// The first request of each base priority for `model`, of those whose clients may start something.
    pub(crate) fn heads(&self, model: ModelIndex, now: Moment) -> impl Iterator<Item = Head> {
        let lanes = self.models.get(model.get()).filter(|q| q.length > 0).map(|q| &q.lanes);
        lanes.into_iter().flatten().enumerate().filter_map(move |(number, lane)| self.first(lane, number, now))
    }

    /// Models that need a load for somebody, in the order of their first request, at most `limit` of them.
    pub(crate) fn wanting(&mut self, now: Moment, limit: usize) -> Vec<ModelIndex> {
        self.advance(now);
        let mut found = Vec::new();
        let mut from = Bound::Unbounded;
        while found.len() < limit {
            let Some(&(key, model)) = self.wanting.range((from, Bound::Unbounded)).next() else { break };
            if self.best(model, self.now).is_some_and(|best| best.key == key) {
                found.push(model);
            } else {
                // It stands further back by now, and is met there.
                self.index(model);
            }
            from = Bound::Excluded((key, model));
        }
        found
    }

    pub(crate) fn anyone_wants_a_load(&self) -> bool {
        !self.wanting.is_empty()
    }

    /// Says where a model is; absent ones with waiting requests become candidates for a load.
    pub(crate) fn set_residency(&mut self, model: ModelIndex, residency: Residency) {
        self.entry(model).residency = residency;
        self.index(model);
    }

    pub(crate) fn residency(&self, model: ModelIndex) -> Residency {
        self.models.get(model.get()).map_or(Residency::Absent, |q| q.residency)
    }

    /// Says where a client stands; whether it was held back before and is not any more.
    pub(crate) fn set_standing(&mut self, client: ClientIndex, standing: ClientStanding) -> bool {
        let before = std::mem::replace(&mut self.places(client).standing, standing);
        let freed = before.held_back && !standing.held_back;
        if freed || standing.service < before.service {
            for model in self.models_of(client) {
                self.index(model);
            }
        }
        freed
    }

    /// The models that a client waits for.
    pub(crate) fn models_of(&self, client: ClientIndex) -> Vec<ModelIndex> {
        self.clients.get(client.get()).map(|places| places.models.keys().copied().collect()).unwrap_or_default()
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
        let key = |entry: &Waiting| self.key(entry.priority, entry.arrival, entry.client, now);
        let mut all: Vec<_> = self.waiting.values().map(|entry| (key(entry), entry)).collect();
        all.sort_unstable_by_key(|(key, entry)| {
            let warm_bump = u8::from(self.residency(entry.model) != Residency::Resident);
            (key.effective, warm_bump, key.service, key.arrival)
        });
        all
    }

    fn key(&self, base: Priority, arrival: Arrival, client: ClientIndex, now: Moment) -> OrderKey {
        let effective = base.aged(steps(now.since(arrival.at), self.aging_step));
        OrderKey { effective, service: self.standing(client).service, arrival }
    }

    fn standing(&self, client: ClientIndex) -> ClientStanding {
        self.clients.get(client.get()).map(|places| places.standing).unwrap_or_default()
    }

    /// The one of a lane that goes first: of those that aged as far as the oldest, the one whose client got least.
    fn first(&self, lane: &Lane, number: usize, now: Moment) -> Option<Head> {
        let base = priority(number);
        let mut first: Option<Head> = None;
        for &(arrival, id, client) in &lane.heads {
            if self.standing(client).held_back {
                continue;
            }
            let key = self.key(base, arrival, client, now);
            match first {
                // From here on all are younger.
                Some(best) if key.effective > best.key.effective => break,
                Some(best) if key > best.key => {}
                _ => first = Some(Head { key, id, base }),
            }
        }
        first
    }

    /// Time goes on: what aged gets its new place.
    fn advance(&mut self, now: Moment) {
        self.now = self.now.max(now);
        while let Some(&(_, model)) = self.aging.first().filter(|(at, _)| *at <= self.now) {
            self.index(model);
        }
    }

    fn entry(&mut self, model: ModelIndex) -> &mut ModelQueue {
        if self.models.len() <= model.get() {
            self.models.resize_with(model.get() + 1, ModelQueue::default);
        }
        &mut self.models[model.get()]
    }

    fn places(&mut self, client: ClientIndex) -> &mut ClientPlaces {
        if self.clients.len() <= client.get() {
            self.clients.resize_with(client.get() + 1, ClientPlaces::default);
        }
        &mut self.clients[client.get()]
    }

    /// Brings a model's place in `wanting` up to date.
    fn index(&mut self, model: ModelIndex) {
        if self.models.len() <= model.get() {
            return;
        }
        let queue = &self.models[model.get()];
        let absent = queue.residency == Residency::Absent && queue.length > 0;
        let first = if absent { self.best(model, self.now) } else { None };
        let lanes = self.models[model.get()].lanes.iter().enumerate().filter(|_| first.is_some());
        let ages_at = lanes.filter_map(|(number, lane)| self.lane_ages_at(lane, number)).min();
        self.place(model, first.map(|head| (head.key, head.id)), ages_at);
    }

    /// The same when all that changed is a new head: cheaper, and it may only come forward by it.
    fn index_head(&mut self, entry: &Waiting) {
        if self.standing(entry.client).held_back || self.residency(entry.model) != Residency::Absent {
            return;
        }
        let key = self.key(entry.priority, entry.arrival, entry.client, self.now);
        let queue = &self.models[entry.model.get()];
        let first = queue.wanting.filter(|(first, _)| *first <= key).unwrap_or((key, entry.id));
        let ages_at = [queue.ages_at, self.ages_at(entry.priority, entry.arrival)].into_iter().flatten().min();
        self.place(entry.model, Some(first), ages_at);
    }

    fn place(&mut self, model: ModelIndex, first: Option<(OrderKey, RequestId)>, ages_at: Option<Moment>) {
        let queue = &mut self.models[model.get()];
        let before = std::mem::replace(&mut queue.wanting, first);
        let aged_at = std::mem::replace(&mut queue.ages_at, ages_at);
        if before.map(|(key, _)| key) != first.map(|(key, _)| key) {
            if let Some((key, _)) = before {
                self.wanting.remove(&(key, model));
            }
            if let Some((key, _)) = first {
                self.wanting.insert((key, model));
            }
        }
        if aged_at != ages_at {
            if let Some(at) = aged_at {
                self.aging.remove(&(at, model));
            }
            if let Some(at) = ages_at {
                self.aging.insert((at, model));
            }
        }
    }

    /// When the first of a lane may be another one by aging: the oldest gets more important, or the first of those who
    /// are less aged than the oldest may come to stand beside it, with less service.
    fn lane_ages_at(&self, lane: &Lane, number: usize) -> Option<Moment> {
        let base = priority(number);
        let aged = |arrival: Arrival| base.aged(steps(self.now.since(arrival.at), self.aging_step));
        let mut may_start = lane.heads.iter().filter(|(_, _, client)| !self.standing(*client).held_back);
        let &(oldest, _, _) = may_start.next()?;
        let younger = may_start.find(|&&(arrival, _, _)| aged(arrival) != aged(oldest)).map(|&(arrival, _, _)| arrival);
        let moments = [Some(oldest), younger].into_iter().flatten().filter_map(|arrival| self.ages_at(base, arrival));
        moments.min()
    }

    fn ages_at(&self, base: Priority, arrival: Arrival) -> Option<Moment> {
        let aged = steps(self.now.since(arrival.at), self.aging_step);
        if self.aging_step.is_zero() || base.aged(aged) == base.aged(u64::MAX) {
            return None;
        }
        let steps = u32::try_from(aged + 1).unwrap_or(u32::MAX);
        Some(arrival.at + self.aging_step.saturating_mul(steps))
    }
}

impl Lane {
    fn replace_head(
        &mut self,
        client: ClientIndex,
        before: Option<(Arrival, RequestId)>,
        after: Option<(Arrival, RequestId)>,
    ) {
        if before == after {
            return;
        }
        if let Some((arrival, id)) = before {
            self.heads.remove(&(arrival, id, client));
        }
        if let Some((arrival, id)) = after {
            self.heads.insert((arrival, id, client));
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
