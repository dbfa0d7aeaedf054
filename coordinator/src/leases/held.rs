//! Leases of workers, as the thread of the ledger keeps them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use model_boss_lease_store::{LeaseHandle, Process};
use model_boss_protocol::{ByteCount, DeviceId, Generation, ModelId, Priority, SlotId};

pub(super) type Filling = (SlotId, Generation);

/// A lease of ours.
pub(super) struct Held {
    pub(super) handle: LeaseHandle,
    pub(super) pid: Option<u32>,
    /// How far its load is known to be complete.
    pub(super) load: LoadKnown,
    /// What nobody listed accounted for on its devices when it was let through.
    pub(super) unexplained: Vec<(DeviceId, ByteCount)>,
    /// Devices whose list may lack it.
    pub(super) doubts: BTreeMap<DeviceId, Doubt>,
    /// Its processes when its load was complete, and those that a device showed since: one that is gone is still known by its
    /// number where a device shows it.
    pub(super) family: Vec<Process>,
    /// The most that the scheduler was told of its use.
    pub(super) told: Vec<(DeviceId, ByteCount)>,
}

/// How far it is known that a worker has loaded what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadKnown {
    /// It loads.
    Runs,
    /// It has loaded.
    Complete,
    /// The ledger was told, which matters only where the driver does not tell processes apart.
    Stated,
}

/// A model's place in the ledger's queue.
pub(super) struct Place {
    pub(super) request_id: String,
    pub(super) ask: Ask,
    /// When it was last asked for.
    pub(super) asked: Instant,
}

/// How important each lease is, and whether it is in use. Written by the scheduler's task, read at each heartbeat.
#[derive(Clone, Default)]
pub(super) struct Ranks(pub(super) Arc<Mutex<Vec<(Filling, Priority, bool)>>>);

/// What a model wants.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ask {
    pub(super) model: ModelId,
    pub(super) parts: Vec<(DeviceId, ByteCount)>,
    pub(super) priority: Priority,
    /// Whether others are asked to make way.
    pub(super) preempt: bool,
    /// Whether more important holders may ask for it back.
    pub(super) yields: bool,
}

/// A list that lacks a worker although memory in use has grown: it may have ended a moment ago, or the driver may list
/// nobody. Until the next look nothing is concluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) since: Instant,
    /// Its processes that lived behind the list.
    pub(super) living: Vec<Process>,
}
