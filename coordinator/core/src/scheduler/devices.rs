//! Devices that an operator closes to models and opens again (RC-30), and devices that disappear.

use std::collections::BTreeSet;

use model_boss_protocol::{DeviceId, RequestId, SlotId};

use super::state::Scheduler;
use crate::reason::LeaveCause;
use crate::refusal::{Refusal, RefusalReason, Subject};
use crate::slot::SlotState;
use crate::{DeviceObservation, Effect, Verdict};

impl Scheduler {
    pub(super) fn device_observed(&mut self, observation: DeviceObservation) {
        let (name, lost) = (observation.device.clone(), observation.lost);
        if self.devices.observe(observation, self.now, self.settings.peak_patience) {
            self.accounts_changed = true;
            self.memory_changed();
        }
        if lost {
            self.device_lost(&name);
        } else if let Some(device) = self.devices.get_mut(&name) {
            (device.lost, device.given_up) = (None, false);
        }
    }

    /// Handles a lost device: its slots stop, and their requests are moved to other devices or wait. A request without
    /// another device is refused once the device has been lost for too long.
    fn device_lost(&mut self, name: &DeviceId) {
        let (now, patience) = (self.now, self.settings.device_patience);
        let Some(device) = self.devices.get_mut(name) else { return };
        if let Some(since) = device.lost {
            if !device.given_up && now.since(since) >= patience {
                device.given_up = true;
                self.memory_changed();
            }
            return;
        }
        device.lost = Some(now);
        let slots: Vec<SlotId> = device.slots.iter().copied().collect();
        self.drop_claims_on(name);
        self.fail_moves_to(name, "the device is gone");
        for slot in slots {
            if matches!(self.pool[slot].state, SlotState::Loading(_) | SlotState::Ready(_)) {
                let model = self.name_of(slot);
                let reason = format!("{name} is gone: its driver does not list it any more");
                self.decisions.record(now, Verdict::Unload, &model, None, vec![reason]);
                // No request on a lost device can end well, so the slot stops without a drain.
                self.stop_slot(slot, LeaveCause::DeviceLost);
            }
        }
        self.memory_changed();
    }

    /// Closes a device to loads and evicts its models, pinned ones included. Busy models finish their requests first.
    pub(super) fn free_device(&mut self, request: RequestId, name: &DeviceId) {
        if self.is_known(request) {
            return;
        }
        let Some(device) = self.devices.get_mut(name) else {
            let error = self.no_such_device(name);
            return self.refuse(request, error);
        };
        device.closed = true;
        let slots: Vec<SlotId> = device.slots.iter().copied().collect();
        self.drop_claims_on(name);
        self.fail_moves_to(name, "the device was freed for something else");
        for &slot in &slots {
            if matches!(self.pool[slot].state, SlotState::Loading(_) | SlotState::Ready(_)) {
                let model = self.catalog[self.pool[slot].model].id().clone();
                let reason = format!("{name} was freed for something else");
                self.decisions.record(self.now, Verdict::Unload, &model, Some(request), vec![reason]);
                self.send_away(slot, LeaveCause::Freed);
            }
        }
        let left: BTreeSet<SlotId> =
            slots.into_iter().filter(|&slot| self.pool[slot].state != SlotState::Idle).collect();
        if left.is_empty() {
            self.out.push(Effect::Done { request });
        } else {
            self.unloads.insert(request, left);
        }
        self.memory_changed();
    }

    /// Opens a closed device to loads again.
    pub(super) fn open_device(&mut self, request: RequestId, name: &DeviceId) {
        if self.is_known(request) {
            return;
        }
        match self.devices.get_mut(name) {
            Some(device) => {
                device.closed = false;
                self.out.push(Effect::Done { request });
                self.memory_changed();
            }
            None => {
                let error = self.no_such_device(name);
                self.refuse(request, error);
            }
        }
    }

    pub(super) fn no_such_device(&self, name: &DeviceId) -> Refusal {
        let known: Vec<String> = self.devices.iter().map(|(name, _)| name.to_string()).collect();
        let message = format!("device '{name}' is not there; known devices: {}", known.join(", "));
        Refusal::new(RefusalReason::DeviceUnavailable, message).about(Subject::Device)
    }
}
