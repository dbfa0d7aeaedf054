//! The waiting requests and their order (RC-4, RC-5, RC-10). Knows which models are resident and which clients may start
//! something; knows no slots, devices or reasons.
//!
//! One FIFO per (model, priority, client). Within a FIFO the oldest is always first, and among requests of one base
//! priority the older one is never aged less, so the order at any moment is a merge of few heads: nothing is ever sorted
//! again as time passes. What a client got moves all its requests at once; it only grows, so the first of each lane is kept
//! until its own client gets more, and then sought among one head per client that waits there. Every other change is
//! logarithmic.

mod lane;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use model_boss_protocol::{ByteCount, KeepAlive, Priority, RequestId};

use crate::Moment;
use crate::by_number::ByNumber;
use crate::catalog::ModelIndex;
use crate::client::ClientIndex;
use crate::ladder::Climb;
use crate::time::nanos;

use lane::{Lane, Terms};

/// A place in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival {
    /// Rises with the moment, so it decides alone.
    number: u64,
    pub(crate) at: Moment,
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
    /// Where else it could go; `None` for a request that names one model of this machine.
    pub(crate) climb: Option<Box<Climb>>,
}

/// The first of a (model, priority): the one that stands for all of them when room is sought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) key: OrderKey,
    pub(crate) id: RequestId,
    pub(crate) base: Priority,
    pub(crate) client: ClientIndex,
}

impl Head {
    /// The head of a request that somebody thinks of: the last to arrive, of a client that got nothing yet.
    pub(crate) fn imagined(id: RequestId, base: Priority, now: Moment) -> Self {
        let arrival = Arrival { at: now, number: u64::MAX };
        let key = OrderKey { effective: base, service: 0, arrival };
        Self { key, id, base, client: ClientIndex::new(usize::MAX) }
    }
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

/// Models that are alike for placement: where one finds no room and no right to evict, those do not that wait with the same
/// or a less important base priority behind it and need as much or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Likeness {
    /// Models with the same places to go.
    pub(crate) family: u32,
    /// The most important base priority that waits for the model.
    pub(crate) base: Priority,
    /// What it needs, in steps of a sixteenth of an octave.
    pub(crate) need: u16,
}

impl Likeness {
    /// The step of so many bytes.
    pub(crate) fn step_of(bytes: ByteCount) -> u16 {
        // In whole MiB; the logarithm of 2^44 MiB is no more than 44 octaves.
        let mib = (bytes.0 >> 20).max(1) as f64;
        (mib.log2() * 16.0) as u16
    }

    /// Whether a look at one of these spares a look at one of those.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.family == other.family && self.base <= other.base && self.need <= other.need
    }
}

/// A model that wants a load, by its first request.
pub(crate) type Wanting = (OrderKey, ModelIndex);

/// An answer to the question which model comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Model(Wanting),
    None,
    /// Too much of the index has to be put right first: to be asked again.
    Later,
}

/// The queue is at a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFull {
    ForModel {
        limit: usize,
    },
    /// For all providers together.
    Elsewhere {
        limit: usize,
    },
    InAll {
        limit: usize,
    },
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
    terms: Terms,
    /// The latest moment heard of: what is indexed is indexed as of then.
    now: Moment,
    /// Looked up by id only, never iterated where order shows.
    waiting: ByNumber<RequestId, Box<Waiting>>,
    models: Vec<ModelQueue>,
    /// How many requests each client has waiting for each model.
    clients: Vec<ByNumber<ModelIndex, usize>>,
    /// Every absent model by its first request. A key may be smaller than the true one (its client got more, or may start
    /// nothing), never larger: whoever reads an entry looks at the truth first.
    wanting: BTreeSet<Wanting>,
    /// The same, those that are alike together: what is looked at when something changed is one of each.
    alike: BTreeMap<Likeness, BTreeSet<Wanting>>,
    /// When a key in `wanting` may get smaller by aging.
    aging: BTreeSet<(Moment, ModelIndex)>,
    deadlines: BTreeSet<(Moment, RequestId)>,
    arrivals: u64,
    /// How many of those that wait are for providers.
    elsewhere: usize,
}

#[derive(Debug, Default)]
struct ModelQueue {
    residency: Residency,
    /// A provider and no model of this machine.
    is_provider: bool,
    /// Those that somebody waits in, most important first: whoever looks at a model looks at all of them.
    lanes: Vec<Lane>,
    length: usize,
    loads: BTreeSet<RequestId>,
    /// What stands for this model in `wanting` and `alike`.
    wanting: Option<(OrderKey, Likeness)>,
    family: u32,
    need: u16,
    /// What stands for this model in `aging`.
    ages_at: Option<Moment>,
}

impl InferenceQueue {
    pub(crate) fn new(limits: QueueLimits, aging_step: Duration) -> Self {
        Self {
            limits,
            terms: Terms { aging_step, standings: Vec::new() },
            now: Moment::START,
            waiting: ByNumber::default(),
            models: Vec::new(),
            clients: Vec::new(),
            wanting: BTreeSet::new(),
            alike: BTreeMap::new(),
            aging: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            arrivals: 0,
            elsewhere: 0,
        }
    }

    /// Other limits and another aging from now on; what waits stays.
    pub(crate) fn reconfigure(&mut self, limits: QueueLimits, aging_step: Duration) {
        self.limits = limits;
        self.terms.aging_step = aging_step;
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

    /// What stands for a caller that waits outside the queue, such as a move.
    pub(crate) fn stand_in(
        &self,
        id: RequestId,
        client: ClientIndex,
        base: Priority,
        arrival: Arrival,
        now: Moment,
    ) -> Head {
        let effective = base.aged(steps(now.since(arrival.at), self.terms.aging_step));
        Head { key: OrderKey { effective, service: 0, arrival }, id, base, client }
    }

    /// Whether one more request of this priority for `model` may wait (RC-10). The last eighth of each bound is kept for
    /// interactive requests: a flood of others must not keep them out. Those that wait for providers wait for rules of
    /// their clients only, so all providers together have the places of one model, and take none from models.
    pub(crate) fn admit(&self, model: ModelIndex, priority: Priority) -> Result<(), QueueFull> {
        let limit = |limit: usize| if priority <= Priority::INTERACTIVE { limit } else { limit - limit / 8 };
        let (per_model, in_all) = (limit(self.limits.per_model), limit(self.limits.in_all));
        if self.models.get(model.get()).is_some_and(|queue| queue.is_provider) && self.elsewhere >= per_model {
            return Err(QueueFull::Elsewhere { limit: per_model });
        }
        if self.len_of(model) >= per_model {
            return Err(QueueFull::ForModel { limit: per_model });
        }
        if self.waiting.len() >= in_all {
            return Err(QueueFull::InAll { limit: in_all });
        }
        Ok(())
    }

    /// Says that an entry of the catalog is a provider, which needs no load.
    pub(crate) fn set_provider(&mut self, entry: ModelIndex) {
        let queue = self.entry(entry);
        if !std::mem::replace(&mut queue.is_provider, true) {
            self.elsewhere += self.len_of(entry);
            self.set_residency(entry, Residency::Resident);
        }
    }

    /// Adds a request at the place of its arrival: a new one at the end, one that is tried again where it was.
    pub(crate) fn push(&mut self, entry: Waiting) {
        *self.places(entry.client).entry(entry.model).or_default() += 1;
        let queue = self.entry(entry.model);
        queue.length += 1;
        let is_provider = queue.is_provider;
        if entry.purpose == Purpose::Load {
            queue.loads.insert(entry.id);
        }
        let is_head = queue.lane(entry.priority).push(entry.client, entry.arrival, entry.id);
        self.elsewhere += usize::from(is_provider);
        if let Some(deadline) = entry.deadline {
            self.deadlines.insert((deadline, entry.id));
        }
        if is_head {
            self.head_came(&entry);
        }
        self.waiting.insert(entry.id, Box::new(entry));
    }

    /// Takes a request out, wherever it stands.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        let entry = *self.waiting.remove(&id)?;
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let models = self.places(entry.client);
        if let Some(count) = models.get_mut(&entry.model) {
            *count -= 1;
            if *count == 0 {
                models.remove(&entry.model);
            }
        }
        let Some(queue) = self.models.get_mut(entry.model.get()) else { return Some(entry) };
        queue.length -= 1;
        self.elsewhere -= usize::from(queue.is_provider);
        if entry.purpose == Purpose::Load {
            queue.loads.remove(&id);
        }
        let Some(place) = queue.place_of(entry.priority) else { return Some(entry) };
        let lane = &mut queue.lanes[place];
        let was_first = lane.first.is_some_and(|first| first.id == id);
        lane.remove(entry.client, entry.arrival);
        if lane.is_empty() {
            queue.lanes.remove(place);
        } else if was_first {
            lane.index(self.now, &self.terms);
        }
        if was_first {
            self.place(entry.model);
        }
        Some(entry)
    }

    /// The request for `model` that goes first.
    pub(crate) fn best(&self, model: ModelIndex, now: Moment) -> Option<Head> {
        self.heads(model, now).min_by_key(|head| head.key)
    }

    /// The first request of each base priority for `model`, of those whose clients may start something.
    pub(crate) fn heads(&self, model: ModelIndex, now: Moment) -> impl Iterator<Item = Head> {
        let lanes = self.models.get(model.get()).map(|q| &q.lanes);
        lanes.into_iter().flatten().filter_map(move |lane| lane.true_first(now, &self.terms))
    }

    /// Puts right what changed since the model was last looked at, so that looking at it costs little.
    pub(crate) fn refresh(&mut self, model: ModelIndex, now: Moment) {
        self.advance(now);
        let Some(queue) = self.models.get_mut(model.get()) else { return };
        let mut changed = false;
        for lane in queue.lanes.iter_mut().filter(|lane| lane.is_stale(self.now, &self.terms)) {
            lane.index(self.now, &self.terms);
            changed = true;
        }
        if changed {
            self.place(model);
        }
    }

    /// Whether a waiting request goes before all others for its model that have its base priority.
    pub(crate) fn is_head(&mut self, id: RequestId, now: Moment) -> bool {
        self.advance(now);
        let Some(&Waiting { model, priority, client, .. }) = self.get(id) else { return false };
        let queue = &mut self.models[model.get()];
        let Some(lane) = queue.place_of(priority).map(|place| &mut queue.lanes[place]) else { return false };
        if !lane.leads(client, id) {
            return false;
        }
        let stale = lane.is_stale(self.now, &self.terms);
        if stale {
            lane.index(self.now, &self.terms);
        }
        let is_head = lane.first.is_some_and(|first| first.id == id);
        if stale {
            self.place(model);
        }
        is_head
    }

    /// The next model that needs a load for somebody, in the order of their first requests; `after` is the one before.
    pub(crate) fn next_wanting(&mut self, now: Moment, after: Option<Wanting>, renewals: &mut usize) -> Next {
        self.next(now, None, after, renewals)
    }

    /// The next model of a kind that wants a load; `after` is the one before.
    pub(crate) fn next_alike(
        &mut self,
        now: Moment,
        kind: Likeness,
        after: Option<Wanting>,
        renewals: &mut usize,
    ) -> Next {
        self.next(now, Some(kind), after, renewals)
    }

    /// The next of a kind, or of all. Keys in the index may be smaller than the truth; those that are met are put right, no
    /// more than `renewals` of them, because a client that got more may be the first of every model.
    fn next(&mut self, now: Moment, kind: Option<Likeness>, after: Option<Wanting>, renewals: &mut usize) -> Next {
        self.advance(now);
        let mut from = after.map_or(Bound::Unbounded, Bound::Excluded);
        loop {
            let models = match kind {
                None => &self.wanting,
                Some(kind) => match self.alike.get(&kind) {
                    Some(models) => models,
                    None => return Next::None,
                },
            };
            let Some(&(key, model)) = models.range((from, Bound::Unbounded)).next() else { return Next::None };
            self.refresh(model, now);
            let is_true =
                |(truth, now_of): (OrderKey, Likeness)| truth == key && kind.is_none_or(|kind| kind == now_of);
            if self.models[model.get()].wanting.is_some_and(is_true) {
                return Next::Model((key, model));
            }
            // It stands further back by now, and is met there.
            from = Bound::Excluded((key, model));
            match renewals.checked_sub(1) {
                Some(left) => *renewals = left,
                None => return Next::Later,
            }
        }
    }

    /// The kinds of models that want a load.
    pub(crate) fn kinds(&self) -> Vec<Likeness> {
        self.alike.keys().copied().collect()
    }

    /// What a model that wants a load is like.
    pub(crate) fn likeness(&self, model: ModelIndex) -> Option<Likeness> {
        self.models.get(model.get())?.wanting.map(|(_, kind)| kind)
    }

    /// Says what a model is like.
    pub(crate) fn set_likeness(&mut self, model: ModelIndex, family: u32, need: u16) {
        let queue = self.entry(model);
        if (queue.family, queue.need) != (family, need) {
            (queue.family, queue.need) = (family, need);
            self.place(model);
        }
    }

    /// What the models that want a load need at most: by family, all of a kind together.
    pub(crate) fn needs(&self) -> impl Iterator<Item = (u32, i128)> {
        self.alike.iter().map(|(kind, models)| {
            let each = f64::from(kind.need + 1) / 16.0;
            (kind.family, (each.exp2() * f64::from(1 << 20)) as i128 * models.len() as i128)
        })
    }

    pub(crate) fn anyone_wants_a_load(&self) -> bool {
        !self.wanting.is_empty()
    }

    /// Says where a model is; absent ones with waiting requests become candidates for a load.
    pub(crate) fn set_residency(&mut self, model: ModelIndex, residency: Residency) {
        self.entry(model).residency = residency;
        self.place(model);
    }

    /// Forgets a model that nobody waits for: its place in the catalog is another model's next.
    pub(crate) fn forget(&mut self, model: ModelIndex) {
        if let Some(queue) = self.models.get_mut(model.get()).filter(|queue| queue.length == 0) {
            *queue = ModelQueue::default();
        }
    }

    pub(crate) fn residency(&self, model: ModelIndex) -> Residency {
        self.models.get(model.get()).map_or(Residency::Absent, |q| q.residency)
    }

    /// Says where a client stands; whether it was held back before and is not any more.
    pub(crate) fn set_standing(&mut self, client: ClientIndex, standing: ClientStanding) -> bool {
        let before = self.terms.set_standing(client, standing);
        let freed = before.held_back && !standing.held_back;
        if freed || standing.service < before.service {
            for model in self.models_of(client) {
                self.index(model);
            }
        }
        freed
    }

    /// The models that a client waits for, in their order.
    pub(crate) fn models_of(&self, client: ClientIndex) -> Vec<ModelIndex> {
        let mut models: Vec<ModelIndex> =
            self.clients.get(client.get()).into_iter().flat_map(ByNumber::keys).copied().collect();
        models.sort_unstable();
        models
    }

    /// Takes the next request whose deadline is over.
    pub(crate) fn next_expired(&self, now: Moment) -> Option<RequestId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|&(_, id)| id)
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<&Waiting> {
        self.waiting.get(&id).map(Box::as_ref)
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
        lanes.into_iter().flatten().flat_map(Lane::ids).collect()
    }

    /// Everybody, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.values().map(Box::as_ref)
    }

    /// Everybody in RC-4's order. For people: sorts all of them.
    pub(crate) fn in_order(&self, now: Moment) -> Vec<(OrderKey, &Waiting)> {
        let key = |entry: &Waiting| self.terms.key(entry.priority, entry.arrival, entry.client, now);
        let mut all: Vec<_> = self.waiting.values().map(|entry| (key(entry), entry.as_ref())).collect();
        all.sort_unstable_by_key(|(key, entry)| {
            let warm_bump = u8::from(self.residency(entry.model) != Residency::Resident);
            (key.effective, warm_bump, key.service, key.arrival)
        });
        all
    }

    /// How many requests for `model` would go before one of this priority that came now. For people: looks at all of them.
    pub(crate) fn stand_before(&self, model: ModelIndex, base: Priority, now: Moment) -> usize {
        let aged =
            |waiting: &&Waiting| waiting.priority.aged(steps(now.since(waiting.arrival.at), self.terms.aging_step));
        let of_model = self.waiting.values().map(Box::as_ref).filter(|waiting| waiting.model == model);
        of_model.filter(|waiting| aged(waiting) <= base).count()
    }

    /// Time goes on: what aged gets its new place.
    fn advance(&mut self, now: Moment) {
        self.now = self.now.max(now);
        while let Some(&(_, model)) = self.aging.first().filter(|(at, _)| *at <= self.now) {
            for lane in &mut self.models[model.get()].lanes {
                if lane.ages_at.is_some_and(|at| at <= self.now) {
                    lane.index(self.now, &self.terms);
                }
            }
            self.place(model);
        }
    }

    fn entry(&mut self, model: ModelIndex) -> &mut ModelQueue {
        if self.models.len() <= model.get() {
            self.models.resize_with(model.get() + 1, ModelQueue::default);
        }
        &mut self.models[model.get()]
    }

    fn places(&mut self, client: ClientIndex) -> &mut ByNumber<ModelIndex, usize> {
        if self.clients.len() <= client.get() {
            self.clients.resize_with(client.get() + 1, ByNumber::default);
        }
        &mut self.clients[client.get()]
    }

    /// A new head may only bring its lane and its model forward.
    fn head_came(&mut self, entry: &Waiting) {
        if self.terms.standing(entry.client).held_back {
            return;
        }
        let key = self.terms.key(entry.priority, entry.arrival, entry.client, self.now);
        let head = Head { key, id: entry.id, base: entry.priority, client: entry.client };
        let lane = self.models[entry.model.get()].lane(entry.priority);
        if lane.head_came(head, self.now, &self.terms) {
            self.place(entry.model);
        }
    }

    /// Finds the first of every lane of a model anew.
    fn index(&mut self, model: ModelIndex) {
        let Some(queue) = self.models.get_mut(model.get()) else { return };
        queue.lanes.iter_mut().for_each(|lane| lane.index(self.now, &self.terms));
        self.place(model);
    }

    /// Brings a model's places in `wanting` and `aging` up to date with its lanes.
    fn place(&mut self, model: ModelIndex) {
        let queue = &mut self.models[model.get()];
        let (mut first, mut ages_at) = (None, None);
        if queue.residency == Residency::Absent && queue.length > 0 {
            let smaller = |a: Option<OrderKey>, b: OrderKey| Some(a.map_or(b, |a| a.min(b)));
            first = queue.lanes.iter().filter_map(|lane| lane.first).fold(None, |least, head| smaller(least, head.key));
            ages_at = queue.lanes.iter().filter(|lane| lane.first.is_some()).filter_map(|lane| lane.ages_at).min();
        }
        let most_important = queue.lanes.iter().find(|lane| lane.first.is_some()).map_or(Priority::LOWEST, |l| l.base);
        let kind = Likeness { family: queue.family, base: most_important, need: queue.need };
        let first = first.map(|key| (key, kind));
        let before = std::mem::replace(&mut queue.wanting, first);
        let aged_at = std::mem::replace(&mut queue.ages_at, ages_at);
        if before != first {
            if let Some((key, kind)) = before {
                self.wanting.remove(&(key, model));
                if let Some(alike) = self.alike.get_mut(&kind) {
                    alike.remove(&(key, model));
                    if alike.is_empty() {
                        self.alike.remove(&kind);
                    }
                }
            }
            if let Some((key, kind)) = first {
                self.wanting.insert((key, model));
                self.alike.entry(kind).or_default().insert((key, model));
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
}

impl ModelQueue {
    /// Where the lane of this base priority is.
    fn place_of(&self, base: Priority) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.base == base)
    }

    /// The lane of this base priority.
    fn lane(&mut self, base: Priority) -> &mut Lane {
        let place = self.place_of(base).unwrap_or_else(|| {
            let place = self.lanes.iter().take_while(|lane| lane.base < base).count();
            self.lanes.insert(place, Lane::new(base));
            place
        });
        &mut self.lanes[place]
    }
}

/// Whole steps of `step` in `span`; none when `step` is zero.
pub(crate) fn steps(span: Duration, step: Duration) -> u64 {
    nanos(span).checked_div(nanos(step)).unwrap_or(0)
}

#[cfg(test)]
mod tests;
