//! Requests whose time is too short for a cold start are told at once, and the next one finds the model loaded (RC-13).

use model_boss_protocol::{ApiError, DeviceId, ErrorCode, Priority};

use super::room::{Ask, Offer};
use super::state::{Life, Scheduler};
use crate::Moment;
use crate::admission::Estimate;
use crate::catalog::ModelIndex;
use crate::device::Device;
use crate::need::Parts;
use crate::queue::Residency;
use crate::slot::SlotState;

impl Scheduler {
    /// Refuses a request that cannot be answered by its deadline because its model has to be loaded first, and begins
    /// that load when nobody has to leave for it.
    pub(super) fn admit_by_budget(
        &mut self,
        model: ModelIndex,
        priority: Priority,
        deadline: Option<Moment>,
    ) -> Result<(), ApiError> {
        let Some(deadline) = deadline else { return Ok(()) };
        let checked = self.check_budget(model, deadline);
        if checked.is_err() {
            self.load_ahead(model, priority);
        }
        checked
    }

    /// Whether a request with this deadline can be answered in time, as far as anything was measured.
    pub(super) fn check_budget(&self, model: ModelIndex, deadline: Moment) -> Result<(), ApiError> {
        let Some(estimate) = self.cold_start(model) else { return Ok(()) };
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
        Err(ApiError::new(ErrorCode::ColdStartExceedsBudget, message).retry_after(estimate.load))
    }

    /// What a request for this model has to expect before and for its answer; `None` when it is loaded, or when nothing
    /// is known.
    pub(super) fn cold_start(&self, model: ModelIndex) -> Option<Estimate> {
        let known = &self.catalog[model];
        let loading_for = match known.serving.map(|slot| &self.pool[slot]) {
            Some(slot) => match slot.state {
                SlotState::Loading(_) => Some(self.now.since(slot.load_started)),
                _ => return None,
            },
            None => None,
        };
        known.history.cold_start(loading_for)
    }

    /// Begins a load for whoever comes next. It gives way to whoever wants the memory (RC-11).
    pub(super) fn load_ahead(&mut self, model: ModelIndex, priority: Priority) {
        let reason = format!("a request of priority {priority} came too late for it, the next may be in time");
        self.load_for_nobody(model, priority, reason);
    }

    /// Begins a load that nobody waits for, where there is room that nobody who waits needs.
    pub(super) fn load_for_nobody(&mut self, model: ModelIndex, priority: Priority, reason: String) {
        let absent = self.queue.residency(model) == Residency::Absent && self.queue.len_of(model) == 0;
        if !absent || self.life != Life::Serving || self.must_rest(model) || self.is_held_up(model) {
            return;
        }
        let ask = Ask { heads: Vec::new(), ..self.ask_of(model) };
        if let Ok(Offer::Now(parts)) = self.offer(&ask)
            && self.leaves_enough(&parts)
        {
            self.begin_load(&ask, parts, None, priority, reason);
        }
    }

    /// Whether beside these parts there is room for everybody who waits for a load and may go to the same devices.
    fn leaves_enough(&self, parts: &Parts) -> bool {
        let may_go = |family: u32, device: &DeviceId| match self.families.iter().find(|(_, id)| **id == family) {
            Some((key, _)) if !key.alone_on.is_empty() => key.alone_on.contains(device),
            Some((key, _)) => key.device == DeviceId::Auto || key.device == *device,
            // It was never looked at, or is not remembered.
            None => true,
        };
        parts.iter().all(|(device, bytes)| {
            let wanted: i128 =
                self.queue.needs().filter(|(family, _)| may_go(*family, device)).map(|(_, bytes)| bytes).sum();
            let balance = self.devices.get(device).and_then(Device::balance).unwrap_or(0);
            wanted == 0 || balance - i128::from(bytes.0) >= wanted
        })
    }
}
