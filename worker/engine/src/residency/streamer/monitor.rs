//! A monitor of streaming, for readers on other threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::device::Capabilities;
use crate::residency::adapt::Change;
use crate::residency::expert_report::{ExpertSummary, ExpertTotals};
use crate::residency::timeline::{LayerReport, StepTimeline, StreamTotals};

/// The planned residency of a model's layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ResidencySummary {
    /// Layers that stay on the device.
    pub resident_layers: usize,
    /// Streamed layers.
    pub streamed_layers: usize,
    /// Bytes of layers that stay.
    pub resident_bytes: u64,
    /// Bytes streamed in each step, at the planned look-ahead.
    pub streamed_bytes: u64,
    /// The part of these bytes that has to be rearranged while it is placed; zero if the file has the order that
    /// products need.
    pub rearranged_bytes: u64,
    /// The number of blocks they are divided into.
    pub blocks: usize,
    /// Blocks on the device at the same time.
    pub slots: usize,
    /// Blocks fetched ahead of the one in use, as planned; slots beyond those and one hold blocks that stay for now.
    pub look_ahead: usize,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// The store that reads them.
    pub store: String,
    /// Bytes per second of the store while the model was loaded.
    pub store_bytes_per_second: f64,
    /// Seconds that a step of one token was expected to take.
    pub predicted_step_seconds: f64,
    /// The device's capabilities.
    pub capabilities: Capabilities,
    /// The memory of expert pages; none where whole layers are streamed.
    pub experts: Option<ExpertSummary>,
}

impl ResidencySummary {
    /// Adds what another device does at the same time.
    fn join(&mut self, other: &Self, first: bool) {
        self.resident_layers += other.resident_layers;
        self.streamed_layers += other.streamed_layers;
        self.resident_bytes += other.resident_bytes;
        self.streamed_bytes += other.streamed_bytes;
        self.rearranged_bytes += other.rearranged_bytes;
        self.look_ahead = self.look_ahead.max(other.look_ahead);
        self.blocks += other.blocks;
        self.slots += other.slots;
        self.slot_bytes = self.slot_bytes.max(other.slot_bytes);
        // Each was measured while the other rested, and they read the same files.
        self.store_bytes_per_second = self.store_bytes_per_second.max(other.store_bytes_per_second);
        // The layers of one device compute after those of the other.
        self.predicted_step_seconds += other.predicted_step_seconds;
        if let Some(other) = other.experts {
            let experts = self.experts.get_or_insert_default();
            experts.pages += other.pages;
            experts.bytes += other.bytes;
            experts.memory += other.memory;
        }
        if first {
            self.store.clone_from(&other.store);
            self.capabilities = other.capabilities;
        } else if self.store != other.store {
            self.store = format!("{}; {}", self.store, other.store);
        }
    }
}

/// Sums and the last step. Reading them does not wait for a step.
#[derive(Debug)]
pub struct Monitor {
    residency: ResidencySummary,
    steps: Mutex<Steps>,
    /// The monitors of devices that stream side by side; then they have all figures.
    parts: Vec<Arc<Monitor>>,
}

#[derive(Debug, Default)]
struct Steps {
    totals: StreamTotals,
    last: StepTimeline,
    adapted: Adapted,
    experts: ExpertTotals,
}

/// The changes that measured steps have led to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Adapted {
    /// Blocks fetched ahead of the one in use now.
    pub look_ahead: usize,
    /// Seconds that a step like the last ones is expected to take, by what was measured since the load.
    pub expected_step_seconds: f64,
    /// The number of changes of the look-ahead.
    pub changes: u64,
    /// The last change.
    pub last_change: Option<Change>,
}

impl Monitor {
    /// Counts at zero.
    pub fn new(residency: ResidencySummary) -> Self {
        let (look_ahead, expected_step_seconds) = (residency.look_ahead, residency.predicted_step_seconds);
        let adapted = Adapted { look_ahead, expected_step_seconds, ..Adapted::default() };
        Self { residency, steps: Mutex::new(Steps { adapted, ..Steps::default() }), parts: Vec::new() }
    }

    /// A monitor over several devices, each with a range of the layers, in their order. A step is one step on all of
    /// them.
    pub fn over(parts: Vec<Arc<Self>>) -> Self {
        let mut residency = ResidencySummary::default();
        for (at, part) in parts.iter().enumerate() {
            residency.join(part.residency(), at == 0);
        }
        Self { parts, ..Self::new(residency) }
    }

    /// The plan that was made at load.
    pub fn residency(&self) -> &ResidencySummary {
        &self.residency
    }

    /// Sums since the start.
    pub fn totals(&self) -> StreamTotals {
        let Some((first, others)) = self.parts.split_first() else { return self.lock().totals };
        let mut totals = first.totals();
        for other in others {
            totals.beside(&other.totals());
        }
        totals
    }

    /// The last step.
    pub fn last(&self) -> StepTimeline {
        let Some((first, others)) = self.parts.split_first() else { return self.lock().last.clone() };
        let mut last = first.last();
        for other in others {
            last.beside(other.last());
        }
        last
    }

    /// The changes that measured steps have led to since the load.
    pub fn adapted(&self) -> Adapted {
        let Some((first, others)) = self.parts.split_first() else { return self.lock().adapted.clone() };
        let mut adapted = first.adapted();
        for other in others.iter().map(|other| other.adapted()) {
            // The layers of one device compute after those of the other.
            adapted.expected_step_seconds += other.expected_step_seconds;
            adapted.changes += other.changes;
            adapted.look_ahead = adapted.look_ahead.max(other.look_ahead);
            adapted.last_change = other.last_change.or(adapted.last_change);
        }
        adapted
    }

    /// The counts of expert pages since the start; none where whole layers are streamed.
    pub fn experts(&self) -> Option<ExpertTotals> {
        self.residency.experts?;
        let mut totals = self.lock().experts;
        for counted in self.parts.iter().filter_map(|part| part.experts()) {
            totals.add(&counted);
        }
        Some(totals)
    }

    /// The last step, layer by layer.
    pub fn layers(&self) -> Vec<LayerReport> {
        self.last().layers()
    }

    pub(super) fn stepped(&self, step: StepTimeline) {
        let mut steps = self.lock();
        steps.totals.add(&step.totals());
        steps.last = step;
    }

    /// A step of expert pages has ended; `experts` are the counts since the start.
    pub(in crate::residency) fn served(&self, step: StepTimeline, experts: ExpertTotals) {
        self.stepped(step);
        self.lock().experts = experts;
    }

    pub(super) fn adapted_to(&self, expected_step_seconds: Option<f64>, change: Option<Change>) {
        let adapted = &mut self.lock().adapted;
        if let Some(seconds) = expected_step_seconds {
            adapted.expected_step_seconds = seconds;
        }
        if let Some(change) = change {
            adapted.look_ahead = change.to;
            adapted.changes += 1;
            adapted.last_change = Some(change);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::timeline::{Compute, Copy, TimeSpan};

    #[test]
    fn devices_side_by_side_are_one_report_in_which_time_passes_once() {
        let of = |layer: usize, store: &str| {
            let store_bytes_per_second = 1e9 + layer as f64;
            let store = store.to_owned();
            let residency = ResidencySummary {
                streamed_layers: 1,
                slots: 2,
                store,
                store_bytes_per_second,
                ..ResidencySummary::default()
            };
            let monitor = Arc::new(Monitor::new(residency));
            let span = TimeSpan { start: 0.0, end: 0.5 };
            let copy = Copy { layers: vec![layer], bytes: 100, read: span, place: TimeSpan::default() };
            let compute = Compute { layer, stall: TimeSpan::default(), compute: span };
            monitor.stepped(StepTimeline { copies: vec![copy], layers: vec![compute], wall: 2.0, gap: 0.0 });
            monitor
        };
        let both = Monitor::over(vec![of(0, "direct"), of(7, "memory")]);
        let plan = both.residency();
        assert_eq!((plan.streamed_layers, plan.slots, plan.store.as_str()), (2, 4, "direct; memory"));
        assert_eq!(plan.store_bytes_per_second, 1e9 + 7.0, "one disk gives no more to two");
        let totals = both.totals();
        assert_eq!((totals.steps, totals.bytes, totals.wall_seconds, totals.read_seconds), (1, 200, 2.0, 1.0));
        let layers: Vec<usize> = both.layers().iter().map(|layer| layer.layer).collect();
        assert_eq!((layers, both.last().copies.len()), (vec![0, 7], 2));
    }
}
