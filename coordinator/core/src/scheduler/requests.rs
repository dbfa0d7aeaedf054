//! The life of a request: admission, waiting, dispatch, end, and a retry when its worker died.

use std::time::Duration;

use model_boss_protocol::{Category, Priority, RequestId, SlotId};

use super::ladders::rung_of;
use super::state::{Life, Reconsider, RunningRequest, Scheduler, Timer};
use crate::catalog::ModelIndex;
use crate::client::ClientIndex;
use crate::ladder::{Climb, Target};
use crate::phase::ReadyPhase;
use crate::queue::{Purpose, QueueFull, Waiting};
use crate::reason::LeaveCause;
use crate::refusal::{Refusal, RefusalReason, Subject};
use crate::slot::SlotState;
use crate::{Effect, RequestOutcome, Submission, Verdict};

impl Scheduler {
    pub(super) fn submit(&mut self, submission: Submission) {
        if self.is_known(submission.id) {
            // A number in use twice is a fault of the shell; two answers to one request would be worse.
            return;
        }
        let (client, priority) = self.client_and_priority(&submission.client.clone().into(), submission.priority);
        match self.admit(&submission, client, priority) {
            Err(error) => self.refuse(submission.id, error),
            Ok((model, climb)) => {
                let arrival = self.queue.arrive(self.now);
                self.enqueue(Waiting {
                    id: submission.id,
                    model,
                    purpose: Purpose::Inference,
                    client,
                    priority,
                    arrival,
                    deadline: submission.deadline,
                    keep_alive: submission.keep_alive,
                    work: submission.work,
                    retries: 0,
                    climb,
                });
                self.arrived(model, submission.id);
            }
        }
    }

    pub(super) fn is_known(&self, request: RequestId) -> bool {
        self.queue.get(request).is_some()
            || self.running.contains_key(&request)
            || self.unloads.contains_key(&request)
            || self.is_moving_for(request)
    }

    fn admit(
        &mut self,
        submission: &Submission,
        client: ClientIndex,
        priority: Priority,
    ) -> Result<(ModelIndex, Option<Box<Climb>>), Refusal> {
        let Submission { ladder, deadline, work, .. } = submission;
        if self.life != Life::Serving {
            return Err(draining());
        }
        if deadline.is_some_and(|deadline| deadline <= self.now) {
            return Err(deadline_exceeded(Duration::ZERO));
        }
        let Target::Local(name) = &ladder.first.target else {
            return self.admit_to_ladder(submission, client, priority);
        };
        if !ladder.rest.is_empty() {
            return self.admit_to_ladder(submission, client, priority);
        }
        let model = self.admit_model(name.as_str())?;
        self.admit_category(model, submission.category)?;
        let known = &self.catalog[model];
        if let Some(error) = known.failures.refusal(known.id(), self.now, &self.settings) {
            return Err(error);
        }
        self.admit_to_queue(model, priority)?;
        self.admit_client(client)?;
        self.admit_by_budget(model, priority, (*deadline, *work))?;
        Ok((model, None))
    }

    /// Refuses a request whose route needs a category that the model does not have.
    pub(super) fn admit_category(&self, model: ModelIndex, needed: Category) -> Result<(), Refusal> {
        let description = &self.catalog[model].description;
        if description.category == needed {
            return Ok(());
        }
        let message = format!(
            "model '{}' is of category {} and cannot do what this route needs ({needed})",
            description.id, description.category
        );
        Err(Refusal::new(RefusalReason::WrongKind, message).about(Subject::Model))
    }

    /// The model of this name; refuses the request during shutdown.
    pub(super) fn admit_model(&self, name: &str) -> Result<ModelIndex, Refusal> {
        if self.life != Life::Serving {
            return Err(draining());
        }
        self.catalog.resolve(name).ok_or_else(|| self.not_found(name))
    }

    pub(super) fn admit_to_queue(&self, model: ModelIndex, priority: Priority) -> Result<(), Refusal> {
        let full = match self.queue.admit(model, priority) {
            Ok(()) => return Ok(()),
            Err(full) => full,
        };
        let message = match full {
            QueueFull::ForModel { limit } => {
                format!("{limit} requests wait for model '{}' already; try again later", self.catalog[model].id())
            }
            QueueFull::Elsewhere { limit } => format!("{limit} requests wait for providers already; try again later"),
            QueueFull::InAll { limit } => format!("{limit} requests wait already; try again later"),
        };
        // The hint is about the time in which an eighth of the requests before it are done.
        let turns = self.queue.len_of(model) / (8 * self.catalog[model].max_concurrent()) + 1;
        let wait = self.catalog[model].history.mean_answer().saturating_mul(u32::try_from(turns).unwrap_or(u32::MAX));
        let wait = wait.clamp(Duration::from_secs(1), Duration::from_secs(60));
        Err(Refusal::new(RefusalReason::QueueFull, message).retry_after(wait))
    }

    pub(super) fn not_found(&self, name: &str) -> Refusal {
        let close = self.catalog.close_names(name);
        let hint = if close.is_empty() {
            "GET /v1/models lists all".to_owned()
        } else {
            format!("did you mean {}?", close.iter().map(|n| format!("'{n}'")).collect::<Vec<_>>().join(" or "))
        };
        Refusal::new(RefusalReason::UnknownModel, format!("the model '{name}' was not found; {hint}"))
            .about(Subject::Model)
    }

    /// Acts on a request that was put into the queue.
    pub(super) fn arrived(&mut self, model: ModelIndex, request: RequestId) {
        if self.catalog[model].cloud {
            return self.pump_cloud(model);
        }
        let Some(slot) = self.catalog[model].serving else {
            // A request behind others of its model and importance does not change the order of models.
            if self.queue.is_head(request, self.now) && !self.queue.is_behind_its_like(request, self.now) {
                self.consider(model);
            }
            return;
        };
        match self.pool[slot].state {
            SlotState::Ready(ReadyPhase::Serving) => self.pump(model),
            SlotState::Ready(ReadyPhase::Draining) => self.keep_for(slot, request),
            _ => {}
        }
    }

    /// Keeps serving a slot that drains for a less important request than this one (RC-18).
    fn keep_for(&mut self, slot: SlotId, request: RequestId) {
        let arrived = self.queue.get(request).map(|waiting| waiting.priority);
        if let (Some(LeaveCause::Revoked { by, priority }), Some(arrived)) = (self.pool[slot].leaving.clone(), arrived)
        {
            if arrived < priority {
                let reason = format!("a request of priority {arrived} for it is more important than '{by}'");
                let kept = self.name_of(slot);
                self.decisions.record(self.now, Verdict::Keep, &kept, Some(request), vec![reason]);
                self.keep_revoked(slot);
            }
            return;
        }
        let Some(LeaveCause::Eviction { room_for }) = self.pool[slot].leaving.clone() else { return };
        let (Some(claimant), Some(priority)) =
            (self.catalog.resolve_any(&room_for), self.queue.get(request).map(|waiting| waiting.priority))
        else {
            return;
        };
        let standing = self.claim_of(claimant).map(|claim| claim.standing);
        if standing.is_some_and(|standing| priority < standing) {
            let reason = format!("a request of priority {priority} for it is more important than '{room_for}'");
            let kept = self.catalog[self.pool[slot].model].id().clone();
            self.decisions.record(self.now, Verdict::Keep, &kept, Some(request), vec![reason]);
            self.drop_claim(claimant);
            self.reconsider_at_least(Reconsider::Kinds);
        }
    }

    /// Dispatches as many requests to the model's slot as it accepts.
    pub(super) fn pump(&mut self, model: ModelIndex) {
        if self.catalog[model].cloud {
            return self.pump_cloud(model);
        }
        let Some(slot) = self.catalog[model].serving else { return };
        if self.pool[slot].state != SlotState::Ready(ReadyPhase::Serving) {
            return;
        }
        while let Some(request) = self.queue.first_load(model) {
            let Some(load) = self.take_waiting(request) else { break };
            self.pool[slot].last_used = self.now;
            self.pool[slot].keep_alive = load.keep_alive.or(self.pool[slot].keep_alive);
            self.out.push(Effect::Done { request });
        }
        if self.pool[slot].paused_until.is_none() {
            loop {
                self.queue.refresh(model, self.now);
                let Some(head) = self.queue.best(model, self.now) else { break };
                if !self.has_place(slot, model, head.base) {
                    break;
                }
                let Some(request) = self.dequeue(head.id) else { break };
                self.dispatch(slot, request);
            }
        }
        self.rest_if_idle(slot);
    }

    /// Whether a model's slot takes one more request. Bulk work takes no place of what is more important, where the
    /// worker has it wait.
    fn has_place(&self, slot: SlotId, model: ModelIndex, base: Priority) -> bool {
        let (known, running) = (&self.catalog[model], &self.pool[slot].running);
        let places = known.max_concurrent();
        if running.len() < places {
            return true;
        }
        let is_bulk = |priority: Priority| priority >= Priority::BATCH;
        let in_places = || running.iter().filter(|(priority, _)| !is_bulk(*priority)).count();
        known.description.bulk_waits && !is_bulk(base) && in_places() < places
    }

    fn dispatch(&mut self, slot_id: SlotId, request: Waiting) {
        let slot = &mut self.pool[slot_id];
        let arrived = request.arrival.at;
        let loading =
            if slot.ready_at > arrived { slot.ready_at.since(slot.load_started.max(arrived)) } else { Duration::ZERO };
        slot.running.insert((request.priority, request.id));
        self.cores_changed |= slot.cores.is_some();
        slot.last_used = self.now;
        slot.last_priority = request.priority;
        slot.unload_at = None;
        if slot.cause == Some(request.id) {
            slot.cause = None;
            self.reconsider_at_least(Reconsider::Kinds);
        }
        let slot = &mut self.pool[slot_id];
        self.timers.clear(Timer::Unload(slot_id));
        let key = slot.key();
        self.out.push(Effect::Dispatch {
            request: request.id,
            slot: key,
            priority: request.priority,
            queued: self.now.since(arrived),
            loading,
            rung: rung_of(&request),
        });
        self.client_started(request.client);
        let running = RunningRequest { place: Some(key), started: self.now, request };
        self.running.insert(running.request.id, running);
    }

    pub(super) fn finished(&mut self, request: RequestId, outcome: RequestOutcome, tokens: Option<u64>) {
        let Some(run) = self.running.remove(&request) else {
            // The report of an end is valid at every stage: the request may have been queued again, or never sent,
            // without the reporter's knowledge.
            if outcome != RequestOutcome::LostBeforeAnswer {
                self.withdraw(request);
            }
            return;
        };
        let model = run.request.model;
        let client = run.request.client;
        self.client_ended(&run, outcome, tokens);
        if outcome == RequestOutcome::Answered {
            self.catalog[model].failures.forget();
            self.catalog[model].history.answered_in(self.now.since(run.started), run.request.work);
        }
        if let Some(slot) = run.place.and_then(|key| self.pool.current(key)) {
            let rank = slot.rank(self.now, self.settings.aging_step);
            slot.running.remove(&(run.request.priority, request));
            self.cores_changed |= slot.cores.is_some();
            slot.last_used = self.now;
            slot.last_priority = run.request.priority;
            slot.keep_alive = run.request.keep_alive;
            match outcome {
                RequestOutcome::Answered => slot.completed += 1,
                RequestOutcome::ClientGone
                | RequestOutcome::Refused
                | RequestOutcome::DeadlineExceeded
                | RequestOutcome::Cancelled => {}
                RequestOutcome::LostBeforeAnswer | RequestOutcome::LostMidAnswer => {
                    // The worker's exit will be reported soon; no other request is dispatched to it until then.
                    let until = self.now + self.settings.lost_pause;
                    slot.paused_until = Some(until);
                    self.timers.set(Timer::Resume(slot.id), until);
                }
            }
            let slot = slot.id;
            self.client_changed(client);
            if outcome == RequestOutcome::LostBeforeAnswer {
                self.try_again(run);
            } else {
                self.after_use(slot, model);
            }
            let after = &self.pool[slot];
            let as_before = after.is_busy() && after.rank(self.now, self.settings.aging_step) == rank;
            self.look_who_may_take(slot, as_before);
        } else {
            self.client_changed(client);
            if outcome == RequestOutcome::LostBeforeAnswer {
                self.try_again(run);
            }
        }
    }

    pub(super) fn after_use(&mut self, slot: SlotId, model: ModelIndex) {
        match self.pool[slot].state {
            SlotState::Ready(ReadyPhase::Serving) => self.pump(model),
            _ => self.rest_if_idle(slot),
        }
    }

    /// A request whose worker died before the first byte of its answer is queued again at its old place, or refused
    /// with the reason.
    fn try_again(&mut self, run: RunningRequest) {
        let place = run.place;
        self.try_elsewhere_or_again(run.request);
        if let Some(key) = place
            && let Some(slot) = self.pool.current(key).map(|slot| slot.id)
        {
            let model = self.pool[slot].model;
            self.after_use(slot, model);
        }
    }

    fn try_elsewhere_or_again(&mut self, mut request: Waiting) {
        let (id, model) = (request.id, request.model);
        let waited = self.now.since(request.arrival.at);
        if request.deadline.is_some_and(|deadline| deadline <= self.now) {
            return self.refuse(id, deadline_exceeded(waited));
        }
        if request.climb.is_some() {
            let error = self.crashed(model, request.retries + 1);
            match self.climb_on(request, error) {
                Ok(()) => return,
                // Without another rung, the same one is tried again.
                Err(same) => request = same.waiting,
            }
        }
        if self.catalog[model].cloud || request.retries >= self.settings.max_retries {
            let error = self.crashed(model, request.retries + 1);
            self.refuse(id, error);
        } else if let Some(error) = self.cannot_try_again(model) {
            self.refuse(id, error);
        } else {
            request.retries += 1;
            self.enqueue(request);
            self.arrived(model, id);
        }
    }

    fn cannot_try_again(&self, model: ModelIndex) -> Option<Refusal> {
        let known = &self.catalog[model];
        if !known.listed {
            return Some(self.not_found(known.id().as_str()));
        }
        if self.life != Life::Serving && !self.is_serving(model) {
            return Some(draining());
        }
        known.failures.refusal(known.id(), self.now, &self.settings).map(|_| known.failures.error(known.id()))
    }

    fn crashed(&self, model: ModelIndex, times: u32) -> Refusal {
        let known = &self.catalog[model];
        let text = known.last_exit.as_deref().unwrap_or("the connection to it broke");
        let message = format!("the worker of model '{}' went away {times} times on this request: {text}", known.id());
        Refusal::new(RefusalReason::WorkerCrashed, message)
    }

    /// Withdraws a request or an order whose caller has disconnected.
    fn withdraw(&mut self, request: RequestId) {
        if self.take_waiting(request).is_none() {
            self.unloads.remove(&request);
            self.forget_caller(request);
        }
    }

    pub(super) fn expire_deadlines(&mut self) {
        while let Some(request) = self.queue.next_expired(self.now) {
            let Some(waiting) = self.take_waiting(request) else { break };
            let model = self.catalog[waiting.model].id().clone();
            let waited = self.now.since(waiting.arrival.at);
            let mut error = deadline_exceeded(waited);
            error.message = format!("{} (model '{model}')", error.message);
            self.refuse(request, error);
        }
    }

    /// Removes a request that will not be dispatched from the queue. A claim or a cause of a load that rests on this
    /// request alone ends too.
    pub(super) fn take_waiting(&mut self, request: RequestId) -> Option<Waiting> {
        let waiting = self.dequeue(request)?;
        let model = waiting.model;
        if self.claim_of(model).is_some_and(|claim| claim.asker == request) {
            self.drop_claim(model);
            self.reconsider_at_least(Reconsider::Kinds);
        }
        match self.catalog[model].serving {
            Some(slot) => {
                if self.pool[slot].cause == Some(request) {
                    self.pool[slot].cause = None;
                    self.reconsider_at_least(Reconsider::Kinds);
                }
                if self.queue.len_of(model) == 0 {
                    match self.pool[slot].state {
                        SlotState::Loading(_) => self.reconsider_at_least(Reconsider::Kinds),
                        // The last request was held back by its client's limits, so the slot waited for it idle.
                        SlotState::Ready(_) => self.rest_if_idle(slot),
                        _ => {}
                    }
                }
            }
            None => {
                if self.queue.len_of(model) == 0 {
                    self.timers.clear(Timer::Consider(model));
                }
            }
        }
        Some(waiting)
    }

    /// Refuses all requests that wait for this model and have no other rung.
    pub(super) fn refuse_all(&mut self, model: ModelIndex, error: &Refusal) {
        for request in self.queue.ids_of(model) {
            if let Some(waiting) = self.take_waiting(request)
                && let Err(stranded) = self.climb_on(waiting, error.clone())
            {
                self.refuse(stranded.waiting.id, stranded.error);
            }
        }
    }
}

pub(super) fn draining() -> Refusal {
    let message = "model-boss is shutting down and takes no new requests";
    Refusal::new(RefusalReason::Draining, message).retry_after(Duration::from_secs(5))
}

fn deadline_exceeded(waited: Duration) -> Refusal {
    let message = format!("the request's time was over after {:.1} s in the queue", waited.as_secs_f64());
    Refusal::new(RefusalReason::Deadline, message)
}
