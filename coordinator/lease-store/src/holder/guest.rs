//! What a process does in the ledger for another one of its host that cannot reach the store itself. Nothing of it is kept
//! here: the other process renews, by what proves its lease, and states it again after a loss.

use std::time::Duration;

use model_boss_lease::{Evidence, Lease, LeaseId, Op, Outcome, Owner, Process, Record, Renewal, Request, Want};
use model_boss_protocol::{ByteCount, DeviceId};

use super::operate::unexpected;
use super::state::Holder;
use crate::capability::{Proof, earlier_name};
use crate::contract::{AcquireRequest, Asked, LeaseHandle, Wish};
use crate::guest_name::of_guest;
use crate::view::{ForcedView, LeaseView};
use crate::{Caller, StoreError};

/// A lease as its holder may see it.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestLease {
    /// As everybody sees it.
    pub view: LeaseView,
    /// What proves it. For its holder alone.
    pub proof: Proof,
}

/// A lease of a guest, and what proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestHandle {
    /// Which lease.
    pub lease: LeaseId,
    /// What the guest shows for it.
    pub proof: Proof,
}

/// What came of a guest's request.
#[derive(Clone, Debug, PartialEq)]
pub enum GuestAcquired {
    /// The bytes are promised.
    Granted(Box<GuestLease>),
    /// Not now; asking again keeps the place in the queue.
    Wait {
        /// The place in the queue, from 1.
        position: usize,
        /// Why, for people.
        reason: String,
        /// Who was asked to give bytes back for it.
        asked: Vec<Asked>,
    },
    /// Records may have been lost: nothing is granted for so long.
    Recovering(Duration),
    /// Not on this host, ever.
    NeverFits(String),
}

/// What a release of a guest came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestReleased {
    /// The bytes are free.
    Free,
    /// They stay counted until these processes are gone.
    Counted(Vec<Process>),
}

/// A guest's lease as it remembers it.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestRecord {
    /// Which lease, and what proves it.
    pub handle: GuestHandle,
    /// The request that it was granted for.
    pub request: AcquireRequest,
    /// Who holds it.
    pub owner: Owner,
    /// The processes behind its gate.
    pub processes: Vec<Process>,
}

impl Holder {
    /// One lease, as last seen.
    pub fn lease(&self, id: &LeaseId) -> Option<LeaseView> {
        Some(LeaseView::of(id, self.seen.leases.get(id)?, &self.seen))
    }

    /// Asks for bytes for `owner`. Look at the devices first: nothing is granted on old figures.
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
                let asked = victims.into_iter().map(|v| Asked { label: v.label, remaining: v.remaining }).collect();
                wait(reason, asked)
            }
            Outcome::Recovering { retry_after } => GuestAcquired::Recovering(retry_after),
            Outcome::NeverFits(reason) => GuestAcquired::NeverFits(reason.to_string()),
            other => return Err(unexpected("acquire", other)),
        })
    }

    /// An earlier run of the coordinator granted the lease of this request, and what proves it is not known here.
    fn granted_earlier(&self, id: &LeaseId) -> Result<GuestAcquired, StoreError> {
        let Some(lease) = self.seen.leases.get(id).filter(|lease| lease.is_untouched()) else {
            return Err(StoreError::HeldAlready(id.clone()));
        };
        let left = lease.deadline.since(self.seen.last_time).as_secs() + 1;
        let reason = format!("the answer to an earlier question was lost; the memory is promised anew within {left} s");
        Ok(GuestAcquired::Wait { position: 1, reason, asked: Vec::new() })
    }

    /// Takes back what a guest asked for.
    pub fn cancel_for(&mut self, owner: &Process, request_id: &str) -> Result<(), StoreError> {
        let op = Op::Cancel { request_id: of_guest(owner, request_id), owner: owner.clone() };
        match self.apply(&|_| op.clone())? {
            Outcome::Noted => Ok(()),
            other => Err(unexpected("cancel", other)),
        }
    }

    /// The gate, for processes of a guest: all of them or none. Their numbers are those of the owner's pid namespace.
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

    /// A guest's heartbeat: what it still holds, and what it does not.
    pub fn renew_for(
        &mut self,
        caller: Caller,
        handles: &[GuestHandle],
    ) -> Result<(Vec<GuestLease>, Vec<LeaseId>), StoreError> {
        let (mut open, mut lost) = (Vec::new(), Vec::new());
        // Another coordinator may have granted some of them.
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

    /// Changes the size of a guest's lease. `Err` inside: why there is no room, for people.
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

    /// Counts a lease again that the store forgot, perhaps smaller than stated; processes that are gone are passed over.
    /// `Err` inside: why nobody can say yet what it holds; it asks again.
    pub fn reassert_for(
        &mut self,
        caller: Caller,
        record: GuestRecord,
    ) -> Result<Result<GuestLease, String>, StoreError> {
        let GuestRecord { handle, request, owner, processes } = record;
        let tree = self.tree();
        let pids: Vec<Process> = processes.into_iter().filter(|process| tree.shows(process)).collect();
        pids.iter().try_for_each(|process| self.may_name(caller, process))?;
        // The name is the guest's if what it shows opens it. Which token goes with it is the ledger's business.
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

    /// Gives a guest's bytes back if its processes are gone. `showing`: the processes that devices still show.
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

    /// Ends a lease that nobody holds any more, without its token. The processes that still live are in the way.
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

    /// Ends a lease whatever its processes do, at an operator's word, and keeps that in the ledger. Gives what was forced;
    /// `None` for a lease that nobody held any more: that one ends as every other.
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

    /// What operators ended without evidence, the latest last, as last seen. Devices by their names.
    pub fn forced(&self) -> Vec<ForcedView> {
        self.seen.forced.iter().map(|forced| ForcedView::of(forced, &self.seen)).collect()
    }

    /// The processes of a held lease that are not gone, or that a device shows, as last seen. No I/O at the store.
    pub fn living_of(&self, handle: &LeaseHandle, showing: &[u32]) -> Vec<Process> {
        let lease = self.seen.leases.get(&handle.lease).filter(|lease| lease.token == handle.token);
        lease.map(|lease| self.living(lease, showing)).unwrap_or_default()
    }

    /// The processes of a held lease that a device was last seen to show besides the attached ones. No I/O.
    pub fn users_of(&self, handle: &LeaseHandle) -> Vec<Process> {
        let lease = self.seen.leases.get(&handle.lease).filter(|lease| lease.token == handle.token);
        lease.map(|lease| lease.parts.iter().flat_map(|part| part.users.clone()).collect()).unwrap_or_default()
    }

    /// The processes of a lease that are not gone, or that a device shows.
    fn living(&self, lease: &Lease, showing: &[u32]) -> Vec<Process> {
        let tree = self.tree();
        let shown = |process: &Process| process.pid_ns == self.owner.process.pid_ns && showing.contains(&process.pid);
        lease.family().filter(|process| !tree.is_gone(process) || shown(process)).cloned().collect()
    }

    /// The same with a ledger read anew, where the lease is not in it as last seen.
    fn open(&mut self, caller: Caller, handle: &GuestHandle) -> Result<LeaseHandle, StoreError> {
        if self.may_be_lost(handle) {
            self.refresh()?;
        }
        self.opened(caller, handle)
    }

    /// The handle that the ledger knows, for a guest that shows what proves its lease.
    fn opened(&self, caller: Caller, handle: &GuestHandle) -> Result<LeaseHandle, StoreError> {
        let GuestHandle { lease: id, proof } = handle;
        let lost = || StoreError::Lost(id.clone());
        if !is_proof(handle) {
            return Err(lost());
        }
        let lease = self.seen.leases.get(id).ok_or_else(lost)?;
        let (token, owner) = (lease.token, lease.owner.process.clone());
        // An earlier version told the token to everybody who could read a list.
        if matches!(proof, Proof::Fence(_)) && self.may_name(caller, &owner).is_err() {
            return Err(lost());
        }
        Ok(LeaseHandle { lease: id.clone(), token })
    }

    /// Whether the ledger does not know the lease, and what the guest shows would open it.
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
            Wish::Parts(parts) => Want::Parts(self.keyed(&parts)?),
            Wish::AnyOf { count, bytes, devices } => {
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
