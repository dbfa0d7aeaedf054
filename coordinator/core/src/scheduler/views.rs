//! Views of the scheduler's state for the API and for operators. The functions here change no state.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use model_boss_protocol::RequestId;

use super::state::{RunningRequest, Scheduler};
use crate::catalog::{ModelIndex, ScheduledModel};
use crate::phase::ReadyPhase;
use crate::queue::{Purpose, Waiting};
use crate::slot::{ModelSlot, SlotState};
use crate::view::{DeviceView, ModelState, ModelStatus, ModelView, QueuedView, RequestPurpose, SlotView};
use crate::{Decision, LeaveCause, Moment, RunningView, WaitReason};

impl Scheduler {
    /// All models of the catalog, in the order in which they were first listed.
    pub fn models(&self) -> Vec<ModelView> {
        self.catalog
            .iter()
            .filter(|(_, model)| model.listed && !model.cloud)
            .map(|(index, model)| self.model_view(index, model))
            .collect()
    }

    /// The states of the same models. Unlike their views, states take no sizing.
    pub fn model_states(&self) -> Vec<ModelState> {
        let listed = self.catalog.iter().filter(|(_, model)| model.listed && !model.cloud);
        let state = |(index, model): (ModelIndex, &ScheduledModel)| ModelState {
            id: model.description.id.clone(),
            status: self.status_of(model),
            failure: model.failures.text().map(str::to_owned),
            queued: self.queue.len_of(index),
            running: model.serving.map_or(0, |slot| self.pool[slot].running.len()),
        };
        listed.map(state).collect()
    }

    /// The model of this name or alias.
    pub fn model(&self, name: &str) -> Option<ModelView> {
        let index = self.catalog.resolve(name)?;
        Some(self.model_view(index, &self.catalog[index]))
    }

    /// All slots that are not idle.
    pub fn slots(&self) -> Vec<SlotView> {
        self.pool.in_use().map(|slot| self.slot_view(slot)).collect()
    }

    /// The waiting requests at these places of the order of RC-4 at `now`; places count from zero. The call reads the
    /// keys of all requests: it is for operators' views, not for the path of a request.
    pub fn queue(&self, now: Moment, places: Range<usize>) -> Vec<QueuedView> {
        let mut of_models = BTreeMap::new();
        let first = places.start;
        let ordered = self.queue.in_order(now, places).into_iter().zip(first..);
        ordered
            .map(|((key, waiting), place)| {
                // Requests for one model have one reason, which takes long to find.
                let of_model = || of_models.entry(waiting.model).or_insert_with(|| self.wait_of(waiting.model)).clone();
                let wait = self.own_wait(waiting).unwrap_or_else(of_model);
                QueuedView {
                    id: waiting.id,
                    client: self.clients.get(waiting.client).principal.clone(),
                    kind: self.clients.get(waiting.client).principal.kind(),
                    model: self.catalog[waiting.model].id().clone(),
                    purpose: match waiting.purpose {
                        Purpose::Inference => RequestPurpose::Inference,
                        Purpose::Load => RequestPurpose::Load,
                    },
                    priority: waiting.priority,
                    effective_priority: key.effective,
                    position: place + 1,
                    waited: now.since(waiting.arrival.at),
                    retries: waiting.retries,
                    deadline: waiting.deadline,
                    message: wait.to_string(),
                    wait,
                }
            })
            .collect()
    }

    /// All dispatched requests in the order of their numbers.
    pub fn running_requests(&self, now: Moment) -> Vec<RunningView> {
        let view = |run: &RunningRequest| {
            let principal = &self.clients.get(run.request.client).principal;
            RunningView {
                id: run.request.id,
                client: principal.clone(),
                kind: principal.kind(),
                model: self.catalog[run.request.model].id().clone(),
                slot: run.place.map(|place| place.id),
                priority: run.request.priority,
                waited: run.started.since(run.request.arrival.at),
                ran: now.since(run.started),
            }
        };
        let mut running: Vec<RunningView> = self.running.values().map(view).collect();
        running.sort_unstable_by_key(|run| run.id);
        running
    }

    /// All devices that were observed.
    pub fn devices(&self) -> Vec<DeviceView> {
        let name = |model: ModelIndex| self.catalog[model].id().clone();
        self.devices
            .iter()
            .map(|(id, device)| DeviceView {
                id: id.clone(),
                capacity: device.observation.capacity,
                reserve: device.observation.reserve,
                foreign: device.observation.foreign,
                leased: device.leased(),
                leases: self.shares(std::slice::from_ref(id)),
                charged: device.charged(),
                free: device.free(),
                leaking: device.observation.leaking,
                models: device.slots.iter().map(|&slot| name(self.pool[slot].model)).collect(),
                loading: device.loading.map(|slot| name(self.pool[slot].model)),
                closed: device.closed,
                lost: device.lost.is_some(),
                retention: device.observation.retention,
                exclusive: device.observation.exclusive,
                making_room_for: self
                    .claims
                    .iter()
                    .find(|(_, claim)| claim.site.contains(id))
                    .map(|(&model, _)| name(model)),
            })
            .collect()
    }

    /// The last decisions, oldest first.
    pub fn decisions(&self) -> impl DoubleEndedIterator<Item = &Decision> + ExactSizeIterator {
        self.decisions.iter()
    }

    /// The reason why a request waits; `None` when it does not wait.
    pub fn why(&self, request: RequestId) -> Option<WaitReason> {
        let waiting = self.queue.get(request)?;
        Some(self.own_wait(waiting).unwrap_or_else(|| self.wait_of(waiting.model)))
    }

    /// The waiting requests by the word of their reason, and how long the oldest waits. The reason is worked out once
    /// for each model and not for each request, since views of a full queue would otherwise hold requests up.
    pub fn waits(&self, now: Moment) -> (BTreeMap<&'static str, usize>, Option<Duration>) {
        let (mut counts, mut of_model) = (BTreeMap::new(), HashMap::new());
        let mut oldest = None;
        for waiting in self.queue.all() {
            let word = match self.own_wait(waiting) {
                Some(reason) => reason.word(),
                None => *of_model.entry(waiting.model).or_insert_with(|| self.wait_of(waiting.model).word()),
            };
            *counts.entry(word).or_default() += 1;
            oldest = oldest.max(Some(now.since(waiting.arrival.at)));
        }
        (counts, oldest)
    }

    /// The number of waiting requests.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The number of requests that were dispatched and have not ended.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// The reason of a request's client, if that holds it back.
    fn own_wait(&self, waiting: &Waiting) -> Option<WaitReason> {
        let infers = waiting.purpose == Purpose::Inference;
        infers.then(|| self.why_held_back(waiting.client, self.now)).flatten()
    }

    /// The reason why requests for a model wait.
    fn wait_of(&self, index: ModelIndex) -> WaitReason {
        let known = &self.catalog[index];
        let model = known.id().clone();
        if let Some(slot) = known.serving.map(|slot| &self.pool[slot]) {
            return self.why_not_taken(slot);
        }
        if let Some(until) = known.failures.waits_until(self.now) {
            return WaitReason::BackingOff {
                model,
                failures: known.failures.in_a_row(),
                detail: known.failures.text().unwrap_or_default().to_owned(),
                retry_in: until.since(self.now),
            };
        }
        if let Some(refusal) = &known.lease_refusal {
            return WaitReason::LeaseRefused {
                detail: refusal.reason.clone(),
                retry_in: refusal.until.since(self.now),
            };
        }
        self.why_no_load(index)
    }

    /// The reason why a slot that serves a model, or will, does not accept its requests now.
    pub(super) fn why_not_taken(&self, slot: &ModelSlot) -> WaitReason {
        let known = &self.catalog[slot.model];
        let model = known.id().clone();
        match slot.state {
            SlotState::Loading(phase) => WaitReason::Loading { model, phase, progress: slot.progress },
            SlotState::Ready(ReadyPhase::Draining) => {
                WaitReason::Leaving { model, cause: slot.leaving.clone().unwrap_or(LeaveCause::Unload) }
            }
            _ if slot.paused_until.is_some() => WaitReason::WorkerLost { model },
            _ => WaitReason::Busy {
                model,
                running: slot.running.len(),
                max_concurrent: known.description.max_concurrent.max(1),
            },
        }
    }

    fn status_of(&self, known: &ScheduledModel) -> ModelStatus {
        match known.serving.map(|slot| self.pool[slot].state) {
            Some(SlotState::Ready(_)) => ModelStatus::Loaded,
            Some(SlotState::Loading(_)) => ModelStatus::Loading,
            _ if known.failures.in_a_row() > 0 => ModelStatus::Failed,
            _ => ModelStatus::Unloaded,
        }
    }

    fn model_view(&self, index: ModelIndex, known: &ScheduledModel) -> ModelView {
        let slot = known.serving.map(|slot| &self.pool[slot]);
        let status = self.status_of(known);
        let description = &known.description;
        let ask = self.ask_of(index);
        let (size, size_rule) =
            match slot.map(|slot| (slot.size_rule, slot.parts.iter().map(|&(_, bytes)| bytes).sum())) {
                Some((rule, bytes)) => (bytes, rule),
                None => {
                    let size = self.size_at(&ask, &self.first_site(&ask));
                    (size.need.total(), size.rule)
                }
            };
        ModelView {
            id: description.id.clone(),
            aliases: description.aliases.clone(),
            category: description.category,
            device: description.device.clone(),
            size,
            size_rule,
            pin: known.is_pinned(),
            status,
            progress: slot.filter(|_| status == ModelStatus::Loading).map(|slot| slot.progress),
            failure: known.failures.text().map(str::to_owned),
            slot: known.serving,
            context_length: slot.and_then(|slot| slot.context_length),
            queued: self.queue.len_of(index),
            running: slot.map_or(0, |slot| slot.running.len()),
        }
    }

    fn slot_view(&self, slot: &ModelSlot) -> SlotView {
        let known = &self.catalog[slot.model];
        let ready = matches!(slot.state, SlotState::Ready(_));
        SlotView {
            id: slot.id,
            generation: slot.generation,
            model: known.id().clone(),
            category: known.description.category,
            state: slot.state,
            progress: slot.progress,
            parts: slot.parts.clone(),
            pid: slot.pid,
            port: slot.port,
            context_length: slot.context_length,
            kv_cache_type: slot.layers.asked.kv_cache_type,
            size_rule: slot.size_rule,
            streamed: slot.layers.stream,
            moving: self.second_copy(slot.model) == Some(slot.id) && known.serving != Some(slot.id),
            cores: slot.cores,
            cpu_share: slot.cpu_share(),
            running: slot.running.len(),
            max_concurrent: known.max_concurrent(),
            completed: slot.completed,
            pinned: known.is_pinned(),
            revision: slot.revision,
            stale: slot.stale || slot.revision != known.description.revision,
            rank: slot.rank(self.now, self.settings.aging_step),
            last_used: slot.last_used,
            ready_at: ready.then_some(slot.ready_at),
            load_time: ready.then(|| slot.load_time()),
            unload_at: slot.unload_at,
            leaving: slot.leaving.clone(),
        }
    }
}
