//! Requests that may be served in several places: which rung they go to, and on to the next when one cannot answer (TR-2).
//! And rungs elsewhere, which need no slot.

use std::ops::Bound;
use std::time::Duration;

use model_boss_protocol::{ApiError, Category, ErrorCode, ModelId, Priority, RequestId};

use super::room::{Ask, Offer};
use super::state::{Life, Reconsider, Running, Scheduler};
use crate::catalog::ModelIndex;
use crate::client::ClientIndex;
use crate::eviction::Usage;
use crate::ladder::{Climb, Ladder, Rung, RungChoice, RungState, Standing, Target, choose};
use crate::phase::ReadyPhase;
use crate::queue::{Head, Purpose, Residency, Waiting};
use crate::slot::SlotState;
use crate::{Effect, Moment, Outcome, Submission, Verdict};

/// Waiting requests whose rungs are looked at again at once; the others have their turn the next time.
const RUNGS_AT_ONCE: usize = 64;
/// What a load is thought to take before one was measured, beside a second for each GiB.
const LOAD_BEGINS: Duration = Duration::from_secs(1);
/// What an answer is thought to take before one was measured.
const ANSWER: Duration = Duration::from_secs(2);
/// A provider that says when to come again is believed up to this.
const LONGEST_REST: Duration = Duration::from_secs(3_600);

/// What a request needs from a rung.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    pub(super) category: Category,
    pub(super) priority: Priority,
    pub(super) deadline: Option<Moment>,
}

/// The rung chosen, where it leads, and what was known of all of them.
pub(super) struct Chosen<'a> {
    pub(super) index: usize,
    pub(super) choice: RungChoice,
    pub(super) states: Vec<(&'a Rung, RungState)>,
}

/// A request that no rung can answer.
pub(super) struct Stranded {
    pub(super) waiting: Waiting,
    /// What it is to be told.
    pub(super) error: ApiError,
}

fn stranded(waiting: Waiting, error: ApiError) -> Box<Stranded> {
    Box::new(Stranded { waiting, error })
}

impl Scheduler {
    /// Where a request goes that may go to several places, or elsewhere.
    pub(super) fn admit_to_ladder(
        &mut self,
        submission: &Submission,
        client: ClientIndex,
        priority: Priority,
    ) -> Result<(ModelIndex, Option<Box<Climb>>), ApiError> {
        let Submission { ladder, category, deadline, .. } = submission;
        let needs = Needs { category: *category, priority, deadline: *deadline };
        let (at, choice) = match self.choose_rung(ladder, needs, &[]) {
            Ok(Chosen { index, choice, .. }) => (index, choice),
            Err(error) => {
                // The next request may be in time.
                if error.code == ErrorCode::ColdStartExceedsBudget
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
        // Whatever kind of rung it is, this is the one door to the queue.
        self.admit_to_queue(model, priority)?;
        self.admit_client(client)?;
        if at > 0 {
            self.record_rung(submission.id, model, &climb);
        }
        Ok((model, Some(Box::new(climb))))
    }

    /// The best rung for a request that those in `failed` could not answer.
    pub(super) fn choose_rung<'a>(
        &self,
        ladder: &'a Ladder,
        needs: Needs,
        failed: &[(usize, ApiError)],
    ) -> Result<Chosen<'a>, ApiError> {
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

    /// What is known of a rung now.
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
            return Err(unusable(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("model")));
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
            self.check_budget(model, deadline).map_err(unusable)?;
        }
        let standing = self.standing(model, needs.priority).map_err(unusable)?;
        let Some(until) = known.failures.waits_until(self.now) else { return Ok(RungState::Usable(standing)) };
        let wait = until.since(self.now);
        let why = known.failures.text().unwrap_or("its worker went away");
        let message = format!("model '{}' failed and is tried again: {why}", known.id());
        Ok(RungState::Resting { wait: wait.saturating_add(standing.expected()), why: message })
    }

    /// How a model stands for one more request of this priority.
    fn standing(&self, model: ModelIndex, priority: Priority) -> Result<Standing, ApiError> {
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

    fn standing_cold(&self, model: ModelIndex, priority: Priority) -> Result<Standing, ApiError> {
        let load = self.load_of(model);
        let head = Head::imagined(RequestId(u64::MAX), priority, self.now);
        let ask = Ask { heads: vec![head], ..self.ask_of(model) };
        Ok(match self.offer(&ask) {
            Ok(Offer::Now(_)) => Standing::Cold { load },
            Ok(Offer::Coming) => Standing::Evicting { load, idle: 0, busy: 0 },
            Ok(Offer::After(plan)) => {
                let busy = plan.victims.iter().filter(|victim| victim.usage == Usage::Busy).count();
                Standing::Evicting { load, idle: plan.victims.len() - busy, busy }
            }
            Ok(Offer::No(_)) => Standing::NoRoom { load },
            Err(error) => match error.refusal(self.catalog[model].id()) {
                Some(refusal) => return Err(refusal),
                None => Standing::NoRoom { load },
            },
        })
    }

    /// How long the requests before a new one will take.
    fn turns(&self, model: ModelIndex, running: usize) -> Duration {
        let known = &self.catalog[model];
        let places = known.max_concurrent();
        let before = (running + self.queue.len_of(model) + 1).saturating_sub(places);
        let mean = Some(known.history.mean_answer()).filter(|mean| !mean.is_zero()).unwrap_or(ANSWER);
        mean.mul_f64(before as f64 / places as f64)
    }

    /// How long a load takes: measured, else guessed by size.
    fn load_of(&self, model: ModelIndex) -> Duration {
        let known = &self.catalog[model];
        let gibs = known.description.size.bytes.0 as f64 / f64::from(1 << 30);
        known.history.expected_load().unwrap_or_else(|| LOAD_BEGINS.saturating_add(Duration::from_secs_f64(gibs)))
    }

    /// The catalog's entry for what a rung leads to.
    fn entry_of(&mut self, target: &Target) -> Result<ModelIndex, ApiError> {
        match target {
            Target::Local(name) => self.catalog.resolve(name.as_str()).ok_or_else(|| self.not_found(name.as_str())),
            Target::Cloud { provider, .. } => {
                let entry = self.catalog.provider(provider);
                self.queue.set_provider(entry);
                Ok(entry)
            }
        }
    }

    /// Takes a request whose rung cannot answer to the best of its other rungs; gives it back, with what it is to be told,
    /// when there is none.
    pub(super) fn climb_on(&mut self, mut waiting: Waiting, error: ApiError) -> Result<(), Box<Stranded>> {
        if waiting.purpose != Purpose::Inference || self.life != Life::Serving {
            return Err(stranded(waiting, error));
        }
        let Some(mut climb) = waiting.climb.take() else { return Err(stranded(waiting, error)) };
        let at = climb.at;
        climb.failed.push((at, error.clone()));
        if climb.failed.len() > climb.ladder.rest.len() {
            // Nothing is left. The last error stands for itself where there was only one.
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

    /// A rung failed that may work again: those go on at once who have another that works now, the others wait for it.
    pub(super) fn climb_where_possible(&mut self, model: ModelIndex, error: &ApiError) {
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

    /// Requests whose model's load has not begun go to a rung that is loaded, or being loaded, by now. They keep their
    /// places; what is loaded is not left again, so nothing goes back and forth.
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
            if self.queue.residency(waiting.model) != Residency::Absent {
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

    /// Puts a request that waits no more onto another rung, at the place of its arrival.
    fn stand_on(&mut self, mut waiting: Waiting, index: usize, choice: RungChoice) -> Result<(), Box<Stranded>> {
        let Some(mut climb) = waiting.climb.take() else {
            let error = ApiError::new(ErrorCode::Internal, "a request without a ladder was to change its rung");
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

    /// What a request was sent to cannot answer it, and nothing was sent on.
    pub(super) fn rung_failed(&mut self, request: RequestId, error: ApiError) {
        let Some(run) = self.running.remove(&request) else { return };
        self.client_ended(&run, Outcome::LostBeforeAnswer, None);
        let (model, client) = (run.request.model, run.request.client);
        let slot = run.place.and_then(|(slot, generation)| {
            let slot = self.pool.current(slot, generation)?;
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

    /// A provider gave no answer: why, and for how long it is left alone, is remembered.
    fn provider_failed(&mut self, provider: ModelIndex, request: RequestId, error: &ApiError) {
        let mut reasons = vec![error.message.clone()];
        // Limits of ours are for one request or one client: others may ask the provider all the same.
        let is_ours = matches!(error.code, ErrorCode::ClientLimit | ErrorCode::Overloaded);
        if let Some(wait) = error.retry_after.filter(|_| !is_ours) {
            let wait = wait.min(LONGEST_REST);
            let rest = crate::catalog::Rest { until: self.now + wait, error: error.clone() };
            self.catalog[provider].rest = Some(rest);
            reasons.push(format!("it is asked nothing for {:.0} s", wait.as_secs_f64()));
        }
        self.decisions.record(self.now, Verdict::Refuse, self.catalog[provider].id(), Some(request), reasons);
    }

    /// Sends out what waits for a provider, as far as its clients may.
    pub(super) fn pump_cloud(&mut self, entry: ModelIndex) {
        loop {
            self.queue.refresh(entry, self.now);
            let next = self.queue.best(entry, self.now).and_then(|head| self.dequeue(head.id));
            let Some(request) = next else { return };
            let Some(Target::Cloud { provider, model }) = request.climb.as_ref().map(|climb| climb.target().clone())
            else {
                let error = ApiError::new(ErrorCode::Internal, "a request without a rung waits for a provider");
                self.refuse(request.id, error);
                continue;
            };
            let queued = self.now.since(request.arrival.at);
            let rung = rung_of(&request);
            self.out.push(Effect::DispatchCloud { request: request.id, provider, model, queued, rung });
            self.client_started(request.client);
            let running = Running { place: None, started: self.now, request };
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

/// Which rung a request stands on.
pub(super) fn rung_of(request: &Waiting) -> RungChoice {
    request.climb.as_ref().map_or(RungChoice::NONE, |climb| climb.choice.clone())
}

fn needs(waiting: &Waiting, climb: &Climb) -> Needs {
    Needs { category: climb.category, priority: waiting.priority, deadline: waiting.deadline }
}

fn unusable(error: ApiError) -> RungState {
    RungState::Unusable(error)
}
