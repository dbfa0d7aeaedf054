//! What streaming does, for those who watch it from other threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::super::timeline::{LayerReport, StepTimeline, StreamTotals};
use super::Capabilities;

/// How a model's layers live, as it was planned.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Residency {
    /// Layers that stay on the device.
    pub resident_layers: usize,
    /// Layers that come and go.
    pub streamed_layers: usize,
    /// Bytes of layers that stay.
    pub resident_bytes: u64,
    /// Bytes that come in each step.
    pub streamed_bytes: u64,
    /// Blocks they come in.
    pub blocks: usize,
    /// Blocks on the device at the same time.
    pub slots: usize,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// What reads them.
    pub store: String,
    /// Bytes per second that the store gave while the model was loaded.
    pub store_bytes_per_second: f64,
    /// Seconds that a step of one token was expected to take.
    pub predicted_step_seconds: f64,
    /// What the device can.
    pub capabilities: Capabilities,
}

/// Sums and the last step. Reading them does not wait for a step.
#[derive(Debug, Default)]
pub struct Monitor {
    residency: Residency,
    steps: Mutex<Steps>,
}

#[derive(Debug, Default)]
struct Steps {
    totals: StreamTotals,
    last: StepTimeline,
}

impl Monitor {
    /// Nothing done yet.
    pub fn new(residency: Residency) -> Self {
        Self { residency, steps: Mutex::default() }
    }

    /// What was planned.
    pub fn residency(&self) -> &Residency {
        &self.residency
    }

    /// Sums since the start.
    pub fn totals(&self) -> StreamTotals {
        self.lock().totals
    }

    /// The last step.
    pub fn last(&self) -> StepTimeline {
        self.lock().last.clone()
    }

    /// The last step, layer by layer.
    pub fn layers(&self) -> Vec<LayerReport> {
        self.lock().last.layers()
    }

    pub(super) fn stepped(&self, step: StepTimeline) {
        let mut steps = self.lock();
        steps.totals.add(&step.totals());
        steps.last = step;
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
