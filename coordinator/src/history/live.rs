//! The ring with a clock, and the task that samples the state of the scheduler.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model_boss_core::Scheduler;
use model_boss_host::clocks::unix_time;
use model_boss_protocol::ByteCount;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::ring::{DeviceHoldings, HistoryRing, HistorySample, HolderKind, INTERVAL};
use super::views::HistoryAnswer;
use crate::scheduling::Scheduling;

/// The history of this process.
pub(crate) struct LiveHistory {
    ring: Mutex<HistoryRing>,
    started: Instant,
    /// The beginning, in seconds since 1970.
    began: f64,
}

impl LiveHistory {
    /// An empty history that begins now.
    pub(crate) fn start() -> Self {
        Self { ring: Mutex::default(), started: Instant::now(), began: unix_time() }
    }

    /// Adds an answer that ended now, and was generated for this time.
    pub(crate) fn answered(&self, generated_for: Duration, tokens: u64, first_token: Option<Duration>) {
        let now = self.started.elapsed();
        self.with(|ring| ring.answered(now.saturating_sub(generated_for), now, tokens, first_token));
    }

    /// Adds a load that succeeded now.
    pub(crate) fn loaded(&self) {
        self.with(|ring| ring.loaded(self.started.elapsed()));
    }

    /// Adds an eviction for another model.
    pub(crate) fn swapped(&self) {
        self.with(|ring| ring.swapped(self.started.elapsed()));
    }

    /// The last points, at most this many.
    pub(crate) fn last(&self, count: usize) -> HistoryAnswer {
        let now = self.started.elapsed();
        self.with(|ring| {
            let (first, points) = ring.last(now, count);
            HistoryAnswer::of(first, self.began + first as f64 * INTERVAL.as_secs_f64(), points)
        })
    }

    /// Samples the scheduler as long as the process runs.
    pub(crate) async fn follow(history: Arc<Self>, scheduling: Scheduling) {
        let mut ticks = interval(INTERVAL / 2);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let Some(sample) = scheduling.view(|scheduler, _| sample(scheduler)).await else { return };
            history.with(|ring| ring.sampled(history.started.elapsed(), sample));
        }
    }

    fn with<T>(&self, what: impl FnOnce(&mut HistoryRing) -> T) -> T {
        what(&mut self.ring.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn sample(scheduler: &Scheduler) -> HistorySample {
    let slots = scheduler.slots();
    let devices = scheduler.devices().into_iter().map(|device| {
        let models = slots.iter().flat_map(|slot| {
            let here = slot.parts.iter().filter(|(part, _)| *part == device.id);
            here.map(|(_, bytes)| (HolderKind::Model, slot.model.to_string(), *bytes))
        });
        // A request in the ledger has no lease yet, and holds nothing.
        let leases = device.leases.iter().filter(|lease| lease.lease.is_some());
        let leases = leases.map(|lease| (HolderKind::Lease, lease.label.clone(), lease.bytes));
        let others = [(HolderKind::Foreign, device.foreign.unwrap_or_default()), (HolderKind::Leaking, device.leaking)];
        let others = others.into_iter().map(|(kind, bytes): (_, ByteCount)| (kind, String::new(), bytes));
        let holders = models.chain(leases).chain(others).collect();
        DeviceHoldings { device: device.id.clone(), capacity: device.capacity, holders }
    });
    HistorySample { queued: scheduler.queued(), running: scheduler.running(), devices: devices.collect() }
}
