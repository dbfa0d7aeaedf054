//! Leases of guests: processes of this host that cannot reach the store themselves. This process keeps no state for
//! them. A guest renews its lease with its proof, and reports it again after a loss.

use std::time::Duration;

use model_boss_lease::{Evidence, Lease, LeaseId, Op, Outcome, Owner, Process, Record, Renewal, Request, Want};
use model_boss_protocol::{ByteCount, DeviceId};

use super::operate::unexpected;
use super::state::Holder;
use crate::capability::{Proof, earlier_name};
use crate::contract::{AcquireRequest, LeaseHandle, LeaseWish, RevokedForUs};
use crate::guest_name::of_guest;
use crate::view::{ForcedView, LeaseView};
use crate::{Caller, StoreError};

/// A lease with its proof, for its holder.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestLease {
    /// The public view of the lease.
    pub view: LeaseView,
    /// The proof, for the lease's holder alone.
    pub proof: Proof,
}

/// The name and proof of a guest's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestHandle {
    /// The lease's name.
    pub lease: LeaseId,
    /// The proof that the guest shows.
    pub proof: Proof,
}

/// The answer to a guest's request.
#[derive(Clone, Debug, PartialEq)]
pub enum GuestAcquired {
    /// The bytes are promised.
    Granted(Box<GuestLease>),
    /// The bytes cannot be granted now; repeating the request keeps the place in the queue.
    Wait {
        /// The place in the queue, from 1.
        position: usize,
        /// The reason, human-readable.
        reason: String,
        /// The leases revoked for the request.
        asked: Vec<RevokedForUs>,
    },
    /// Records may have been lost: no lease is granted for this long.
    Recovering(Duration),
    /// The bytes can never be granted on this host, for this reason.
    NeverFits(String),
}

/// The result of a guest's release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestReleased {
    /// The bytes are free.
    Free,
    /// The bytes still count until these processes have ended.
    Counted(Vec<Process>),
}

/// A guest's record of its lease.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestRecord {
    /// The lease's name and proof.
    pub handle: GuestHandle,
    /// The request that the lease was granted for.
    pub request: AcquireRequest,
    /// The lease's owner.
    pub owner: Owner,
    /// The processes that passed the lease's gate.
    pub processes: Vec<Process>,
}

impl Holder {
    /// One lease in the ledger as last read.
    pub fn lease(&self, id: &LeaseId) -> Option<LeaseView> {
        Some(LeaseView::of(id, self.seen.leases.get(id)?, &self.seen))
    }

    /// Requests bytes for `owner`. The devices should be observed first: no lease is granted on old figures.
    pub fn acquire_for(&mut self, owner: Owner, request: AcquireRequest) -> Result<GuestAcquired, StoreError> {
        let capability = self.capabilities.capability(&owner.process, &request.request_id);
        let request = self.request_for(owner, request, capability.lease())?;
        let wait = |wait: model_boss_lease::Wait, asked| GuestAcquired::Wait {
            position: wait.position,
            reason: wait.reason.to_string(),
            asked,
        };
        Ok(match self.apply(&|_| Op::Acquire(request.clone()))? {
            Outcome::Granted(grant) => {
                if !capability.opens(&grant.lease) {
                    return self.granted_earlier(&grant.lease);
                }
                let handle = GuestHandle { lease: grant.lease, proof: Proof::Capability(capability) };
                GuestAcquired::Granted(Box::new(self.detail_of(&handle)?))
            }
            Outcome::Wait(reason) => wait(reason, Vec::new()),
            Outcome::Revoking { victims, wait: reason } => {
                let asked =
                    victims.into_iter().map(|v| RevokedForUs { label: v.label, remaining: v.remaining }).collect();
                wait(reason, asked)
            }
            Outcome::Recovering { retry_after } => GuestAcquired::Recovering(retry_after),
            Outcome::NeverFits(reason) => GuestAcquired::NeverFits(reason.to_string()),
            other => return Err(unexpected("acquire", other)),
        })
    }

    /// The error for a lease that an earlier run of the coordinator granted, whose proof this run does not have.
    fn granted_earlier(&self, id: &LeaseId) -> Result<GuestAcquired, StoreError> {
        let Some(lease) = self.seen.leases.get(id).filter(|lease| lease.is_untouched()) else {
            return Err(StoreError::HeldAlready(id.clone()));
        };
        let left = lease.deadline.since(self.seen.last_time).as_secs() + 1;
        let reason = format!("the answer to an earlier question was lost; the memory is promised anew within {left} s");
        Ok(GuestAcquired::Wait { position: 1, reason, asked: Vec::new() })
    }

    /// Withdraws a guest's request.
    pub fn cancel_for(&mut self, owner: &Process, request_id: &str) -> Result<(), StoreError> {
        let op = Op::Cancel { request_id: of_guest(owner, request_id), owner: owner.clone() };
        match self.apply(&|_| op.clone())? {
            Outcome::Noted => Ok(()),
            other => Err(unexpected("cancel", other)),
        }
    }

    /// Passes the gate with processes of a guest: all of them or none. Their numbers are those of the owner's pid
    /// namespace.
    pub fn attach_for(&mut self, caller: Caller, handle: &GuestHandle, pids: &[u32]) -> Result<GuestLease, StoreError> {
        let LeaseHandle { lease, token } = self.open(caller, handle)?;
        let namespace = self.seen.leases.get(&lease).map(|lease| lease.owner.process.pid_ns.clone());
        let namespace = namespace.ok_or_else(|| StoreError::Lost(lease.clone()))?;
        let mut processes = Vec::new();
        for pid in pids {
            let process = self.process_in(&namespace, *pid).ok_or(StoreError::NoSuchProcess(*pid))?;
            self.may_name(caller, &process)?;
            processes.push(process);
        }
        for process in processes {
            let op = Op::Attach { lease: lease.clone(), token, process, boot_id: self.empty.boot_id.clone() };
            match self.apply(&|_| op.clone())? {
                Outcome::Attached => {}
                Outcome::Lost => return Err(StoreError::Lost(handle.lease.clone())),
                other => return Err(unexpected("attach", other)),
            }
        }
        self.detail_of(handle)
    }

    /// A guest's heartbeat: returns the leases that it still holds and those that it lost.
    pub fn renew_for(
        &mut self,
        caller: Caller,
        handles: &[GuestHandle],
    ) -> Result<(Vec<GuestLease>, Vec<LeaseId>), StoreError> {
        let (mut open, mut lost) = (Vec::new(), Vec::new());
        // Another coordinator may have granted some of these leases.
        if handles.iter().any(|handle| self.may_be_lost(handle)) {
            self.refresh()?;
        }
        for handle in handles {
            match self.opened(caller, handle) {
                Ok(known) => open.push((handle, known)),
                Err(StoreError::Lost(id)) => lost.push(id),
                Err(error) => return Err(error),
            }
        }
        let leases: Vec<Renewal> = open.iter().map(|(_, h)| Renewal::plain(h.lease.clone(), h.token)).collect();
        match self.apply(&|_| Op::Renew { leases: leases.clone() })? {
            Outcome::Renewed { lost: more, .. } => {
                let kept = open.iter().filter(|(_, known)| !more.contains(&known.lease));
                let kept = kept.filter_map(|(handle, _)| self.detail_of(handle).ok()).collect();
                lost.extend(more);
                Ok((kept, lost))
            }
            other => Err(unexpected("renew", other)),
        }
    }

    /// Changes the size of a guest's lease. The inner `Err` is the reason of a refusal, for display.
    pub fn resize_for(
        &mut self,
        caller: Caller,
        handle: &GuestHandle,
        parts: &[(DeviceId, ByteCount)],
    ) -> Result<Result<GuestLease, String>, StoreError> {
        let parts = self.keyed(parts)?;
        let LeaseHandle { lease, token } = self.open(caller, handle)?;
        match self.apply(&|_| Op::Resize { lease: lease.clone(), token, parts: parts.clone() })? {
            Outcome::Resized => self.detail_of(handle).map(Ok),
            Outcome::Wait(wait) => Ok(Err(wait.reason.to_string())),
            Outcome::NeverFits(reason) => Ok(Err(reason.to_string())),
            Outcome::Lost => Err(StoreError::Lost(handle.lease.clone())),
            other => Err(unexpected("resize", other)),
        }
    }

    /// Restores a lease that the store lost, perhaps smaller than reported; processes that ended are ignored. The inner
    /// `Err` is the reason why its bytes are not known yet; the guest repeats its request.
    pub fn reassert_for(
        &mut self,
        caller: Caller,
        record: GuestRecord,
    ) -> Result<Result<GuestLease, String>, StoreError> {
        let GuestRecord { handle, request, owner, processes } = record;
        let tree = self.tree();
        let pids: Vec<Process> = processes.into_iter().filter(|process| tree.shows(process)).collect();
        pids.iter().try_for_each(|process| self.may_name(caller, process))?;
        // The name belongs to the guest if its proof matches. The ledger decides about the token.
        match self.open(caller, &handle) {
            Ok(_) => {}
            Err(StoreError::Lost(_)) if self.may_be_lost(&handle) => {}
            Err(error) => return Err(error),
        }
        let lease = handle.lease.clone();
        let Request { request_id, lease, owner, priority, yielding, want, .. } =
            self.request_for(owner, request, lease)?;
        let Want::Parts(parts) = want else { return Err(StoreError::Unexpected("reassert")) };
        let boot_id = self.empty.boot_id.clone();
        let record = Record { lease, token: None, request_id, owner, priority, yielding, parts, pids, boot_id };
        match self.apply(&|_| Op::Reassert(record.clone()))? {
            Outcome::Reasserted { .. } => self.detail_of(&handle).map(Ok),
            Outcome::Lost => Err(StoreError::Lost(handle.lease)),
            Outcome::Wait(wait) => Ok(Err(wait.reason.to_string())),
            other => Err(unexpected("reassert", other)),
        }
    }

    /// Releases a guest's lease if its processes have ended. `showing`: the processes that devices still show.
    pub fn release_for(
        &mut self,
        caller: Caller,
        handle: &GuestHandle,
        showing: &[u32],
    ) -> Result<GuestReleased, StoreError> {
        self.refresh()?;
        let LeaseHandle { lease, token } = self.opened(caller, handle)?;
        let living = self.seen.leases.get(&lease).map(|lease| self.living(lease, showing)).unwrap_or_default();
        let evidence = if living.is_empty() { Evidence::Gone } else { Evidence::None };
        match self.apply(&|_| Op::Release { lease: lease.clone(), token, evidence })? {
            Outcome::Released => Ok(GuestReleased::Free),
            Outcome::InLimbo => Ok(GuestReleased::Counted(living)),
            Outcome::Lost => Err(StoreError::Lost(handle.lease.clone())),
            other => Err(unexpected("release", other)),
        }
    }

    /// Ends a lease without a holder, without its token. Its living processes prevent that, and are returned.
    pub fn end_abandoned(&mut self, id: &LeaseId) -> Result<GuestReleased, StoreError> {
        self.refresh()?;
        let Some(lease) = self.seen.leases.get(id).cloned() else { return Err(StoreError::Lost(id.clone())) };
        let tree = self.tree();
        let mut living = self.living(&lease, &[]);
        if tree.shows(&lease.owner.process) {
            living.push(lease.owner.process);
        }
        if !living.is_empty() {
            return Ok(GuestReleased::Counted(living));
        }
        self.settle()?;
        match self.seen.leases.contains_key(id) {
            false => Ok(GuestReleased::Free),
            true => Ok(GuestReleased::Counted(Vec::new())),
        }
    }

    /// Ends a lease on an operator's order, even if its processes are alive, and records that in the ledger. Returns
    /// the forced lease; `None` for a lease without a holder, which ends like any other.
    pub fn force(&mut self, id: &LeaseId, by: &str) -> Result<Option<ForcedView>, StoreError> {
        if self.end_abandoned(id)? == GuestReleased::Free {
            return Ok(None);
        }
        let op = Op::Force { lease: id.clone(), by: by.to_owned() };
        match self.apply(&|_| op.clone())? {
            Outcome::Released => Ok(self.forced().into_iter().rfind(|forced| forced.lease == *id)),
            Outcome::Lost => Err(StoreError::Lost(id.clone())),
            other => Err(unexpected("force", other)),
        }
    }

    /// The leases that operators ended without evidence, the latest at the end. Devices are given by name.
    pub fn forced(&self) -> Vec<ForcedView> {
        self.seen.forced.iter().map(|forced| ForcedView::of(forced, &self.seen)).collect()
    }

    /// The processes of a held lease that are alive, or that a device lists, by the last readings. The call does not
    /// access the store.
    pub fn living_of(&self, handle: &LeaseHandle, showing: &[u32]) -> Vec<Process> {
        let lease = self.seen.leases.get(&handle.lease).filter(|lease| lease.token == handle.token);
        lease.map(|lease| self.living(lease, showing)).unwrap_or_default()
    }

    /// The processes of a held lease that a device last showed besides the attached ones. The call does no I/O.
    pub fn users_of(&self, handle: &LeaseHandle) -> Vec<Process> {
        let lease = self.seen.leases.get(&handle.lease).filter(|lease| lease.token == handle.token);
        lease.map(|lease| lease.parts.iter().flat_map(|part| part.users.clone()).collect()).unwrap_or_default()
    }

    /// The processes of a lease that are alive, or that a device lists.
    fn living(&self, lease: &Lease, showing: &[u32]) -> Vec<Process> {
        let tree = self.tree();
        let shown = |process: &Process| process.pid_ns == self.owner.process.pid_ns && showing.contains(&process.pid);
        lease.family().filter(|process| !tree.is_gone(process) || shown(process)).cloned().collect()
    }

    /// The handle of a lease after a check of the guest's proof. The ledger is read again if the lease was not in it.
    fn open(&mut self, caller: Caller, handle: &GuestHandle) -> Result<LeaseHandle, StoreError> {
        if self.may_be_lost(handle) {
            self.refresh()?;
        }
        self.opened(caller, handle)
    }

    /// The handle of a lease in the ledger as last read, after a check of the guest's proof.
    fn opened(&self, caller: Caller, handle: &GuestHandle) -> Result<LeaseHandle, StoreError> {
        let GuestHandle { lease: id, proof } = handle;
        let lost = || StoreError::Lost(id.clone());
        if !is_proof(handle) {
            return Err(lost());
        }
        let lease = self.seen.leases.get(id).ok_or_else(lost)?;
        let (token, owner) = (lease.token, lease.owner.process.clone());
        // An earlier version showed the token to all readers of a list.
        if matches!(proof, Proof::Fence(_)) && self.may_name(caller, &owner).is_err() {
            return Err(lost());
        }
        Ok(LeaseHandle { lease: id.clone(), token })
    }

    /// Whether the ledger does not contain the lease although the guest's proof matches its name.
    fn may_be_lost(&self, handle: &GuestHandle) -> bool {
        is_proof(handle) && !self.seen.leases.contains_key(&handle.lease)
    }

    fn detail_of(&self, handle: &GuestHandle) -> Result<GuestLease, StoreError> {
        let view = self.lease(&handle.lease).ok_or_else(|| StoreError::Lost(handle.lease.clone()))?;
        Ok(GuestLease { view, proof: handle.proof.clone() })
    }

    fn request_for(&self, owner: Owner, request: AcquireRequest, lease: LeaseId) -> Result<Request, StoreError> {
        let AcquireRequest { request_id, label, priority, wish, yielding, mode } = request;
        let owner = Owner::new(owner.process, label, owner.kind).of_user(owner.user);
        let want = match wish {
            LeaseWish::Parts(parts) => Want::Parts(self.keyed(&parts)?),
            LeaseWish::AnyOf { count, bytes, devices } => {
                let devices = devices.iter().map(|device| self.key(device)).collect::<Result<_, _>>()?;
                Want::AnyOf { count, bytes, devices }
            }
        };
        let request_id = of_guest(&owner.process, &request_id);
        Ok(Request { request_id, lease, owner, priority, yielding, want, mode })
    }
}

fn is_proof(GuestHandle { lease, proof }: &GuestHandle) -> bool {
    match proof {
        Proof::Capability(capability) => capability.opens(lease),
        Proof::Fence(token) => earlier_name(*token) == *lease,
    }
}
