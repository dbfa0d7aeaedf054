//! Keeping held leases: the heartbeat, and new reports of leases that the store lost.

use model_boss_lease::{DeviceKey, Evidence, LeaseId, Op, Outcome, Renewal, Revocation};
use model_boss_protocol::{ByteCount, DeviceId, Priority};

use super::operate::unexpected;
use super::state::Holder;
use crate::StoreError;
use crate::contract::{LeaseHandle, RenewOutcome, Revoked};
use crate::holder::state::HeldLease;

fn counts_for(parts: &[(DeviceKey, ByteCount)], device: &DeviceKey) -> ByteCount {
    parts.iter().filter(|(key, _)| key == device).map(|(_, bytes)| *bytes).sum()
}

/// The result of reporting a lease again.
enum Reasserted {
    Kept,
    Reduced,
    Lost,
}

impl Holder {
    /// The heartbeat: renews every held lease and returns those that were lost, revoked or reduced.
    pub fn renew(&mut self) -> Result<RenewOutcome, StoreError> {
        if self.held.is_empty() {
            return Ok(RenewOutcome::default());
        }
        let renewal = |held: &HeldLease| Renewal {
            lease: held.handle.lease.clone(),
            token: held.handle.token,
            priority: Some(held.request.priority),
            used: held.used,
        };
        let leases: Vec<_> = self.held.values().map(renewal).collect();
        let (lost, revoked) = match self.apply(&|_| Op::Renew { leases: leases.clone() })? {
            Outcome::Renewed { lost, revoked } => (lost, revoked),
            other => return Err(unexpected("renew", other)),
        };
        self.held.values_mut().for_each(|held| held.used = false);
        let mut kept = RenewOutcome {
            revoked: revoked.into_iter().filter_map(|r| self.revoked(r)).collect(),
            ..RenewOutcome::default()
        };
        // A store that restored an earlier version may have lost a lease, or have it with fewer bytes.
        let whole = |held: &HeldLease| {
            let known = self.seen.leases.get(&held.handle.lease).map(model_boss_lease::Lease::promised);
            known.is_some_and(|known| held.parts.iter().all(|(device, bytes)| counts_for(&known, device) >= *bytes))
        };
        let again: Vec<LeaseId> =
            self.held.values().filter(|held| !whole(held)).map(|held| held.handle.lease.clone()).collect();
        for id in again {
            match self.reassert(&id)? {
                Reasserted::Kept => {}
                Reasserted::Reduced => {
                    if let Some(held) = self.held.get(&id) {
                        kept.reduced.push((held.handle.clone(), self.named(&held.parts)));
                    }
                }
                Reasserted::Lost if lost.contains(&id) => {
                    kept.lost.extend(self.held.remove(&id).map(|held| held.handle))
                }
                Reasserted::Lost => {}
            }
        }
        Ok(kept)
    }

    /// Reports a lost lease once: if its processes hold memory, it counts again.
    fn reassert(&mut self, id: &LeaseId) -> Result<Reasserted, StoreError> {
        let Some(record) = self.held.get(id).map(|held| held.record(&self.empty.boot_id)) else {
            return Ok(Reasserted::Lost);
        };
        if record.pids.is_empty() {
            return Ok(Reasserted::Lost);
        }
        match self.apply(&|_| Op::Reassert(record.clone()))? {
            Outcome::Reasserted { parts } => {
                let Some(held) = self.held.get_mut(id) else { return Ok(Reasserted::Lost) };
                let smaller = held.parts != parts;
                held.parts = parts;
                Ok(if smaller { Reasserted::Reduced } else { Reasserted::Kept })
            }
            // The lease's bytes are not known yet: the report is repeated at the next heartbeat.
            Outcome::Wait(_) => Ok(Reasserted::Kept),
            Outcome::Lost => Ok(Reasserted::Lost),
            other => Err(unexpected("reassert", other)),
        }
    }

    fn revoked(&self, revocation: Revocation) -> Option<Revoked> {
        let Revocation { lease, remaining, wanted_by, priority, wanted } = revocation;
        let handle = self.held.get(&lease)?.handle.clone();
        Some(Revoked { handle, remaining, wanted_by, priority, wanted: self.named(&wanted) })
    }

    /// Notes that a lease is in use, and its present priority. The next heartbeat writes it.
    pub fn in_use(&mut self, handle: &LeaseHandle, priority: Priority) {
        self.rank(handle, priority, true);
    }

    /// Notes a lease's present priority, and whether it is in use. The next heartbeat writes it.
    pub fn rank(&mut self, handle: &LeaseHandle, priority: Priority, used: bool) {
        if let Some(held) = self.held.get_mut(&handle.lease) {
            (held.used, held.request.priority) = (used, priority);
        }
    }

    /// Makes a lease smaller or, if the memory is free, larger. `None` means success; otherwise the reason of a
    /// refusal, for display.
    pub fn resize(
        &mut self,
        handle: &LeaseHandle,
        parts: &[(DeviceId, ByteCount)],
    ) -> Result<Option<String>, StoreError> {
        let parts = self.keyed(parts)?;
        let LeaseHandle { lease, token } = handle.clone();
        match self.apply(&|_| Op::Resize { lease: lease.clone(), token, parts: parts.clone() })? {
            Outcome::Resized => {
                if let Some(held) = self.held.get_mut(&handle.lease) {
                    held.parts = parts;
                }
                Ok(None)
            }
            Outcome::Wait(wait) => Ok(Some(wait.reason.to_string())),
            Outcome::NeverFits(reason) => Ok(Some(reason.to_string())),
            Outcome::Recovering { retry_after } => Ok(Some(StoreError::Recovering(retry_after).to_string())),
            Outcome::Lost => Err(StoreError::Lost(handle.lease.clone())),
            other => Err(unexpected("resize", other)),
        }
    }

    /// Releases a lease. Without evidence its bytes count until [`Holder::settle`] finds the processes gone.
    /// Releasing a lease that is no longer held is no error.
    pub fn release(&mut self, handle: &LeaseHandle, evidence: Evidence) -> Result<(), StoreError> {
        let LeaseHandle { lease, token } = handle.clone();
        let outcome = self.apply(&|_| Op::Release { lease: lease.clone(), token, evidence })?;
        self.held.remove(&handle.lease);
        match outcome {
            Outcome::Released | Outcome::InLimbo | Outcome::Lost => Ok(()),
            other => Err(unexpected("release", other)),
        }
    }
}
