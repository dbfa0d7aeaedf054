//! Leases as people and the API see them: names in place of keys, nothing that proves anything.

use model_boss_lease::{Lease, LeaseId, LeaseState, Ledger, Owner, Want};
use model_boss_protocol::{ByteCount, Priority};
use serde::Serialize;

/// A lease, for display.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeaseView {
    /// Its name.
    pub lease: LeaseId,
    /// What it is for.
    pub label: String,
    /// Who holds it.
    pub owner: Owner,
    /// How important it is.
    pub priority: Priority,
    /// Device names, promised bytes, and used bytes where known.
    pub parts: Vec<PartView>,
    /// How far it is.
    pub state: LeaseState,
    /// Whether it may be asked to give its bytes back.
    pub preemptible: bool,
    /// Whether it was asked and did not do so in time.
    pub in_default: bool,
    /// The processes behind its gate.
    pub pids: Vec<u32>,
}

/// A request that waits, for display.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaiterView {
    /// The place in the queue, from 1.
    pub position: usize,
    /// Its request.
    pub request_id: String,
    /// What it is for.
    pub label: String,
    /// How important it is.
    pub priority: Priority,
    /// What it wants.
    pub want: Want,
}

/// Bytes on one device, for display.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartView {
    /// What people call the device.
    pub device: String,
    /// Promised.
    pub bytes: ByteCount,
    /// Used, where known.
    pub measured: Option<ByteCount>,
}

impl LeaseView {
    pub(crate) fn of(id: &LeaseId, lease: &Lease, ledger: &Ledger) -> Self {
        let part = |part: &model_boss_lease::Part| PartView {
            device: ledger.devices.get(&part.device).map_or_else(|| part.device.to_string(), |d| d.name.clone()),
            bytes: part.bytes,
            measured: part.measured,
        };
        Self {
            lease: id.clone(),
            label: lease.owner.label.clone(),
            owner: lease.owner.clone(),
            priority: lease.priority,
            parts: lease.parts.iter().map(part).collect(),
            state: lease.state.clone(),
            preemptible: lease.yielding.preemptible,
            in_default: lease.in_default,
            pids: lease.pids.iter().map(|process| process.pid).collect(),
        }
    }
}

impl WaiterView {
    /// Everybody who waits, first come first.
    pub(crate) fn queue(ledger: &Ledger) -> Vec<Self> {
        let mut queue: Vec<_> = ledger.waiters.iter().collect();
        queue.sort_by_key(|(id, waiter)| (waiter.priority, waiter.arrived, (*id).clone()));
        let view = |(place, (id, waiter)): (usize, (&String, &model_boss_lease::Waiter))| Self {
            position: place + 1,
            request_id: id.clone(),
            label: waiter.owner.label.clone(),
            priority: waiter.priority,
            want: waiter.want.clone(),
        };
        queue.into_iter().enumerate().map(view).collect()
    }
}
