//! Reloads of streaming models with all layers resident, once these fit. A reload begins while the model is idle, so
//! that requests need not wait for it (RS-11).

use std::time::Duration;

use model_boss_protocol::{DeviceId, SignedBytes, SlotId};

use super::room::Ask;
use super::state::{LEAST_WAIT, Life, Scheduler, Timer};
use crate::catalog::{ModelIndex, Return};
use crate::need::Need;
use crate::phase::ReadyPhase;
use crate::placement::{self, PlacementCandidate, Site};
use crate::reason::LeaveCause;
use crate::slot::SlotState;
use crate::{Verdict, split};

impl Scheduler {
    /// Sets a timer for an idle slot that streams for lack of room. The slot is considered once it was idle for as
    /// long as room has to last. A pinned model is left as it is, because another could take the room during the
    /// reload.
    pub(super) fn hope_to_stay(&mut self, id: SlotId) {
        let slot = &self.pool[id];
        let may_leave = !self.catalog[slot.model].is_pinned();
        if slot.layers.for_want_of_room() && may_leave && self.life == Life::Serving {
            self.timers.set(Timer::Stay(id), slot.last_used + self.pause());
        }
    }

    /// Reloads an idle model if all its layers would fit by now; otherwise sets the timer again.
    pub(super) fn consider_staying(&mut self, id: SlotId) {
        let slot = &self.pool[id];
        let (model, idle_since) = (slot.model, slot.last_used);
        let serves = slot.state == SlotState::Ready(ReadyPhase::Serving) && self.catalog[model].serving == Some(id);
        if !serves || !slot.layers.for_want_of_room() || self.catalog[model].is_pinned() || self.life != Life::Serving {
            return;
        }
        // The timer is set again when the slot's requests have ended.
        if slot.is_busy() || self.queue.len_of(model) > 0 {
            return;
        }
        let rested = self.now.since(idle_since) >= self.pause();
        let quiet = self.is_ledger_open()
            && self.claims.is_empty()
            && self.second_try.is_none()
            && !self.moves.contains_key(&model)
            && !self.queue.anyone_wants_a_load();
        let Some(site) = (rested && quiet).then(|| self.where_all_stay(model)).flatten() else {
            let later = self.pause().max(self.settings.reevaluate_every);
            return self.timers.set(Timer::Stay(id), self.now + later);
        };
        let slot = &self.pool[id];
        let returns = Return { priority: slot.last_priority, keep_alive: slot.keep_alive };
        let names: Vec<String> = site.iter().map(ToString::to_string).collect();
        let cause = LeaveCause::RoomToStay;
        let reasons = vec![cause.to_string(), format!("on {}", names.join(" + "))];
        self.decisions.record(self.now, Verdict::Unload, self.catalog[model].id(), None, reasons);
        self.catalog[model].returns = Some(returns);
        self.stop_slot(id, cause);
    }

    /// Loads a model with all its layers, now that the memory of its streaming slot is free.
    pub(super) fn come_back(&mut self, model: ModelIndex) {
        let Some(Return { priority, keep_alive }) = self.catalog[model].returns.take() else { return };
        if !self.catalog[model].listed {
            return;
        }
        let reason = "its layers have room to stay".to_owned();
        self.load_for_nobody(model, priority, reason);
        if let Some(slot) = self.catalog[model].serving {
            self.pool[slot].keep_alive = keep_alive;
        }
    }

    /// The site where all layers of a model would fit, beside all other models as they are and the recent peak of
    /// other programs.
    fn where_all_stay(&self, model: ModelIndex) -> Option<Site> {
        let ask = Ask { heads: Vec::new(), ..self.ask_of(model) };
        let bytes = |site: &[DeviceId]| self.whole_at(&ask, site).bytes;
        let splittable = self.catalog[model].description.splittable;
        let wanted = PlacementCandidate { device: &ask.device, bytes: &bytes, splittable };
        let fits = |site: &Site| {
            let room = |name| self.sure_room(model, self.devices.get(name)?, name);
            let rooms: Option<Vec<SignedBytes>> = site.iter().map(room).collect();
            rooms.is_some_and(|rooms| split::holds(&Need::of(bytes(site)), &rooms))
        };
        placement::sites(&wanted, &self.devices).ok()?.into_iter().find(fits)
    }

    /// The time for which the model has to be idle, and room to be available.
    fn pause(&self) -> Duration {
        self.settings.peak_patience.max(LEAST_WAIT)
    }
}
