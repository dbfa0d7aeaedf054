//! Admission by time (RC-13). A request whose deadline is too near for a cold start is refused at once, and its model
//! is loaded for the next one.

use model_boss_protocol::{DeviceId, Priority, SignedBytes};

use super::loading::LoadCause;
use super::room::{Ask, Offer};
use super::state::{Life, Scheduler};
use crate::Moment;
use crate::admission::Estimate;
use crate::catalog::ModelIndex;
use crate::device::ScheduledDevice;
use crate::need::Parts;
use crate::queue::LoadState;
use crate::refusal::{Refusal, RefusalReason};
use crate::slot::SlotState;

impl Scheduler {
    /// Refuses a request that cannot be answered by its deadline because its model has to be loaded first. Begins
    /// that load when no other model has to be evicted for it.
    pub(super) fn admit_by_budget(
        &mut self,
        model: ModelIndex,
        priority: Priority,
        (deadline, work): (Option<Moment>, Option<u64>),
    ) -> Result<(), Refusal> {
        let Some(deadline) = deadline else { return Ok(()) };
        let checked = self.check_budget(model, deadline, work);
        if checked.is_err() {
            self.load_ahead(model, priority);
        }
        checked
    }

    /// Refuses a deadline that cannot be met, by the measured times of loads and answers.
    pub(super) fn check_budget(&self, model: ModelIndex, deadline: Moment, work: Option<u64>) -> Result<(), Refusal> {
        let Some(estimate) = self.cold_start(model, work) else { return Ok(()) };
        let left = deadline.since(self.now);
        if estimate.total() <= left {
            return Ok(());
        }
        let answer = match estimate.answer {
            Some(answer) => format!(" and answers take {:.1} s", answer.as_secs_f64()),
            None => String::new(),
        };
        let message = format!(
            "model '{}' is not loaded: a load is expected to take {:.1} s{answer}, and the request has {:.1} s; raise \
             its budget, or try again when the model is loaded",
            self.catalog[model].id(),
            estimate.load.as_secs_f64(),
            left.as_secs_f64(),
        );
        Err(Refusal::new(RefusalReason::ColdStart, message).retry_after(estimate.load))
    }

    /// The estimated wait and duration of an answer of this work by this model; `None` when the model is loaded, or
    /// when no time was measured.
    pub(super) fn cold_start(&self, model: ModelIndex, work: Option<u64>) -> Option<Estimate> {
        let known = &self.catalog[model];
        let loading_for = match known.serving.map(|slot| &self.pool[slot]) {
            Some(slot) => match slot.state {
                SlotState::Loading(_) => Some(self.now.since(slot.load_started)),
                _ => return None,
            },
            None => None,
        };
        known.history.cold_start(loading_for, work)
    }

    /// Begins a load for later requests. Its slot may be evicted for any model that needs the memory (RC-11).
    pub(super) fn load_ahead(&mut self, model: ModelIndex, priority: Priority) {
        let reason = format!("a request of priority {priority} came too late for it, the next may be in time");
        self.load_for_nobody(model, priority, reason);
    }

    /// Begins a load that no request waits for, if the remaining room still suffices for the requests that wait.
    pub(super) fn load_for_nobody(&mut self, model: ModelIndex, priority: Priority, reason: String) {
        let absent = self.queue.residency(model) == LoadState::Absent && self.queue.len_of(model) == 0;
        if !absent || self.life != Life::Serving || self.must_rest(model) || self.is_held_up(model) {
            return;
        }
        let ask = Ask { heads: Vec::new(), ..self.ask_of(model) };
        if let Ok(Offer::Now(parts)) = self.offer(&ask)
            && self.leaves_enough(&parts)
        {
            self.begin_load(&ask, parts, LoadCause { request: None, priority, reason });
        }
    }

    /// Whether these parts leave enough room for all waiting requests that need a load and may use the same devices.
    fn leaves_enough(&self, parts: &Parts) -> bool {
        let may_go = |family: u32, device: &DeviceId| match self.families.iter().find(|(_, id)| **id == family) {
            Some((key, _)) if !key.alone_on.is_empty() => key.alone_on.contains(device),
            Some((key, _)) => key.device == DeviceId::Auto || key.device == *device,
            // The model was never examined, or its state was dropped.
            None => true,
        };
        parts.iter().all(|(device, bytes)| {
            let wanted: SignedBytes =
                self.queue.needs().filter(|(family, _)| may_go(*family, device)).map(|(_, bytes)| bytes).sum();
            let balance = self.devices.get(device).and_then(ScheduledDevice::balance).unwrap_or_default();
            wanted == SignedBytes::ZERO || balance - bytes.signed() >= wanted
        })
    }
}
