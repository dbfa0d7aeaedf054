//! Declarations and observations of devices.

use model_boss_lease::{Ledger, Op, Outcome, OwnerKind, ProcessUse, StoreTime};
use model_boss_protocol::ByteCount;

use super::operate::unexpected;
use super::state::{Claimed, Holder};
use crate::StoreError;
use crate::claim::DeviceClaim;
use crate::contract::{DeviceDeclaration, Observation};
use crate::holder::state::LastWrite;

impl Holder {
    /// Claims a device for this host's ledger, if that was not done yet, and declares its properties.
    pub fn declare(&mut self, declaration: &DeviceDeclaration) -> Result<(), StoreError> {
        let device = &declaration.device;
        if self.devices.get(device).is_none_or(|claimed| claimed.declaration.key != declaration.key) {
            let claim = DeviceClaim::take(&self.place, &declaration.key, &device.to_string(), &self.claim)?;
            let claimed = Claimed { declaration: declaration.clone(), written: None, claim };
            self.devices.insert(device.clone(), claimed);
        } else if let Some(claimed) = self.devices.get_mut(device) {
            claimed.declaration = declaration.clone();
        }
        let op = declared(declaration, &self.owner.kind);
        match self.apply(&|_| op.clone())? {
            Outcome::Noted => Ok(()),
            other => Err(unexpected("declare", other)),
        }
    }

    /// Declarations of the devices that this process claims and the ledger lacks.
    pub(super) fn missing_from(&self, ledger: &Ledger) -> Vec<Op> {
        let declarations = self.devices.values().map(|claimed| &claimed.declaration);
        let missing = declarations.filter(|declaration| !ledger.devices.contains_key(&declaration.key));
        missing.map(|declaration| declared(declaration, &self.owner.kind)).collect()
    }

    /// Whether this declaration was made already, so that it need not be repeated at every observation.
    pub fn has_declared(&self, declaration: &DeviceDeclaration) -> bool {
        self.devices.get(&declaration.device).is_some_and(|claimed| claimed.declaration == *declaration)
    }

    /// Records an observation, unless it equals a recent one. Returns the bytes used by programs without a lease, if
    /// they are known.
    pub fn observe(&mut self, observation: &Observation) -> Result<Option<ByteCount>, StoreError> {
        let Observation { device, used, processes, sampled_at } = observation;
        let key = self.key(device)?;
        if let Some(claimed) = self.devices.get_mut(device) {
            claimed.claim.keep(&self.place)?;
        }
        let known = self.seen.devices.get(&key);
        let unsettled = known.is_none_or(|device| device.unsettled_since.is_some() || device.observed_at.is_none());
        let fresh = LastWrite { at: *sampled_at, used: *used, processes: processes.iter().copied().collect() };
        let written = self.devices.get(device).and_then(|claimed| claimed.written.as_ref());
        if unsettled || written.is_none_or(|written| written.differs(&fresh, self.seen.terms.heartbeat)) {
            let tree = self.tree();
            let attached: Vec<_> = self.seen.leases.values().flat_map(|lease| lease.pids.clone()).collect();
            let processes: Vec<ProcessUse> = processes
                .iter()
                .map(|(pid, bytes)| ProcessUse { lineage: tree.lineage(*pid, &attached), bytes: *bytes })
                .collect();
            // The two clocks differ, so only the sample's age is passed on.
            let outcome = self.apply(&|now| {
                let age = u64::try_from(sampled_at.elapsed().as_micros()).unwrap_or(u64::MAX);
                let sampled_at = StoreTime(now.0.saturating_sub(age));
                Op::Observe { device: key.clone(), used: *used, processes: processes.clone(), sampled_at }
            })?;
            if outcome != Outcome::Noted {
                return Err(unexpected("observe", outcome));
            }
            if let Some(claimed) = self.devices.get_mut(device) {
                claimed.written = Some(fresh);
            }
        }
        Ok(self.seen.devices.get(&key).and_then(|device| device.foreign))
    }
}

fn declared(declaration: &DeviceDeclaration, by: &OwnerKind) -> Op {
    let DeviceDeclaration { device, key, capacity, reserve, accounting } = declaration;
    Op::Declare {
        device: key.clone(),
        name: device.to_string(),
        capacity: *capacity,
        reserve: *reserve,
        accounting: accounting.clone(),
        by: by.clone(),
    }
}
