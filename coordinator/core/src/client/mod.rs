//! The accounts of clients: the service of each, and the limits that apply now (RC-4, RC-9, RC-24). Models, slots and
//! the order of the queue are kept in other modules.
//!
//! Service is counted as in start-time fair queueing (Goyal, Vin, Cheng 1996). A client that returns after a pause
//! starts at the level of the least-served active client. So a pause does not save up a right to displace others.
//! Service that no other client wanted at the time does not count against a client later.

mod counts;
mod standing;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use model_boss_protocol::{ModelId, RequestId};

use crate::catalog::ModelIndex;
use crate::settings::{ClientRule, ClientRules};
use crate::{Moment, Principal, RequestOutcome};

use self::counts::ModelCounts;
pub(crate) use self::standing::{ClientIndex, ClientStanding};

/// The number of clients remembered, bounded because clients choose their names. Beyond it the one inactive for
/// longest is forgotten.
const REMEMBERED: usize = 4_096;

/// The number of recent requests remembered for each client.
const RECENT: usize = 8;

/// The span over which a client's rate is averaged.
const RATE_SPAN: Duration = Duration::from_secs(60);

/// The service counted for a second of a device when tokens were not counted: about the tokens that a small GPU
/// decodes.
const SERVICE_PER_SECOND: u64 = 100;

/// All clients seen lately.
#[derive(Debug)]
pub(crate) struct Clients {
    rules: ClientRules,
    service_step: u64,
    all: Vec<ClientAccount>,
    /// Indices by name, never iterated where the order would be visible.
    ids: HashMap<Principal, ClientIndex>,
    /// Clients with waiting or running requests, by their service.
    active: BTreeSet<(u64, ClientIndex)>,
    /// The other clients, by the moment of their last request.
    resting: BTreeSet<(Moment, ClientIndex)>,
    /// The service of the least-served active client, or that of the last active one when it became inactive. It never
    /// falls.
    floor: u64,
}

/// The account of one client.
#[derive(Debug)]
pub(crate) struct ClientAccount {
    pub(crate) principal: Principal,
    pub(crate) rule: ClientRule,
    /// The service that the client got, on the scale of the order.
    pub(crate) service: u64,
    pub(crate) waiting: u32,
    pub(crate) running: u32,
    pub(crate) seen: Moment,
    last_end: Option<Moment>,
    /// The number of requests of the last minute, decaying with time.
    rate: f64,
    rated_at: Moment,
    /// The number of requests that the client's rate limit still allows. The number rises again with time.
    allowance: f64,
    pub(crate) requests: u64,
    pub(crate) refused: u64,
    pub(crate) tokens: u64,
    /// The number of requests by model.
    pub(crate) models: ModelCounts,
    pub(crate) recent: VecDeque<RecentRequest>,
}

/// A request that ended.
#[derive(Clone, Debug)]
pub(crate) struct RecentRequest {
    pub(crate) request: RequestId,
    pub(crate) model: ModelId,
    pub(crate) index: ModelIndex,
    pub(crate) ended: Moment,
    pub(crate) took: Duration,
    pub(crate) tokens: Option<u64>,
    pub(crate) outcome: RequestOutcome,
}

/// The limit for which a client may start no request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldBack {
    /// The client has as many running requests as its limit permits.
    Concurrency { running: u32, limit: u32 },
    /// The pause after the client's last request is not over.
    Cooldown { until: Moment },
}

/// The limit for which a client's request is refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverLimit {
    /// The client sent too many requests within a minute.
    Rate { per_minute: u32, retry_after: Duration },
    /// The client has too many waiting requests.
    Queued { limit: u32 },
}

impl Clients {
    pub(crate) fn new(rules: ClientRules, service_step: u64) -> Self {
        Self {
            rules,
            service_step: service_step.max(1),
            all: Vec::new(),
            ids: HashMap::new(),
            active: BTreeSet::new(),
            resting: BTreeSet::new(),
            floor: 0,
        }
    }

    /// Replaces the rules.
    pub(crate) fn reconfigure(&mut self, rules: ClientRules, service_step: u64) {
        self.rules = rules;
        self.service_step = service_step.max(1);
        for client in &mut self.all {
            client.rule = self.rules.of_principal(&client.principal);
        }
    }

    /// The account of this principal, created if it is new.
    pub(crate) fn named(&mut self, principal: &Principal, now: Moment) -> ClientIndex {
        if let Some(&index) = self.ids.get(principal) {
            return index;
        }
        let client = ClientAccount::new(principal.clone(), self.rules.of_principal(principal), now);
        let place = if self.all.len() < REMEMBERED { None } else { self.resting.pop_first() };
        let index = match place {
            Some((_, index)) => {
                let forgotten = std::mem::replace(&mut self.all[index.get()], client);
                self.ids.remove(&forgotten.principal);
                index
            }
            None => {
                self.all.push(client);
                ClientIndex::new(self.all.len() - 1)
            }
        };
        self.ids.insert(principal.clone(), index);
        self.resting.insert((now, index));
        index
    }

    /// Accepts a request if its client's limits let it wait (RC-9).
    pub(crate) fn admit(&mut self, index: ClientIndex, now: Moment) -> Result<(), OverLimit> {
        let client = &mut self.all[index.get()];
        client.note_arrival(now);
        if let Some(limit) = client.rule.max_queued
            && client.waiting >= limit
        {
            client.refused += 1;
            return Err(OverLimit::Queued { limit });
        }
        if let Some(per_minute) = client.rule.rate_per_minute {
            if client.allowance < 1.0 {
                client.refused += 1;
                let missing = (1.0 - client.allowance) / f64::from(per_minute.max(1)) * 60.0;
                return Err(OverLimit::Rate { per_minute, retry_after: Duration::from_secs_f64(missing) });
            }
            client.allowance -= 1.0;
        }
        client.requests += 1;
        Ok(())
    }

    /// Counts a request of the client that begins to wait.
    pub(crate) fn waits(&mut self, index: ClientIndex, now: Moment) {
        self.change(index, now, |client| client.waiting += 1);
    }

    /// Counts a request of the client that waits no longer.
    pub(crate) fn left(&mut self, index: ClientIndex, now: Moment) {
        self.change(index, now, |client| client.waiting = client.waiting.saturating_sub(1));
    }

    /// Counts a dispatched request of the client.
    pub(crate) fn started(&mut self, index: ClientIndex, now: Moment) {
        self.change(index, now, |client| client.running += 1);
    }

    /// Counts the end of a dispatched request.
    pub(crate) fn ended(&mut self, index: ClientIndex, now: Moment, what: RecentRequest) {
        let service = match (what.outcome, what.tokens) {
            // A request without an answer adds no service.
            (RequestOutcome::LostBeforeAnswer, _) => 0,
            (_, Some(tokens)) => tokens,
            (_, None) => u64::try_from(what.took.as_millis()).unwrap_or(u64::MAX) / (1_000 / SERVICE_PER_SECOND),
        };
        self.change(index, now, |client| {
            client.running = client.running.saturating_sub(1);
            client.service = client.service.saturating_add(service);
            if what.outcome == RequestOutcome::LostBeforeAnswer {
                return;
            }
            client.last_end = Some(now);
            client.tokens = client.tokens.saturating_add(what.tokens.unwrap_or(0));
            client.models.add(what.index, &what.model);
            if client.recent.len() == RECENT {
                client.recent.pop_front();
            }
            client.recent.push_back(what);
        });
    }

    /// The properties of the client that the order of the queue depends on.
    pub(crate) fn standing(&self, index: ClientIndex, now: Moment) -> ClientStanding {
        let client = &self.all[index.get()];
        ClientStanding { service: client.service / self.service_step, held_back: client.held_back(now).is_some() }
    }

    /// The client's service beyond that of the least-served active client.
    pub(crate) fn ahead(&self, index: ClientIndex) -> u64 {
        self.all[index.get()].service.saturating_sub(self.floor)
    }

    pub(crate) fn get(&self, index: ClientIndex) -> &ClientAccount {
        &self.all[index.get()]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClientIndex, &ClientAccount)> {
        self.all.iter().enumerate().map(|(number, client)| (ClientIndex::new(number), client))
    }

    /// Changes a client and updates the two sets.
    fn change(&mut self, index: ClientIndex, now: Moment, how: impl FnOnce(&mut ClientAccount)) {
        let client = &mut self.all[index.get()];
        let (was_active, service, seen) = (client.is_active(), client.service, client.seen);
        how(client);
        client.seen = now;
        if !was_active && client.is_active() {
            client.service = client.service.max(self.floor);
        }
        let after = (client.is_active(), client.service);
        if was_active && after == (true, service) {
            // The client's position in the sets did not change.
            return;
        }
        if was_active {
            self.active.remove(&(service, index));
        } else {
            self.resting.remove(&(seen, index));
        }
        if after.0 {
            self.active.insert((after.1, index));
        } else {
            self.resting.insert((now, index));
        }
        let least = self.active.first().map_or(after.1, |&(service, _)| service);
        self.floor = self.floor.max(least);
    }
}

impl ClientAccount {
    fn new(principal: Principal, rule: ClientRule, now: Moment) -> Self {
        Self {
            principal,
            allowance: f64::from(rule.rate_per_minute.unwrap_or(0)),
            rule,
            service: 0,
            waiting: 0,
            running: 0,
            seen: now,
            last_end: None,
            rate: 0.0,
            rated_at: now,
            requests: 0,
            refused: 0,
            tokens: 0,
            models: ModelCounts::default(),
            recent: VecDeque::new(),
        }
    }

    fn is_active(&self) -> bool {
        self.waiting > 0 || self.running > 0
    }

    /// The limit for which the client may start no request now.
    pub(crate) fn held_back(&self, now: Moment) -> Option<HeldBack> {
        if let Some(limit) = self.rule.max_concurrent
            && self.running >= limit.max(1)
        {
            return Some(HeldBack::Concurrency { running: self.running, limit: limit.max(1) });
        }
        let until = self.last_end? + self.rule.cooldown;
        (until > now).then_some(HeldBack::Cooldown { until })
    }

    /// Requests per minute, averaged over approximately the last minute.
    pub(crate) fn requests_per_minute(&self, now: Moment) -> f64 {
        self.rate * faded(now.since(self.rated_at))
    }

    fn note_arrival(&mut self, now: Moment) {
        let span = now.since(self.rated_at);
        if let Some(per_minute) = self.rule.rate_per_minute {
            let most = f64::from(per_minute);
            self.allowance = (self.allowance + most * span.as_secs_f64() / 60.0).min(most);
        }
        self.rate = self.rate * faded(span) + 1.0;
        self.rated_at = now;
    }
}

/// The share of a count over one minute that remains after `span`.
fn faded(span: Duration) -> f64 {
    (-span.as_secs_f64() / RATE_SPAN.as_secs_f64()).exp()
}

#[cfg(test)]
mod tests;
