//! The waiting requests and their order (RC-4, RC-5, RC-10). Knows which models are resident and which clients may start
//! something; knows no slots, devices or reasons.
//!
//! One FIFO per (model, priority, client). Within a FIFO the oldest is always first, and among requests of one base
//! priority the older one is never aged less, so the order at any moment is a merge of few heads: nothing is ever sorted
//! again as time passes. What a client got moves all its requests at once, so the first is sought among one head per client,
//! when somebody asks for it. Models that want a load stand in lines of the same make. Every change is logarithmic.

mod cold;
mod entry;
mod heads;
mod lane;
mod line;

use std::collections::BTreeSet;
use std::time::Duration;

use cold::Cold;
use heads::Terms;
use lane::{HeadChange, Lane};
use model_boss_protocol::{ByteCount, Priority, RequestId};

use crate::Moment;
use crate::by_number::{ByNumber, InParts};
use crate::catalog::ModelIndex;
use crate::client::{ClientIndex, ClientStanding};

pub(crate) use entry::{
    Arrival, Head, Likeness, OrderKey, Purpose, QueueFull, QueueLimits, Residency, Waiting, Wanting,
};

/// All waiting requests.
#[derive(Debug)]
pub(crate) struct InferenceQueue {
    limits: QueueLimits,
    terms: Terms,
    /// The latest moment heard of: what is indexed is indexed as of then.
    now: Moment,
    /// Looked up by id only, never iterated where order shows.
    waiting: InParts<Box<Waiting>>,
    models: Vec<ModelQueue>,
    /// How many requests each client has waiting for each model.
    clients: Vec<ByNumber<ModelIndex, usize>>,
    /// The models that want a load.
    cold: Cold,
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
    /// It wants a load that is on its way or has to wait for something of its own: it stands in no line.
    aside: bool,
    /// Those that somebody waits in, most important first: whoever looks at a model looks at all of them.
    lanes: Vec<Lane>,
    length: usize,
    loads: BTreeSet<RequestId>,
    family: u32,
    need: u16,
    /// Exactly what it needs; `None` when it was never looked at, or changed since.
    bytes: Option<ByteCount>,
}

impl InferenceQueue {
    pub(crate) fn new(limits: QueueLimits, aging_step: Duration) -> Self {
        Self {
            limits,
            terms: Terms::new(aging_step),
            now: Moment::START,
            waiting: InParts::default(),
            models: Vec::new(),
            clients: Vec::new(),
            cold: Cold::default(),
            deadlines: BTreeSet::new(),
            arrivals: 0,
            elsewhere: 0,
        }
    }

    /// Other limits and another aging from now on; what waits stays.
    pub(crate) fn reconfigure(&mut self, limits: QueueLimits, aging_step: Duration) {
        self.limits = limits;
        self.terms.set_aging_step(aging_step);
    }

    /// A place at the end of the order of arrival.
    pub(crate) fn arrive(&mut self, now: Moment) -> Arrival {
        self.advance(now);
        self.arrivals += 1;
        Arrival { at: now, number: self.arrivals }
    }

    /// What stands for a caller that waits outside the queue, such as a move.
    pub(crate) fn stand_in(&self, id: RequestId, base: Priority, arrival: Arrival, now: Moment) -> Head {
        let effective = self.terms.effective(base, arrival, now);
        Head { key: OrderKey { effective, service: 0, arrival }, id, base }
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
        let Waiting { id, model, client, priority, arrival, .. } = entry;
        *self.places(client).entry(model).or_default() += 1;
        self.entry(model);
        let queue = &mut self.models[model.get()];
        queue.length += 1;
        self.elsewhere += usize::from(queue.is_provider);
        if queue.length == 1 && queue.residency == Residency::Absent {
            self.cold.add(model, queue.likeness(), queue.aside);
        }
        if entry.purpose == Purpose::Load {
            queue.loads.insert(id);
        }
        let change = queue.lane(priority).push(client, arrival, id, self.now, &self.terms);
        if let Some(deadline) = entry.deadline {
            self.deadlines.insert((deadline, id));
        }
        self.waiting.insert(id.0, Box::new(entry));
        self.head_changed(model, priority, client, change);
    }

    /// Takes a request out, wherever it stands.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        let entry = *self.waiting.remove(id.0)?;
        let Waiting { model, client, priority, arrival, .. } = entry;
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let models = self.places(client);
        if let Some(count) = models.get_mut(&model) {
            *count -= 1;
            if *count == 0 {
                models.remove(&model);
            }
        }
        let Some(queue) = self.models.get_mut(model.get()) else { return Some(entry) };
        queue.length -= 1;
        self.elsewhere -= usize::from(queue.is_provider);
        if entry.purpose == Purpose::Load {
            queue.loads.remove(&id);
        }
        let Some(place) = queue.place_of(priority) else { return Some(entry) };
        let change = queue.lanes[place].remove(client, arrival, self.now, &self.terms);
        if queue.lanes[place].is_empty() {
            queue.lanes.remove(place);
        }
        self.head_changed(model, priority, client, change);
        let queue = &self.models[model.get()];
        if queue.length == 0 && queue.residency == Residency::Absent {
            self.cold.remove(model, queue.likeness());
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
        lanes.into_iter().flatten().filter_map(move |lane| lane.first(now, &self.terms))
    }

    /// Puts right what changed since the model was last looked at, so that looking at it costs little.
    pub(crate) fn refresh(&mut self, model: ModelIndex, now: Moment) {
        self.advance(now);
        let Some(queue) = self.models.get_mut(model.get()) else { return };
        for lane in &mut queue.lanes {
            lane.seek(self.now, &self.terms);
        }
    }

    /// Whether a waiting request goes before all others for its model that have its base priority.
    pub(crate) fn is_head(&mut self, id: RequestId, now: Moment) -> bool {
        self.advance(now);
        let Some(&Waiting { model, priority, client, .. }) = self.get(id) else { return false };
        let queue = &mut self.models[model.get()];
        let Some(lane) = queue.place_of(priority).map(|place| &mut queue.lanes[place]) else { return false };
        lane.leads(client, id) && lane.seek(self.now, &self.terms) == Some(id)
    }

    /// The first model of a kind that wants a load.
    pub(crate) fn first_alike(&mut self, now: Moment, kind: Likeness) -> Option<Wanting> {
        self.advance(now);
        self.cold.seek(kind, self.now, &self.terms)
    }

    /// The first model of all that want a load.
    pub(crate) fn first_wanting(&mut self, now: Moment) -> Option<Wanting> {
        self.advance(now);
        self.cold.seek_among_all(self.now, &self.terms)
    }

    /// The next model that is not loaded and that somebody waits for, beginning with this one: those that stand in no line
    /// too. In no order that means anything.
    pub(crate) fn next_cold(&self, from: ModelIndex) -> Option<ModelIndex> {
        self.cold.next_model(from)
    }

    /// The kinds of requests whose models want a load.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Likeness> {
        self.cold.kinds()
    }

    /// The standing of a model's most important requests that may start something.
    pub(crate) fn likeness(&self, model: ModelIndex) -> Option<Likeness> {
        let queue = self.models.get(model.get())?;
        let first = queue.lanes.iter().find(|lane| lane.first(self.now, &self.terms).is_some())?;
        Some(queue.kind(first.base()))
    }

    /// Says what a model is like, and exactly how much it needs.
    pub(crate) fn set_likeness(&mut self, model: ModelIndex, family: u32, bytes: ByteCount) {
        let need = Likeness::step_of(bytes);
        let queue = self.entry(model);
        queue.bytes = Some(bytes);
        if (queue.family, queue.need) != (family, need) {
            self.leave_lines(model);
            let queue = self.entry(model);
            (queue.family, queue.need) = (family, need);
            self.enter_lines(model);
        }
    }

    /// The model's standing may have changed.
    pub(crate) fn doubt_likeness(&mut self, model: ModelIndex) {
        self.entry(model).bytes = None;
    }

    /// Whether a waiting request stands in line behind another model's that asks exactly the same of the devices: what came
    /// of the look at that one came of a look at this one too.
    pub(crate) fn is_behind_its_like(&mut self, id: RequestId, now: Moment) -> bool {
        let Some(&Waiting { model, priority, .. }) = self.get(id) else { return false };
        let queue = &self.models[model.get()];
        let (bytes, kind) = (queue.bytes, queue.kind(priority));
        bytes.is_some()
            && queue.is_in_line()
            && self.first_alike(now, kind).is_some_and(|(_, first)| {
                first != model && self.models.get(first.get()).is_some_and(|first| first.bytes == bytes)
            })
    }

    /// A model that has the next turn, or waits for something else than room, stands in no line until it is said otherwise:
    /// so the first of a line is one that has to be looked at.
    pub(crate) fn set_aside(&mut self, model: ModelIndex, aside: bool) {
        if self.entry(model).aside != aside {
            self.leave_lines(model);
            self.entry(model).aside = aside;
            self.enter_lines(model);
        }
    }

    /// The most that models which want a load need: by family, all that are alike together.
    pub(crate) fn needs(&self) -> impl Iterator<Item = (u32, i128)> {
        self.cold.counts().map(|((family, need), models)| {
            let each = f64::from(need + 1) / 16.0;
            (family, (each.exp2() * f64::from(1 << 20)) as i128 * models as i128)
        })
    }

    /// Whether a model that is not loaded is waited for by somebody who may start something.
    pub(crate) fn anyone_wants_a_load(&self) -> bool {
        self.cold.has_a_first(self.now, &self.terms)
            || self.cold.aside().any(|model| self.best(model, self.now).is_some())
    }

    /// Whether anybody waits for a model that is not loaded.
    pub(crate) fn anyone_waits_for_a_load(&self) -> bool {
        !self.cold.is_empty()
    }

    /// Says where a model is; absent ones with waiting requests become candidates for a load.
    pub(crate) fn set_residency(&mut self, model: ModelIndex, residency: Residency) {
        if self.entry(model).residency != residency {
            self.leave_lines(model);
            let queue = self.entry(model);
            queue.residency = residency;
            // A load may teach what it needs.
            queue.bytes = None;
            self.enter_lines(model);
        }
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
        self.terms.set_standing(client, standing)
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
        self.waiting.get(id.0).map(Box::as_ref)
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
        let aged = |waiting: &&Waiting| self.terms.effective(waiting.priority, waiting.arrival, now);
        let of_model = self.waiting.values().map(Box::as_ref).filter(|waiting| waiting.model == model);
        of_model.filter(|waiting| aged(waiting) <= base).count()
    }

    /// Time goes on.
    fn advance(&mut self, now: Moment) {
        self.now = self.now.max(now);
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

    /// Keeps the lines in step with the lane of a model, whose request came or went already.
    fn head_changed(&mut self, model: ModelIndex, priority: Priority, client: ClientIndex, change: Option<HeadChange>) {
        let queue = &self.models[model.get()];
        let Some(HeadChange { before, after }) = change.filter(|_| queue.is_in_line()) else { return };
        let kind = queue.kind(priority);
        if let Some(arrival) = before {
            self.cold.take(kind, client, (arrival, model), self.now, &self.terms);
        }
        if let Some(arrival) = after {
            self.cold.put(kind, client, (arrival, model), self.now, &self.terms);
        }
    }

    /// Takes a model out of the lines, before what it is like or where it is changes.
    fn leave_lines(&mut self, model: ModelIndex) {
        let queue = &self.models[model.get()];
        if queue.residency != Residency::Absent || queue.length == 0 {
            return;
        }
        self.cold.remove(model, queue.likeness());
        for (kind, arrival, client) in queue.heads_in_line() {
            self.cold.take(kind, client, (arrival, model), self.now, &self.terms);
        }
    }

    /// Puts it back, as it is now.
    fn enter_lines(&mut self, model: ModelIndex) {
        let queue = &self.models[model.get()];
        if queue.residency != Residency::Absent || queue.length == 0 {
            return;
        }
        self.cold.add(model, queue.likeness(), queue.aside);
        for (kind, arrival, client) in queue.heads_in_line() {
            self.cold.put(kind, client, (arrival, model), self.now, &self.terms);
        }
    }
}

impl ModelQueue {
    /// The standing of a request of this base priority.
    fn kind(&self, base: Priority) -> Likeness {
        Likeness { family: self.family, base, need: self.need }
    }

    fn likeness(&self) -> (u32, u16) {
        (self.family, self.need)
    }

    /// Whether its requests stand in the lines of those that want a load.
    fn is_in_line(&self) -> bool {
        self.residency == Residency::Absent && !self.aside
    }

    /// The first request of each client in each lane, if they stand in line.
    fn heads_in_line(&self) -> impl Iterator<Item = (Likeness, Arrival, ClientIndex)> {
        let lanes = self.lanes.iter().filter(|_| self.is_in_line());
        lanes.flat_map(|lane| lane.heads().map(|(arrival, client)| (self.kind(lane.base()), arrival, client)))
    }

    /// Where the lane of this base priority is.
    fn place_of(&self, base: Priority) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.base() == base)
    }

    /// The lane of this base priority.
    fn lane(&mut self, base: Priority) -> &mut Lane {
        let place = self.place_of(base).unwrap_or_else(|| {
            let place = self.lanes.iter().take_while(|lane| lane.base() < base).count();
            self.lanes.insert(place, Lane::new(base));
            place
        });
        &mut self.lanes[place]
    }
}

#[cfg(test)]
mod tests;
