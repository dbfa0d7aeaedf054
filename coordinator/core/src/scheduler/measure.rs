//! Measured memory use of workers: charged to devices, and learned for the next load (RC-20).

use model_boss_protocol::{ByteCount, DeviceId, SlotId};

use super::state::Scheduler;
use crate::device::ScheduledDevice;
use crate::slot::SlotState;
use crate::slot_key::SlotKey;
use crate::{Effect, Footprint, SizeRule, split};

/// Footprints are learned in whole steps, so that noise of a probe is not taken for a change.
const STEP: u64 = 16 << 20;

/// The factor between the memory of a load that ran out of memory and that of the next attempt.
const MORE_AFTER_OUT_OF_MEMORY: f64 = 1.25;

impl Scheduler {
    /// Charges the probe's figures for a worker that is ready.
    pub(super) fn measured(&mut self, key: SlotKey, seen: &[(DeviceId, ByteCount)]) {
        let id = key.id;
        let Some(slot) = self.pool.current(key) else { return };
        if !matches!(slot.state, SlotState::Ready(_)) {
            return;
        }
        let mut raised = Vec::new();
        for (device, charged) in &mut slot.parts {
            let used = seen.iter().filter(|(seen, _)| seen == device).map(|&(_, bytes)| bytes).sum::<ByteCount>();
            if used > *charged {
                raised.push((device.clone(), used - *charged));
                *charged = used;
            }
        }
        let all_seen = slot.parts.iter().all(|(device, _)| seen.iter().any(|(seen, _)| seen == device));
        let own = |device: &DeviceId| slot.parts.iter().any(|(own, _)| own == device);
        let used: ByteCount = seen.iter().filter(|(device, _)| own(device)).map(|&(_, bytes)| bytes).sum();
        for (device, more) in raised {
            self.devices.raise(&device, more);
            self.accounts_changed = true;
        }
        // A streamed model's use shows how much it was given, not how much it needs.
        if all_seen && used > ByteCount::ZERO && !self.pool[id].layers.stream {
            self.learn(id, used);
        }
    }

    /// Restores footprints that earlier runs of the process learned.
    pub(super) fn remember(&mut self, footprints: Vec<Footprint>) {
        for footprint in footprints {
            if let Some(model) = self.catalog.resolve_any(&footprint.model) {
                self.queue.doubt_likeness(model);
            }
            self.footprints.learn(footprint);
        }
        self.memory_changed();
    }

    /// Learns from a load that ran out of memory: it needs more memory than it had, and at most all of the device. A
    /// learned size that was too small is no reason to try with less than the model's files say. Returns whether the
    /// next load gets more. Manifest sizes and the sizes of streamed models stay as they are.
    pub(super) fn learn_from_out_of_memory(&mut self, id: SlotId) -> bool {
        let slot = &self.pool[id];
        if slot.size_rule == SizeRule::Manifest || slot.layers.stream {
            return false;
        }
        let had: ByteCount = slot.parts.iter().map(|&(_, bytes)| bytes).sum();
        let by_files = match slot.size_rule {
            SizeRule::Learned => self.catalog[slot.model].description.size.bytes,
            _ => ByteCount::ZERO,
        };
        // A new revision of the model has a load of its own.
        self.learn(id, had.scaled(MORE_AFTER_OUT_OF_MEMORY).max(by_files)).is_none_or(|next| next > had)
    }

    /// Learns a size, capped at its devices' memory, so that the next load is tried with all of it. Returns the
    /// learned size if the model's files are unchanged.
    fn learn(&mut self, id: SlotId, bytes: ByteCount) -> Option<ByteCount> {
        let slot = &self.pool[id];
        let known = &self.catalog[slot.model];
        if slot.revision != known.description.revision {
            return None;
        }
        let device = match &slot.parts[..] {
            [(only, _)] => only.clone(),
            _ => DeviceId::Auto,
        };
        let margin = if slot.parts.len() > 1 { split::MARGIN.clamped() } else { ByteCount::ZERO };
        let ceiling =
            |device: &DeviceId| self.devices.get(device).and_then(ScheduledDevice::ceiling).unwrap_or_default();
        let most: ByteCount = slot.parts.iter().map(|(device, _)| ceiling(device) - margin).sum();
        let bytes = ByteCount(bytes.0.div_ceil(STEP).saturating_mul(STEP)).min(most);
        let seen = Footprint {
            model: known.id().clone(),
            revision: slot.revision,
            context: slot.context,
            max_concurrent: known.description.max_concurrent,
            kv_cache_type: slot.layers.asked.kv_cache_type,
            device,
            bytes,
        };
        if let Some(news) = self.footprints.learn(seen) {
            self.out.push(Effect::Learned(news));
        }
        Some(bytes)
    }
}
