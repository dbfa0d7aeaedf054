//! Requests with several rungs: the choice of a rung, and the next rung when one cannot answer (TR-2). Rungs of cloud
//! providers are dispatched here too, since they need no slot.

use std::ops::Bound;
use std::time::Duration;

use model_boss_protocol::{Category, ModelId, Priority, RequestId};

use super::room::{Ask, Offer};
use super::state::{Life, Reconsider, RunningRequest, Scheduler};
use crate::catalog::ModelIndex;
use crate::client::ClientIndex;
use crate::eviction::SlotUse;
use crate::ladder::{Climb, Ladder, Rung, RungChoice, RungState, Standing, Target, choose};
use crate::phase::ReadyPhase;
use crate::queue::{Head, LoadState, Purpose, Waiting};
use crate::refusal::{Refusal, RefusalReason, Subject};
use crate::slot::SlotState;
use crate::{Effect, Moment, RequestOutcome, Submission, Verdict};

/// The number of waiting requests whose rungs are reconsidered in one event; the others follow in the next.
const RUNGS_AT_ONCE: usize = 64;
/// The fixed part of a load's estimated time before one was measured; a second for each GiB is added.
const LOAD_BEGINS: Duration = Duration::from_secs(1);
/// The estimated time of an answer before one was measured.
const ANSWER: Duration = Duration::from_secs(2);
/// The longest pause that a provider's `Retry-After` can impose.
const LONGEST_REST: Duration = Duration::from_secs(3_600);

/// Capabilities and limits that a request needs of a rung.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    pub(super) category: Category,
    pub(super) priority: Priority,
    pub(super) deadline: Option<Moment>,
    pub(super) work: Option<u64>,
}

/// The chosen rung, its target, and the state of all rungs at the choice.
pub(super) struct Chosen<'a> {
    pub(super) index: usize,
    pub(super) choice: RungChoice,
    pub(super) states: Vec<(&'a Rung, RungState)>,
}

/// A request that no rung can answer.
pub(super) struct Stranded {
    pub(super) waiting: Waiting,
    /// The error for the request's client.
    pub(super) error: Refusal,
}

fn stranded(waiting: Waiting, error: Refusal) -> Box<Stranded> {
    Box::new(Stranded { waiting, error })
}

impl Scheduler {
    /// Admits a request with several rungs, or with one at a cloud provider.
    pub(super) fn admit_to_ladder(
        &mut self,
        submission: &Submission,
        client: ClientIndex,
        priority: Priority,
    ) -> Result<(ModelIndex, Option<Box<Climb>>), Refusal> {
        let Submission { ladder, category, deadline, work, .. } = submission;
        let needs = Needs { category: *category, priority, deadline: *deadline, work: *work };
        let (at, choice) = match self.choose_rung(ladder, needs, &[]) {
            Ok(Chosen { index, choice, .. }) => (index, choice),
            Err(error) => {
                // A later request may have more time.
                if error.reason == RefusalReason::ColdStart
                    && let Target::Local(name) = &ladder.first.target
                    && let Some(model) = self.catalog.resolve(name.as_str())
                {
                    self.load_ahead(model, priority);
                }
                return Err(error);
            }
        };
        let climb = Climb { ladder: ladder.clone(), at, choice, category: *category, failed: Vec::new() };
        let model = self.entry_of(climb.target())?;
        // Requests to models and to providers have the same limits of the queue.
        self.admit_to_queue(model, priority)?;
        self.admit_client(client)?;
        if at > 0 {
            self.record_rung(submission.id, model, &climb);
        }
        Ok((model, Some(Box::new(climb))))
    }

    /// The best rung for a request, without the rungs in `failed`, which could not answer it.
    pub(super) fn choose_rung<'a>(
        &self,
        ladder: &'a Ladder,
        needs: Needs,
        failed: &[(usize, Refusal)],
    ) -> Result<Chosen<'a>, Refusal> {
        let state = |(index, rung): (usize, &'a Rung)| {
            let earlier = failed.iter().find(|(at, _)| *at == index);
            (
                rung,
                earlier.map_or_else(|| self.rung_state(rung, needs), |(_, error)| RungState::Unusable(error.clone())),
            )
        };
        let states: Vec<(&Rung, RungState)> = ladder.rungs().enumerate().map(state).collect();
        let (index, choice) = choose(&states, ladder)?;
        Ok(Chosen { index, choice, states })
    }

    /// The present state of a rung.
    fn rung_state(&self, rung: &Rung, needs: Needs) -> RungState {
        let checked = match &rung.target {
            Target::Local(name) => self.standing_of(name, needs),
            Target::Cloud { provider, .. } => self.standing_elsewhere(provider, &rung.target, needs),
        };
        checked.unwrap_or_else(|state| state)
    }

    fn standing_elsewhere(&self, provider: &str, target: &Target, needs: Needs) -> Result<RungState, RungState> {
        let category = needs.category;
        let gives_vectors = self.settings.embedding_providers.contains(provider);
        if category != Category::Llm && !(category == Category::Embedding && gives_vectors) {
            let known = if gives_vectors { "chats and embeddings" } else { "chats" };
            let message =
                format!("'{target}' cannot do what this route needs ({category}): its provider is asked for {known}");
            return Err(unusable(Refusal::new(RefusalReason::WrongKind, message).about(Subject::Model)));
        }
        if let Some(known) = self.catalog.known_provider(provider)
            && let Some(rest) = known.rest.as_ref().filter(|rest| rest.until > self.now)
        {
            let wait = rest.until.since(self.now);
            return Err(unusable(rest.error.clone().retry_after(wait)));
        }
        if let Some(entry) = self.catalog.provider_entry(provider) {
            self.admit_to_queue(entry, needs.priority).map_err(unusable)?;
        }
        Ok(RungState::Usable(Standing::Warm { wait: Duration::ZERO }))
    }

    fn standing_of(&self, name: &ModelId, needs: Needs) -> Result<RungState, RungState> {
        let model = self.catalog.resolve(name.as_str()).ok_or_else(|| unusable(self.not_found(name.as_str())))?;
        let known = &self.catalog[model];
        self.admit_category(model, needs.category).map_err(unusable)?;
        if let Some(error) = known.failures.refusal(known.id(), self.now, &self.settings) {
            return Err(unusable(error));
        }
        self.admit_to_queue(model, needs.priority).map_err(unusable)?;
        if let Some(deadline) = needs.deadline {
            self.check_budget(model, deadline, needs.work).map_err(unusable)?;
        }
        let standing = self.standing(model, needs.priority).map_err(unusable)?;
        let Some(until) = known.failures.waits_until(self.now) else { return Ok(RungState::Usable(standing)) };
        let wait = until.since(self.now);
        let why = known.failures.text().unwrap_or("its worker went away");
        let message = format!("model '{}' failed and is tried again: {why}", known.id());
        Ok(RungState::Resting { wait: wait.saturating_add(standing.expected()), why: message })
    }

    /// The state of a model with regard to one more request of this priority.
    fn standing(&self, model: ModelIndex, priority: Priority) -> Result<Standing, Refusal> {
        let known = &self.catalog[model];
        let slot = known.serving.map(|slot| &self.pool[slot]);
        match slot.map(|slot| (slot.state, slot)) {
            Some((SlotState::Ready(ReadyPhase::Serving), slot)) => {
                Ok(Standing::Warm { wait: self.turns(model, slot.running.len()) })
            }
            Some((SlotState::Loading(_), slot)) => {
                let left = self.load_of(model).saturating_sub(self.now.since(slot.load_started));
                Ok(Standing::Loading { wait: left.saturating_add(self.turns(model, 0)) })
            }
            _ => self.standing_cold(model, priority),
        }
    }

    fn standing_cold(&self, model: ModelIndex, priority: Priority) -> Result<Standing, Refusal> {
        let load = self.load_of(model);
        let head = Head::imagined(RequestId(u64::MAX), priority, self.now);
        let ask = Ask { heads: vec![head], ..self.ask_of(model) };
        Ok(match self.offer(&ask) {
            Ok(Offer::Now(_)) => Standing::Cold { load },
            Ok(Offer::Coming) => Standing::Evicting { load, idle: 0, busy: 0 },
            Ok(Offer::After(plan)) => {
                let busy = plan.victims.iter().filter(|victim| victim.usage == SlotUse::Busy).count();
                Standing::Evicting { load, idle: plan.victims.len() - busy, busy }
            }
            Ok(Offer::No(_)) => Standing::NoRoom { load },
            Err(error) => match error.refusal(self.catalog[model].id()) {
                Some(refusal) => return Err(refusal),
                None => Standing::NoRoom { load },
            },
        })
    }

    /// The estimated time for the requests before a new one.
    fn turns(&self, model: ModelIndex, running: usize) -> Duration {
        let known = &self.catalog[model];
        let places = known.max_concurrent();
        let before = (running + self.queue.len_of(model) + 1).saturating_sub(places);
        let mean = Some(known.history.mean_answer()).filter(|mean| !mean.is_zero()).unwrap_or(ANSWER);
        mean.mul_f64(before as f64 / places as f64)
    }

    /// The time that a load takes: measured, else estimated by size.
    fn load_of(&self, model: ModelIndex) -> Duration {
        let known = &self.catalog[model];
        let gibs = known.description.size.bytes.0 as f64 / f64::from(1 << 30);
        known.history.expected_load().unwrap_or_else(|| LOAD_BEGINS.saturating_add(Duration::from_secs_f64(gibs)))
    }

    /// The catalog's entry for a rung's target.
    fn entry_of(&mut self, target: &Target) -> Result<ModelIndex, Refusal> {
        match target {
            Target::Local(name) => self.catalog.resolve(name.as_str()).ok_or_else(|| self.not_found(name.as_str())),
            Target::Cloud { provider, .. } => {
                let entry = self.catalog.provider(provider);
                self.queue.set_provider(entry);
                Ok(entry)
            }
        }
    }

    /// Moves a request whose rung cannot answer to the best of its other rungs. If there is none, returns the request
    /// with the error for its client.
    pub(super) fn climb_on(&mut self, mut waiting: Waiting, error: Refusal) -> Result<(), Box<Stranded>> {
        if waiting.purpose != Purpose::Inference || self.life != Life::Serving {
            return Err(stranded(waiting, error));
        }
        let Some(mut climb) = waiting.climb.take() else { return Err(stranded(waiting, error)) };
        let at = climb.at;
        climb.failed.push((at, error.clone()));
        if climb.failed.len() > climb.ladder.rest.len() {
            // No rung is left. A ladder of one rung answers with that rung's own error.
            let only = climb.ladder.rest.is_empty();
            let all = self.choose_rung(&climb.ladder, needs(&waiting, &climb), &climb.failed).err();
            waiting.climb = Some(climb);
            return Err(stranded(waiting, all.filter(|_| !only).unwrap_or(error)));
        }
        let chosen = self.choose_rung(&climb.ladder, needs(&waiting, &climb), &climb.failed);
        let (index, choice) = match chosen {
            Ok(Chosen { index, choice, .. }) => (index, choice),
            Err(all) => {
                waiting.climb = Some(climb);
                return Err(stranded(waiting, all));
            }
        };
        waiting.climb = Some(climb);
        self.stand_on(waiting, index, choice)
    }

    /// Handles a rung that failed but may recover: requests with another usable rung move to it at once, the others
    /// wait.
    pub(super) fn climb_where_possible(&mut self, model: ModelIndex, error: &Refusal) {
        for request in self.queue.ids_of(model) {
            let works = self.queue.get(request).is_some_and(|waiting| {
                let Some(climb) = &waiting.climb else { return false };
                let mut failed = climb.failed.clone();
                failed.push((climb.at, error.clone()));
                let chosen = self.choose_rung(&climb.ladder, needs(waiting, climb), &failed);
                chosen.is_ok_and(|chosen| matches!(chosen.states[chosen.index].1, RungState::Usable(_)))
            });
            if works
                && let Some(waiting) = self.take_waiting(request)
                && let Err(stranded) = self.climb_on(waiting, error.clone())
            {
                self.refuse(stranded.waiting.id, stranded.error);
            }
        }
    }

    /// Moves requests whose model's load has not begun to a rung that is loaded or loading by now. They keep their
    /// places in the queue. A request stays at a loaded rung, so it never moves back and forth.
    pub(super) fn reconsider_rungs(&mut self) {
        if self.life != Life::Serving {
            return;
        }
        let after = (Bound::Excluded(self.looked_at), Bound::Unbounded);
        let mut requests: Vec<RequestId> = self.climbing.range(after).take(RUNGS_AT_ONCE).copied().collect();
        if requests.len() < RUNGS_AT_ONCE {
            let missing = RUNGS_AT_ONCE - requests.len();
            requests.extend(self.climbing.range(..=self.looked_at).take(missing));
        }
        self.looked_at = requests.last().copied().unwrap_or(RequestId(0));
        for request in requests {
            let Some(waiting) = self.queue.get(request) else { continue };
            if self.queue.residency(waiting.model) != LoadState::Absent {
                continue;
            }
            let Some(climb) = &waiting.climb else { continue };
            let Ok(chosen) = self.choose_rung(&climb.ladder, needs(waiting, climb), &climb.failed) else { continue };
            let loaded = matches!(
                chosen.states[chosen.index].1,
                RungState::Usable(Standing::Warm { .. } | Standing::Loading { .. })
            );
            if loaded && chosen.index != climb.at {
                let (index, choice) = (chosen.index, chosen.choice);
                if let Some(waiting) = self.take_waiting(request)
                    && let Err(stranded) = self.stand_on(waiting, index, choice)
                {
                    self.refuse(stranded.waiting.id, stranded.error);
                }
            }
        }
    }

    /// Queues a request, which waits nowhere at present, for another rung at the place of its arrival.
    fn stand_on(&mut self, mut waiting: Waiting, index: usize, choice: RungChoice) -> Result<(), Box<Stranded>> {
        let Some(mut climb) = waiting.climb.take() else {
            let error = Refusal::new(RefusalReason::Internal, "a request without a ladder was to change its rung");
            return Err(stranded(waiting, error));
        };
        (climb.at, climb.choice) = (index, choice);
        let model = match self.entry_of(climb.target()) {
            Ok(model) => model,
            Err(error) => {
                waiting.climb = Some(climb);
                return Err(stranded(waiting, error));
            }
        };
        self.record_rung(waiting.id, model, &climb);
        let id = waiting.id;
        (waiting.model, waiting.climb) = (model, Some(climb));
        self.enqueue(waiting);
        self.arrived(model, id);
        Ok(())
    }

    /// The target of a dispatched request failed before any byte of the answer was sent to the client.
    pub(super) fn rung_failed(&mut self, request: RequestId, error: Refusal) {
        let Some(run) = self.running.remove(&request) else { return };
        self.client_ended(&run, RequestOutcome::LostBeforeAnswer, None);
        let (model, client) = (run.request.model, run.request.client);
        let slot = run.place.and_then(|key| {
            let slot = self.pool.current(key)?;
            slot.running.remove(&(run.request.priority, request));
            slot.last_used = self.now;
            Some(slot.id)
        });
        if self.catalog[model].cloud {
            self.provider_failed(model, request, &error);
        }
        self.client_changed(client);
        if let Err(stranded) = self.climb_on(run.request, error) {
            self.refuse(stranded.waiting.id, stranded.error);
        }
        if let Some(slot) = slot {
            self.after_use(slot, model);
        }
        self.reconsider_at_least(Reconsider::Kinds);
    }

    /// Remembers why a provider gave no answer, and until when it gets no requests.
    fn provider_failed(&mut self, provider: ModelIndex, request: RequestId, error: &Refusal) {
        let mut reasons = vec![error.message.clone()];
        let by_provider = matches!(error.reason, RefusalReason::RungFailed { by_provider: true, .. });
        if let Some(wait) = error.retry_after.filter(|_| by_provider) {
            let wait = wait.min(LONGEST_REST);
            let rest = crate::catalog::Rest { until: self.now + wait, error: error.clone() };
            self.catalog[provider].rest = Some(rest);
            reasons.push(format!("it is asked nothing for {:.0} s", wait.as_secs_f64()));
        }
        self.decisions.record(self.now, Verdict::Refuse, self.catalog[provider].id(), Some(request), reasons);
    }

    /// Dispatches the requests that wait for a provider, within their clients' limits.
    pub(super) fn pump_cloud(&mut self, entry: ModelIndex) {
        loop {
            self.queue.refresh(entry, self.now);
            let next = self.queue.best(entry, self.now).and_then(|head| self.dequeue(head.id));
            let Some(request) = next else { return };
            let Some(Target::Cloud { provider, model }) = request.climb.as_ref().map(|climb| climb.target().clone())
            else {
                let error = Refusal::new(RefusalReason::Internal, "a request without a rung waits for a provider");
                self.refuse(request.id, error);
                continue;
            };
            let queued = self.now.since(request.arrival.at);
            let rung = rung_of(&request);
            self.out.push(Effect::DispatchCloud { request: request.id, provider, model, queued, rung });
            self.client_started(request.client);
            let running = RunningRequest { place: None, started: self.now, request };
            self.running.insert(running.request.id, running);
        }
    }

    fn record_rung(&mut self, request: RequestId, model: ModelIndex, climb: &Climb) {
        let from = climb.failed.last().and_then(|(at, error)| Some((climb.ladder.rung(*at)?, error)));
        let mut reasons =
            vec![format!("rung {} ('{}'): {}", climb.choice.position, climb.target(), climb.choice.reason)];
        if let Some((rung, error)) = from {
            reasons.push(format!("rung {} ('{}') did not answer: {}", rung.position, rung.target, error.message));
        }
        self.decisions.record(self.now, Verdict::Rung, self.catalog[model].id(), Some(request), reasons);
    }
}

/// The rung that a request waits for.
pub(super) fn rung_of(request: &Waiting) -> RungChoice {
    request.climb.as_ref().map_or(RungChoice::NONE, |climb| climb.choice.clone())
}

fn needs(waiting: &Waiting, climb: &Climb) -> Needs {
    Needs { category: climb.category, priority: waiting.priority, deadline: waiting.deadline, work: waiting.work }
}

fn unusable(error: Refusal) -> RungState {
    RungState::Unusable(error)
}
