//! Leases as people and the API see them: names in place of keys, nothing that proves anything.

use model_boss_lease::{Lease, LeaseId, LeaseState, Ledger, Owner};
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
    /// The processes behind its gate.
    pub pids: Vec<u32>,
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
            pids: lease.pids.iter().map(|process| process.pid).collect(),
        }
    }
}
