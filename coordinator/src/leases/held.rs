//! Leases of the coordinator's workers, in the state of the ledger's thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use model_boss_core::SlotKey;
use model_boss_lease_store::{LeaseHandle, Process};
use model_boss_protocol::{ByteCount, DeviceId, ModelId, Priority};

/// A lease of a worker.
pub(super) struct Held {
    pub(super) handle: LeaseHandle,
    pub(super) pid: Option<u32>,
    /// The state of the worker's load.
    pub(super) load: LoadKnown,
    /// The memory on its devices that no listed process explained when the worker passed the gate.
    pub(super) unexplained: Vec<(DeviceId, ByteCount)>,
    /// Devices whose list of processes may lack the worker.
    pub(super) doubts: BTreeMap<DeviceId, Doubt>,
    /// The worker's processes when its load was complete, and those that a device listed since. A process that has
    /// ended keeps its pid here as long as a device lists it.
    pub(super) family: Vec<Process>,
    /// The most memory that the worker will hold on each device, as it says itself.
    pub(super) may_hold: Vec<(DeviceId, ByteCount)>,
    /// The largest use that was reported to the scheduler.
    pub(super) reported: Vec<(DeviceId, ByteCount)>,
}

/// The state of a worker's load, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadKnown {
    /// The load is in progress.
    Runs,
    /// The load is complete.
    Complete,
    /// The load is complete, and the ledger has recorded that. The record matters only for drivers that do not tell
    /// processes apart.
    Stated,
}

/// A model's place in the ledger's queue.
pub(super) struct QueuePlace {
    pub(super) request_id: String,
    pub(super) ask: LeaseAsk,
    /// The time of the place's last renewal.
    pub(super) renewed: Instant,
}

/// The priority of each lease, and whether it is in use. The scheduler's task writes it, each heartbeat reads it.
#[derive(Clone, Default)]
pub(super) struct Ranks(pub(super) Arc<Mutex<Vec<(SlotKey, Priority, bool)>>>);

/// The memory that a model needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseAsk {
    pub(crate) model: ModelId,
    pub(crate) parts: Vec<(DeviceId, ByteCount)>,
    pub(crate) priority: Priority,
    /// Whether to revoke preemptible leases of lower priority.
    pub(crate) preempt: bool,
    /// Whether holders of higher priority may revoke the lease.
    pub(crate) yields: bool,
}

/// A list of processes that lacks a worker, although memory in use has grown. Either the worker ended a moment ago, or
/// the driver lists no processes at all. The next sample decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) since: Instant,
    /// The worker's processes that were alive after the list was made.
    pub(super) living: Vec<Process>,
}
