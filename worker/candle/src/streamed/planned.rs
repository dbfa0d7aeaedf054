//! Values of a plan of streamed layers that the load uses and reports.

use model_boss_engine::residency::plan::{MemoryNeeds, Rates, StreamPlan};
use model_boss_engine::residency::{Capabilities, ResidencySummary};

pub(super) fn everything(needs: &MemoryNeeds) -> StreamPlan {
    let resident_bytes = needs.layers.iter().sum();
    let (blocks, slots, look_ahead, slot_bytes) = (Vec::new(), 0, 0, 0);
    StreamPlan { blocks, slots, look_ahead, slot_bytes, resident_bytes, streamed_bytes: 0, step_seconds: None }
}

/// Blocks that stay in slots by the plan, so that they are read only once.
pub(super) fn kept(planned: &StreamPlan) -> Vec<usize> {
    planned.kept(planned.look_ahead).into_iter().map(|block| block.0).collect()
}

pub(super) fn report(
    planned: &StreamPlan,
    rates: &Rates,
    layers: usize,
    store: String,
    capabilities: Capabilities,
) -> ResidencySummary {
    let streamed_layers = planned.blocks.iter().map(Vec::len).sum();
    ResidencySummary {
        resident_layers: layers - streamed_layers,
        streamed_layers,
        resident_bytes: planned.resident_bytes,
        streamed_bytes: planned.streamed_bytes,
        rearranged_bytes: 0,
        blocks: planned.blocks.len(),
        slots: planned.slots,
        look_ahead: planned.look_ahead,
        slot_bytes: planned.slot_bytes,
        store,
        store_bytes_per_second: rates.read,
        predicted_step_seconds: planned.step_seconds.unwrap_or(0.0),
        capabilities,
        experts: None,
    }
}
