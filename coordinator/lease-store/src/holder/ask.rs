//! Requests for bytes, and the gate.

use std::time::Duration;

use model_boss_lease::{Op, Outcome, Request, Want};

use super::operate::unexpected;
use super::state::{HeldLease, Holder};
use crate::capability::random_name;
use crate::contract::{AcquireRequest, Acquired, LeaseHandle, LeaseWish, RevokedForUs};
use crate::{StoreError, host};

/// The pause before a request is repeated. It is shorter than the lease time, so that the place in the queue is kept.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Holder {
    /// Requests bytes: all parts or none. The devices should be observed first: no lease is granted on old figures.
    pub fn acquire(&mut self, request: AcquireRequest) -> Result<Acquired, StoreError> {
        let AcquireRequest { request_id, label, priority, wish, yielding, mode } = request;
        let mut owner = self.owner.clone();
        owner.label = label.into();
        let want = match wish {
            LeaseWish::Parts(parts) => Want::Parts(self.keyed(&parts)?),
            LeaseWish::AnyOf { count, bytes, devices } => {
                let devices = devices.iter().map(|device| self.key(device)).collect::<Result<_, _>>()?;
                Want::AnyOf { count, bytes, devices }
            }
        };
        let lease = random_name()?;
        let request = Request { request_id, lease, owner, priority, yielding, want, mode };
        let wait = |wait: model_boss_lease::Wait, asked| Acquired::Wait {
            position: wait.position,
            reason: wait.reason.to_string(),
            asked,
            retry_after: ASK_AGAIN,
        };
        Ok(match self.apply(&|_| Op::Acquire(request.clone()))? {
            Outcome::Granted(grant) => {
                let handle = LeaseHandle { lease: grant.lease.clone(), token: grant.token };
                self.held.entry(grant.lease).or_insert_with(|| HeldLease::new(handle.clone(), request, grant.parts));
                Acquired::Granted(handle)
            }
            Outcome::Wait(reason) => wait(reason, Vec::new()),
            // The request was for a place in the queue, and its memory is free.
            Outcome::Noted => {
                Acquired::Wait { position: 1, reason: "it fits".to_owned(), asked: Vec::new(), retry_after: ASK_AGAIN }
            }
            Outcome::Revoking { victims, wait: reason } => {
                let asked =
                    victims.into_iter().map(|v| RevokedForUs { label: v.label, remaining: v.remaining }).collect();
                wait(reason, asked)
            }
            Outcome::Recovering { retry_after } => {
                let reason = StoreError::Recovering(retry_after).to_string();
                Acquired::Wait { position: 1, reason, asked: Vec::new(), retry_after: retry_after.min(ASK_AGAIN) }
            }
            Outcome::NeverFits(reason) => Acquired::NeverFits { reason: reason.to_string() },
            other => return Err(unexpected("acquire", other)),
        })
    }

    /// Withdraws a request: its place in the queue, and its lease if no process passed the gate.
    pub fn cancel(&mut self, request_id: &str) -> Result<(), StoreError> {
        let owner = self.owner.process.clone();
        let outcome = self.apply(&|_| Op::Cancel { request_id: request_id.to_owned(), owner: owner.clone() })?;
        self.held.retain(|_, held| !(held.request.request_id == request_id && held.pids.is_empty()));
        match outcome {
            Outcome::Noted => Ok(()),
            other => Err(unexpected("cancel", other)),
        }
    }

    /// The parts of a granted lease.
    pub fn parts(&self, handle: &LeaseHandle) -> Vec<(model_boss_protocol::DeviceId, model_boss_protocol::ByteCount)> {
        self.held.get(&handle.lease).map(|held| self.named(&held.parts)).unwrap_or_default()
    }

    /// Passes the gate: only after this may the process use the device. After [`StoreError::Lost`] it must not.
    pub fn attach(&mut self, handle: &LeaseHandle, pid: u32) -> Result<(), StoreError> {
        let process = host::process(pid)?;
        let LeaseHandle { lease, token } = handle.clone();
        let boot_id = self.empty.boot_id.clone();
        let op = Op::Attach { lease, token, process: process.clone(), boot_id };
        match self.apply(&|_| op.clone())? {
            Outcome::Attached => {
                if let Some(held) = self.held.get_mut(&handle.lease) {
                    held.pids.push(process);
                }
                Ok(())
            }
            Outcome::Lost => {
                self.held.remove(&handle.lease);
                Err(StoreError::Lost(handle.lease.clone()))
            }
            other => Err(unexpected("attach", other)),
        }
    }

    /// Reports the complete load of a lease. It matters on devices where processes cannot be told apart.
    pub fn loaded(&mut self, handle: &LeaseHandle) -> Result<(), StoreError> {
        let LeaseHandle { lease, token } = handle.clone();
        match self.apply(&|_| Op::Settle { lease: lease.clone(), token })? {
            Outcome::Noted => {
                // The next observation shows the bytes of the load, and must be written even if it equals the last
                // one.
                self.devices.values_mut().for_each(|claimed| claimed.written = None);
                Ok(())
            }
            Outcome::Lost => Err(StoreError::Lost(handle.lease.clone())),
            other => Err(unexpected("settle", other)),
        }
    }
}
