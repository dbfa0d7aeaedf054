//! The waiting requests and their order (RC-4, RC-5, RC-10). Loaded models and clients that may start requests are
//! reported to the queue. Slots, devices and reasons are in other modules.
//!
//! There is one FIFO per (model, priority, client). Within a FIFO the oldest is always first. Among requests of one
//! base priority the older one is never aged less. So the order at any moment is a merge of few heads, and no list is
//! sorted again as time passes. A client's service changes the position of all its requests at once. The first request
//! is therefore searched on demand, among one head per client. Models that want a load are kept in lines built in the
//! same way. Every change is logarithmic.

mod cold;
mod entry;
mod heads;
mod lane;
mod line;
mod whole;

use std::collections::BTreeSet;
use std::time::Duration;

use cold::Cold;
use heads::OrderTerms;
use lane::{HeadChange, Lane};
use model_boss_protocol::{ByteCount, Priority, RequestId, SignedBytes};

use crate::Moment;
use crate::by_number::{ByNumber, InParts};
use crate::catalog::ModelIndex;
use crate::client::{ClientIndex, ClientStanding};

pub(crate) use entry::{
    Arrival, Head, Likeness, LoadState, OrderKey, Purpose, QueueFull, QueueLimits, Waiting, Wanting,
};

/// All waiting requests.
#[derive(Debug)]
pub(crate) struct InferenceQueue {
    limits: QueueLimits,
    terms: OrderTerms,
    /// The latest moment of any call, for which the indexes are valid.
    now: Moment,
    /// Requests by id, never iterated where the order would be visible.
    waiting: InParts<Box<Waiting>>,
    models: Vec<ModelQueue>,
    /// The number of waiting requests by client and model.
    clients: Vec<ByNumber<ModelIndex, usize>>,
    /// The models that want a load.
    cold: Cold,
    deadlines: BTreeSet<(Moment, RequestId)>,
    arrivals: u64,
    /// The number of requests that wait for cloud providers.
    elsewhere: usize,
}

#[derive(Debug, Default)]
struct ModelQueue {
    residency: LoadState,
    /// Whether the entry is a cloud provider rather than a model of this machine.
    is_provider: bool,
    /// Whether the model is set aside: its load is in progress, or has to wait for a condition of its own.
    aside: bool,
    /// Lanes with waiting requests, most important first. They are stored together, because an examination of a model
    /// reads them all.
    lanes: Vec<Lane>,
    length: usize,
    loads: BTreeSet<RequestId>,
    family: u32,
    need: u16,
    /// The exact bytes the model needs; `None` when it was never considered, or changed since.
    bytes: Option<ByteCount>,
}

impl InferenceQueue {
    pub(crate) fn new(limits: QueueLimits, aging_step: Duration) -> Self {
        Self {
            limits,
            terms: OrderTerms::new(aging_step),
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

    /// Replaces the limits and the aging step; waiting requests stay.
    pub(crate) fn reconfigure(&mut self, limits: QueueLimits, aging_step: Duration) {
        self.limits = limits;
        self.terms.set_aging_step(aging_step);
    }

    /// Takes the next position in the order of arrival.
    pub(crate) fn arrive(&mut self, now: Moment) -> Arrival {
        self.advance(now);
        self.arrivals += 1;
        Arrival { at: now, number: self.arrivals }
    }

    /// The head for a caller that waits outside the queue, such as a move.
    pub(crate) fn stand_in(&self, id: RequestId, base: Priority, arrival: Arrival, now: Moment) -> Head {
        let effective = self.terms.effective(base, arrival, now);
        Head { key: OrderKey { effective, service: 0, arrival }, id, base }
    }

    /// Whether one more request of this priority for `model` may wait (RC-10). The last eighth of each limit is kept
    /// for interactive requests, so that a flood of others does not keep them out. Requests for cloud providers wait
    /// only for their clients' limits. All providers together therefore have the limit of one model, and take no
    /// places from models.
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

    /// Marks an entry of the catalog as a provider, which needs no load.
    pub(crate) fn set_provider(&mut self, entry: ModelIndex) {
        let queue = self.entry(entry);
        if !std::mem::replace(&mut queue.is_provider, true) {
            self.elsewhere += self.len_of(entry);
            self.set_residency(entry, LoadState::Resident);
        }
    }

    /// Adds a request at the place of its arrival: a new one at the end, a retried one at its old place.
    pub(crate) fn push(&mut self, entry: Waiting) {
        let Waiting { id, model, client, priority, arrival, .. } = entry;
        *self.places(client).entry(model).or_default() += 1;
        self.entry(model);
        let queue = &mut self.models[model.get()];
        queue.length += 1;
        self.elsewhere += usize::from(queue.is_provider);
        if queue.length == 1 && queue.residency == LoadState::Absent {
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

    /// Removes a request from any place.
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
        if queue.length == 0 && queue.residency == LoadState::Absent {
            self.cold.remove(model, queue.likeness());
        }
        Some(entry)
    }

    /// The first request for `model` in the order.
    pub(crate) fn best(&self, model: ModelIndex, now: Moment) -> Option<Head> {
        self.heads(model, now).min_by_key(|head| head.key)
    }

    /// The first request of each base priority for `model`, among clients that may start one.
    pub(crate) fn heads(&self, model: ModelIndex, now: Moment) -> impl Iterator<Item = Head> {
        let lanes = self.models.get(model.get()).map(|q| &q.lanes);
        lanes.into_iter().flatten().filter_map(move |lane| lane.first(now, &self.terms))
    }

    /// Updates the caches of a model, so that considering it is cheap.
    pub(crate) fn refresh(&mut self, model: ModelIndex, now: Moment) {
        self.advance(now);
        let Some(queue) = self.models.get_mut(model.get()) else { return };
        for lane in &mut queue.lanes {
            lane.seek(self.now, &self.terms);
        }
    }

    /// Whether a waiting request is the first for its model of those with its base priority.
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

    /// The first of all models that want a load.
    pub(crate) fn first_wanting(&mut self, now: Moment) -> Option<Wanting> {
        self.advance(now);
        self.cold.seek_among_all(self.now, &self.terms)
    }

    /// The next model with waiting requests that is not loaded, by index from `from` on. Models outside the lines are
    /// included.
    pub(crate) fn next_cold(&self, from: ModelIndex) -> Option<ModelIndex> {
        self.cold.next_model(from)
    }

    /// The kinds of models that want a load.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Likeness> {
        self.cold.kinds()
    }

    /// The kind of a model by its most important request that may start.
    pub(crate) fn likeness(&self, model: ModelIndex) -> Option<Likeness> {
        let queue = self.models.get(model.get())?;
        let first = queue.lanes.iter().find(|lane| lane.first(self.now, &self.terms).is_some())?;
        Some(queue.kind(first.base()))
    }

    /// Sets a model's family and the exact bytes it needs.
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

    /// Notes that the model's kind may have changed.
    pub(crate) fn doubt_likeness(&mut self, model: ModelIndex) {
        self.entry(model).bytes = None;
    }

    /// Whether a waiting request's model waits behind another model with exactly the same needs. A failed placement of
    /// that model then implies that this one would fail too.
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

    /// Sets a model aside while it has the next turn, or waits for another condition than memory. The first of a queue
    /// of models is then always one that has to be examined.
    pub(crate) fn set_aside(&mut self, model: ModelIndex, aside: bool) {
        if self.entry(model).aside != aside {
            self.leave_lines(model);
            self.entry(model).aside = aside;
            self.enter_lines(model);
        }
    }

    /// Upper bounds of the memory that the models that want a load need, each with its family. The models that are
    /// alike are summed in one bound.
    pub(crate) fn needs(&self) -> impl Iterator<Item = (u32, SignedBytes)> {
        self.cold.counts().map(|((family, need), models)| {
            let each = f64::from(need + 1) / 16.0;
            (family, SignedBytes::from((each.exp2() * f64::from(1 << 20)) as i128 * models as i128))
        })
    }

    /// Whether a model that is not loaded has waiting requests of a client that may start one.
    pub(crate) fn anyone_wants_a_load(&self) -> bool {
        self.cold.has_a_first(self.now, &self.terms)
            || self.cold.aside().any(|model| self.best(model, self.now).is_some())
    }

    /// Whether a model that is not loaded has waiting requests.
    pub(crate) fn anyone_waits_for_a_load(&self) -> bool {
        !self.cold.is_empty()
    }

    /// Sets whether a model is loaded; an absent one with waiting requests becomes a candidate for a load.
    pub(crate) fn set_residency(&mut self, model: ModelIndex, residency: LoadState) {
        if self.entry(model).residency != residency {
            self.leave_lines(model);
            let queue = self.entry(model);
            queue.residency = residency;
            // After a load the known need of memory may have changed.
            queue.bytes = None;
            self.enter_lines(model);
        }
    }

    /// Forgets a model without waiting requests, whose index will be reused.
    pub(crate) fn forget(&mut self, model: ModelIndex) {
        if let Some(queue) = self.models.get_mut(model.get()).filter(|queue| queue.length == 0) {
            *queue = ModelQueue::default();
        }
    }

    pub(crate) fn residency(&self, model: ModelIndex) -> LoadState {
        self.models.get(model.get()).map_or(LoadState::Absent, |q| q.residency)
    }

    /// Sets a client's standing; returns whether it was held back before and is not any more.
    pub(crate) fn set_standing(&mut self, client: ClientIndex, standing: ClientStanding) -> bool {
        self.terms.set_standing(client, standing)
    }

    /// The models that a client waits for, in the order of their indices.
    pub(crate) fn models_of(&self, client: ClientIndex) -> Vec<ModelIndex> {
        let mut models: Vec<ModelIndex> =
            self.clients.get(client.get()).into_iter().flat_map(ByNumber::keys).copied().collect();
        models.sort_unstable();
        models
    }

    /// Removes and returns the next request whose deadline has passed.
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

    /// A caller that waits only for `model` to be loaded.
    pub(crate) fn first_load(&self, model: ModelIndex) -> Option<RequestId> {
        self.models.get(model.get())?.loads.first().copied()
    }

    /// The requests that wait for `model`, most important base priority first, then by client.
    pub(crate) fn ids_of(&self, model: ModelIndex) -> Vec<RequestId> {
        let lanes = self.models.get(model.get()).map(|q| &q.lanes);
        lanes.into_iter().flatten().flat_map(Lane::ids).collect()
    }

    /// Advances the time.
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

    /// Updates the lines after a request was added to a lane of the model, or removed.
    fn head_changed(&mut self, model: ModelIndex, priority: Priority, client: ClientIndex, change: Option<HeadChange>) {
        let queue = &self.models[model.get()];
        let Some(HeadChange { before, after }) = change.filter(|_| queue.is_in_line()) else { return };
        let kind = queue.kind(priority);
        if let Some(arrival) = before {
            self.cold.take(kind, client, (arrival, model), self.now, &self.terms);
        }
        if let Some(arrival) = after {
            self.cold.line(kind).put(client, (arrival, model), self.now, &self.terms);
        }
    }

    /// Removes a model from the lines, before its kind or its residency changes.
    fn leave_lines(&mut self, model: ModelIndex) {
        let queue = &self.models[model.get()];
        if queue.residency != LoadState::Absent || queue.length == 0 {
            return;
        }
        self.cold.remove(model, queue.likeness());
        for (kind, arrival, client) in queue.heads_in_line() {
            self.cold.take(kind, client, (arrival, model), self.now, &self.terms);
        }
    }

    /// Puts a model back into the lines with its present kind.
    fn enter_lines(&mut self, model: ModelIndex) {
        let queue = &self.models[model.get()];
        if queue.residency != LoadState::Absent || queue.length == 0 {
            return;
        }
        self.cold.add(model, queue.likeness(), queue.aside);
        for (kind, arrival, client) in queue.heads_in_line() {
            self.cold.line(kind).put(client, (arrival, model), self.now, &self.terms);
        }
    }
}

impl ModelQueue {
    /// The kind of a request of this base priority.
    fn kind(&self, base: Priority) -> Likeness {
        Likeness { family: self.family, base, need: self.need }
    }

    fn likeness(&self) -> (u32, u16) {
        (self.family, self.need)
    }

    /// Whether the model's requests are in the lines of models that want a load.
    fn is_in_line(&self) -> bool {
        self.residency == LoadState::Absent && !self.aside
    }

    /// The first request of each client in each lane, if the model is in a line.
    fn heads_in_line(&self) -> impl Iterator<Item = (Likeness, Arrival, ClientIndex)> {
        let lanes = self.lanes.iter().filter(|_| self.is_in_line());
        lanes.flat_map(|lane| lane.heads().map(|(arrival, client)| (self.kind(lane.base()), arrival, client)))
    }

    /// The index of the lane of this base priority.
    fn place_of(&self, base: Priority) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.base() == base)
    }

    /// The lane of this base priority, created if it is new.
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
