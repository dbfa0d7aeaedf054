//! The figures of streamed layers in a worker's health.

use model_boss_engine::residency::Monitor;
use model_boss_protocol::StreamStats;

/// A monitor's figures, in the words that the coordinator shows (RS-9).
pub(crate) fn stream_stats(monitor: &Monitor) -> StreamStats {
    let (plan, totals) = (monitor.residency(), monitor.totals());
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    StreamStats {
        resident_layers: small(plan.resident_layers),
        streamed_layers: small(plan.streamed_layers),
        step_bytes: plan.streamed_bytes,
        slots: small(plan.slots),
        store: plan.store.clone(),
        store_bytes_per_second: plan.store_bytes_per_second,
        steps: totals.steps,
        bytes: totals.bytes,
        read_seconds: totals.read_seconds,
        place_seconds: totals.place_seconds,
        compute_seconds: totals.compute_seconds,
        stall_seconds: totals.stall_seconds,
        wall_seconds: totals.wall_seconds,
        overlap: totals.overlap(),
        bytes_per_second: totals.bandwidth(),
    }
}
