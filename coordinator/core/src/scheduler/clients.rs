//! Limits per client: accounts and queue order are kept in step with what each client may start. New settings are
//! applied here too.

use std::time::Duration;

use model_boss_protocol::{Priority, RequestId};

use super::state::{Reconsider, RunningRequest, Scheduler, Timer};
use super::turn::queue_limits;
use crate::catalog::ModelIndex;
use crate::client::{ClientIndex, HeldBack, OverLimit, RecentRequest};
use crate::queue::Waiting;
use crate::refusal::{Refusal, RefusalReason};
use crate::view::{ClientView, RecentView};
use crate::{Moment, Principal, RequestOutcome, Settings, WaitReason};

impl Scheduler {
    /// The principal's account, and the priority of its request (RC-3). All orders pass through this function.
    pub(super) fn client_and_priority(
        &mut self,
        principal: &Principal,
        asked: Option<Priority>,
    ) -> (ClientIndex, Priority) {
        let index = self.clients.named(principal, self.now);
        let rule = &self.clients.get(index).rule;
        // `max` takes the less important of the two: the most important priority is the smallest.
        (index, asked.unwrap_or(rule.default_priority).max(rule.max_priority))
    }

    pub(super) fn admit_client(&mut self, client: ClientIndex) -> Result<(), Refusal> {
        let over = match self.clients.admit(client, self.now) {
            Ok(()) => return Ok(()),
            Err(over) => over,
        };
        let name = self.clients.get(client).principal.name();
        let (message, wait) = match over {
            OverLimit::Rate { per_minute, retry_after } => {
                (format!("client '{name}' may send {per_minute} requests a minute"), retry_after)
            }
            OverLimit::Queued { limit } => {
                (format!("{limit} requests of client '{name}' wait already, as many as may"), Duration::from_secs(1))
            }
        };
        let message = format!("{message}; the limit is set under [clients]");
        Err(Refusal::new(RefusalReason::ClientLimit, message).retry_after(wait))
    }

    /// Puts a request into the queue, ordered by its arrival.
    pub(super) fn enqueue(&mut self, request: Waiting) {
        let client = request.client;
        if request.climb.as_ref().is_some_and(|climb| climb.has_a_choice()) {
            self.climbing.insert(request.id);
        }
        self.queue.push(request);
        self.clients.waits(client, self.now);
        self.tell_the_queue(client);
    }

    /// Removes a request from the queue and returns it.
    pub(super) fn dequeue(&mut self, request: RequestId) -> Option<Waiting> {
        let waiting = self.queue.remove(request)?;
        if waiting.climb.is_some() {
            self.climbing.remove(&request);
        }
        self.clients.left(waiting.client, self.now);
        Some(waiting)
    }

    pub(super) fn client_started(&mut self, client: ClientIndex) {
        self.clients.started(client, self.now);
        self.tell_the_queue(client);
    }

    /// Records the outcome of a dispatched request in its client's account. [`Self::client_changed`] has to follow
    /// once its slot is free again.
    pub(super) fn client_ended(&mut self, run: &RunningRequest, outcome: RequestOutcome, tokens: Option<u64>) {
        let what = RecentRequest {
            request: run.request.id,
            model: self.catalog[run.request.model].id().clone(),
            index: run.request.model,
            ended: self.now,
            took: self.now.since(run.started),
            tokens,
            outcome,
        };
        self.clients.ended(run.request.client, self.now, what);
    }

    /// Dispatches the client's waiting requests that its limits held back before and allow now.
    pub(super) fn client_changed(&mut self, client: ClientIndex) {
        if self.tell_the_queue(client) {
            for model in self.queue.models_of(client) {
                self.pump(model);
            }
            self.reconsider_at_least(Reconsider::Kinds);
        }
    }

    /// Updates the queue with the client's limits. Returns whether the client was held back before and is not any
    /// more.
    fn tell_the_queue(&mut self, client: ClientIndex) -> bool {
        match self.clients.get(client).held_back(self.now) {
            Some(HeldBack::Cooldown { until }) => self.timers.set(Timer::Client(client), until),
            _ => self.timers.clear(Timer::Client(client)),
        }
        self.queue.set_standing(client, self.clients.standing(client, self.now))
    }

    /// Replaces the settings. Waiting requests and loaded models stay, and all are considered again.
    pub(super) fn reconfigure(&mut self, settings: Settings) {
        self.queue.reconfigure(queue_limits(&settings), settings.aging_step);
        self.clients.reconfigure(settings.clients.clone(), settings.service_step);
        self.decisions.keep(settings.decisions_kept);
        self.settings = settings;
        self.cores_changed = true;
        let clients: Vec<ClientIndex> = self.clients.iter().map(|(index, _)| index).collect();
        for client in clients {
            self.client_changed(client);
        }
        let models: Vec<ModelIndex> = self.catalog.iter().map(|(index, _)| index).collect();
        for model in models {
            // The new settings may have changed how long idle models stay loaded.
            self.pump(model);
        }
        self.reconsider_at_least(Reconsider::Kinds);
    }

    /// The limit for which a client may start no request now.
    pub(super) fn why_held_back(&self, client: ClientIndex, now: Moment) -> Option<WaitReason> {
        let known = self.clients.get(client);
        // Requests of the operator are never held back.
        let client = known.principal.client()?.clone();
        Some(match known.held_back(now)? {
            HeldBack::Concurrency { running, limit } => WaitReason::ClientLimit { client, running, limit },
            HeldBack::Cooldown { until } => WaitReason::Cooldown { client, retry_in: until.since(now) },
        })
    }

    /// All clients seen lately, by name.
    pub fn clients(&self, now: Moment) -> Vec<ClientView> {
        let mut views: Vec<ClientView> = self
            .clients
            .iter()
            .map(|(index, client)| ClientView {
                id: client.principal.clone(),
                kind: client.principal.kind(),
                queued: client.waiting,
                running: client.running,
                requests: client.requests,
                refused: client.refused,
                tokens: client.tokens,
                requests_per_minute: client.requests_per_minute(now),
                service_ahead: self.clients.ahead(index),
                held_back: self.why_held_back(index, now),
                last_seen: client.seen,
                models: client.models.iter().map(|(model, count)| (model.clone(), count)).collect(),
                recent: client
                    .recent
                    .iter()
                    .map(|recent| RecentView {
                        id: recent.request,
                        model: recent.model.clone(),
                        ended: recent.ended,
                        took: recent.took,
                        tokens: recent.tokens,
                        outcome: recent.outcome,
                    })
                    .collect(),
                rule: client.rule.clone(),
            })
            .collect();
        views.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        views
    }
}
