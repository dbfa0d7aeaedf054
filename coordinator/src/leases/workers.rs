//! The leases of the coordinator's own workers: asked for, attached, kept and given back.

use std::collections::BTreeSet;
use std::time::Duration;

use model_boss_core::Event;
use model_boss_lease_store::{AcquireRequest, Acquired, Evidence, LeaseHandle, StoreError};
use model_boss_protocol::{ByteCount, DeviceId, Generation, SlotId};

use super::keeper::Ledger;
use crate::error_chain::chain;

/// A process that ended and still shows on a device is waited for at most so long: then its bytes stay charged in the
/// ledger until they are seen to be free (RC-18).
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
/// A store that failed is asked again after this long.
const STORE_RETRY: Duration = Duration::from_secs(1);

pub(super) type Filling = (SlotId, Generation);

/// A lease of ours.
pub(super) struct Held {
    pub(super) handle: LeaseHandle,
    pub(super) pid: Option<u32>,
    /// The most that the scheduler was told of its use.
    pub(super) told: Vec<(DeviceId, ByteCount)>,
}

impl Ledger {
    pub(super) fn acquire(&mut self, filling: Filling, mut request: AcquireRequest) {
        request.request_id = format!("{}-{}", self.run, request.request_id);
        // Every acquirer looks first: nothing is granted on an old or missing observation.
        self.look_or_log();
        let acquired = self.holder.acquire(request);
        self.done(&acquired);
        let (reason, retry_after) = match acquired {
            Ok(Acquired::Granted(handle)) => {
                self.held.insert(filling, Held { handle, pid: None, told: Vec::new() });
                let (slot, generation) = filling;
                self.news.event(Event::LeaseGranted { slot, generation });
                return;
            }
            Ok(Acquired::Wait { reason, retry_after, .. }) => (reason, retry_after),
            Ok(Acquired::NeverFits { reason }) => (reason, RELEASE_LIMIT),
            Err(error) => (chain(&error), STORE_RETRY),
        };
        let (slot, generation) = filling;
        self.news.event(Event::LeaseRefused { slot, generation, reason, retry_after });
    }

    pub(super) fn attach(&mut self, filling: Filling, pid: u32) -> Result<(), StoreError> {
        let Some(held) = self.held.get_mut(&filling) else { return Err(StoreError::NoSuchProcess(pid)) };
        let attached = self.holder.attach(&held.handle, pid).inspect(|()| held.pid = Some(pid));
        self.done(&attached);
        attached
    }

    /// The heartbeat.
    pub(super) fn renew(&mut self) {
        let renewed = self.holder.renew();
        self.done(&renewed);
        match renewed {
            Ok(kept) => {
                for lease in kept.lost {
                    if let Some((filling, _)) = self.held.iter().find(|(_, held)| held.handle == lease) {
                        tracing::error!(lease = %lease.lease, "lease lost, its worker is ended");
                        self.news.lease_lost(filling.0, filling.1);
                    }
                }
            }
            Err(error) => tracing::debug!("leases could not be renewed: {}", chain(&error)),
        }
    }

    /// Releases what no device shows any more. While the store is out of reach they wait for it: nothing is forgotten.
    pub(super) fn finish_releases(&mut self) {
        let showing: BTreeSet<u32> =
            self.table.samples().iter().flat_map(|sample| sample.processes.iter().map(|(pid, _)| *pid)).collect();
        for (filling, since) in std::mem::take(&mut self.releasing) {
            let (slot, generation) = filling;
            let Some(held) = self.held.get(&filling) else {
                self.news.event(Event::LeaseReleased { slot, generation });
                continue;
            };
            let leaks = held.pid.is_some_and(|pid| showing.contains(&pid));
            if leaks && since.elapsed() < RELEASE_LIMIT {
                self.releasing.push((filling, since));
                continue;
            }
            let evidence = if leaks { Evidence::None } else { Evidence::Gone };
            let released = self.holder.release(&held.handle, evidence);
            self.done(&released);
            match released {
                Err(error) if error.is_outage() => {
                    self.releasing.push((filling, since));
                    continue;
                }
                Err(error) => {
                    tracing::warn!("a lease could not be released: {}", chain(&error));
                    self.unsettled = true;
                }
                Ok(()) => self.unsettled |= leaks,
            }
            self.held.remove(&filling);
            self.news.event(Event::LeaseReleased { slot, generation });
        }
    }
}
