//! Idle models that are unloaded without a request for their memory: above their retention budget (BC-1, BC-2), and
//! when other programs need memory (RC-21).

use std::cmp::Reverse;

use model_boss_protocol::{ByteCount, DeviceId, SignedBytes, SlotId};

use super::state::Scheduler;
use crate::Verdict;
use crate::device::ScheduledDevice;
use crate::phase::ReadyPhase;
use crate::reason::LeaveCause;
use crate::slot::SlotState;

impl Scheduler {
    /// Checks all devices for memory pressure after their accounts changed.
    pub(super) fn relieve(&mut self) {
        // While the ledger is unreachable no load could replace an evicted model, so none is evicted.
        if !self.is_ledger_open() || !std::mem::take(&mut self.accounts_changed) {
            return;
        }
        let under_pressure = |device: &ScheduledDevice| {
            device.observation.retention.is_some() || device.balance().is_some_and(SignedBytes::is_negative)
        };
        let devices: Vec<DeviceId> =
            self.devices.iter().filter(|(_, device)| under_pressure(device)).map(|(name, _)| name.clone()).collect();
        for device in devices {
            self.keep_to_retention(&device);
            self.yield_to_foreign(&device);
        }
        self.yield_to_requests();
    }

    /// Evicts idle models above the retention budget, least recently used first. The model loaded last stays, unless
    /// the budget is zero.
    fn keep_to_retention(&mut self, name: &DeviceId) {
        let Some(device) = self.devices.get(name) else { return };
        let Some(budget) = device.observation.retention else { return };
        let ready = device.slots.iter().filter(|slot| self.pool[**slot].state == SlotState::Ready(ReadyPhase::Serving));
        let mut held: SignedBytes = ready.map(|&slot| self.bytes(slot, name)).sum();
        let newest = device.newest.filter(|_| budget > ByteCount::ZERO);
        let mut idle = self.idle_on(name);
        idle.retain(|slot| Some(*slot) != newest);
        idle.sort_by_key(|&slot| (self.pool[slot].last_used, slot));
        for slot in idle {
            if held <= budget.signed() {
                return;
            }
            let bytes = self.bytes(slot, name);
            let text = format!("models keep {} on {name} and may keep {budget}", held.clamped());
            held -= bytes;
            self.leave_idle(slot, LeaveCause::Retention, text);
        }
    }

    /// Evicts idle models, least important first, when other programs use memory that was promised to models.
    fn yield_to_foreign(&mut self, name: &DeviceId) {
        let Some(device) = self.devices.get(name) else { return };
        let Some(balance) = device.balance() else { return };
        let leaving = device.slots.iter().filter(|slot| self.is_leaving(**slot));
        let mut lacking = -balance - leaving.map(|&slot| self.bytes(slot, name)).sum::<SignedBytes>();
        if !lacking.is_positive() {
            return;
        }
        let foreign = device.observation.foreign.unwrap_or_default();
        let rank = |slot: SlotId| self.pool[slot].rank(self.now, self.settings.aging_step);
        let mut idle = self.idle_on(name);
        idle.sort_by_key(|&slot| (Reverse(rank(slot)), self.pool[slot].last_used, slot));
        for slot in idle {
            if !lacking.is_positive() {
                return;
            }
            let short = lacking.clamped();
            lacking -= self.bytes(slot, name);
            let text = format!("other programs use {foreign} on {name}, {short} of it promised to models");
            self.leave_idle(slot, LeaveCause::Foreign, text);
        }
    }

    /// Idle, unpinned slots with memory on this device whose models no request waits for.
    pub(super) fn idle_on(&self, name: &DeviceId) -> Vec<SlotId> {
        let Some(device) = self.devices.get(name) else { return Vec::new() };
        let is_idle = |id: &SlotId| {
            let slot = &self.pool[*id];
            slot.state == SlotState::Ready(ReadyPhase::Serving)
                && !slot.is_busy()
                && self.queue.len_of(slot.model) == 0
                && !self.catalog[slot.model].is_pinned()
                && self.bytes(*id, name).is_positive()
        };
        device.slots.iter().copied().filter(is_idle).collect()
    }

    fn leave_idle(&mut self, slot: SlotId, cause: LeaveCause, text: String) {
        let reasons = vec![cause.to_string(), text];
        self.decisions.record(self.now, Verdict::Unload, &self.name_of(slot), None, reasons);
        self.stop_slot(slot, cause);
    }
}
