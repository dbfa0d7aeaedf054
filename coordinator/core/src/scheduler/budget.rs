//! Requests whose time is too short for a cold start are told at once, and the next one finds the model loaded (RC-13).

use model_boss_protocol::{ApiError, ErrorCode, Priority};

use super::room::{Ask, Offer};
use super::{Life, Scheduler};
use crate::Moment;
use crate::admission::Estimate;
use crate::catalog::ModelIndex;
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

    /// Begins a load that nobody waits for, where there is room.
    pub(super) fn load_for_nobody(&mut self, model: ModelIndex, priority: Priority, reason: String) {
        let idle = self.queue.residency(model) == Residency::Absent && !self.queue.anyone_wants_a_load();
        if !idle || self.life != Life::Serving || self.must_rest(model) || self.is_held_up(model) {
            return;
        }
        let ask = Ask { heads: Vec::new(), ..self.ask_of(model) };
        if let Ok(Offer::Now(parts)) = self.offer(&ask) {
            self.begin_load(&ask, parts, None, priority, reason);
        }
    }
}
