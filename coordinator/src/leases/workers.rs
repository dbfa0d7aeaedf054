//! The leases of the coordinator's own workers: queued, requested, attached, renewed and released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use model_boss_core::{Event, SlotKey};
use model_boss_lease_store::{
    AcquireRequest, Acquired, Evidence, LeaseHandle, Mode, ProcessTree, StoreError, Yielding, this_process,
};
use model_boss_protocol::{ByteCount, DeviceId, ModelId, chain};

use super::held::{Held, LeaseAsk, LoadKnown, QueuePlace};
use super::leaks::still_holds;
use super::ledger::LedgerOwner;
use super::look::unexplained;

/// The interval at which a request that will never fit is repeated, since devices may change.
const NEVER_FITS_RETRY: Duration = Duration::from_secs(10);

/// The pause before a failed store is tried again.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// The most processes of a lease before ended ones are dropped from the list.
const MOST_USERS: usize = 256;

/// The shortest time after the grant during which a model's lease is not revoked (RC-18's hold).
const MIN_HOLD: Duration = Duration::from_secs(10);

impl LedgerOwner {
    /// Requests the memory of a slot's generation. Its model keeps its place in the queue if it is not granted now.
    pub(super) fn acquire(&mut self, slot: SlotKey, ask: LeaseAsk) {
        // Devices are sampled before each grant, so that no grant relies on an old or missing sample.
        self.look_again();
        let acquired = self.ask(&ask, Mode::Wait);
        let (reason, retry_after) = match acquired {
            Ok(Acquired::Granted(handle)) if !self.is_whole(&handle, &ask) => {
                self.drop_earlier(&ask.model);
                ("an earlier answer of the lease store got lost; it is asked anew".to_owned(), STORE_RETRY)
            }
            Ok(Acquired::Granted(handle)) => {
                self.places.remove(&ask.model);
                self.held.insert(
                    slot,
                    Held {
                        handle,
                        pid: None,
                        load: LoadKnown::Runs,
                        unexplained: Vec::new(),
                        doubts: BTreeMap::new(),
                        family: Vec::new(),
                        may_hold: Vec::new(),
                        reported: Vec::new(),
                    },
                );
                self.news.event(Event::LeaseGranted { slot });
                return;
            }
            Ok(Acquired::Wait { reason, retry_after, .. }) => (reason, retry_after),
            Ok(Acquired::NeverFits { reason }) => (reason, NEVER_FITS_RETRY),
            Err(error) => (chain(&error), STORE_RETRY),
        };
        self.tell_others();
        self.news.event(Event::LeaseRefused { slot, reason, retry_after });
    }

    /// Takes or keeps a place for a model that cannot be loaded yet, and revokes other leases if it may.
    pub(super) fn wait(&mut self, ask: LeaseAsk) {
        if ask.preempt {
            self.look_again();
        }
        let mode = if ask.preempt { Mode::ReservePreempt } else { Mode::Reserve };
        match self.ask(&ask, mode) {
            // A request for a place is never granted: this grant answers an earlier request whose answer was lost.
            Ok(Acquired::Granted(_)) => self.drop_earlier(&ask.model),
            Ok(_) => {}
            Err(error) => tracing::debug!("the place of {} in the ledger's queue: {}", ask.model, chain(&error)),
        }
        self.tell_others();
    }

    /// Whether a lease has the requested size on the requested devices. A repeated request gives the earlier lease,
    /// even if its answer was lost and other devices were chosen since.
    fn is_whole(&self, handle: &LeaseHandle, ask: &LeaseAsk) -> bool {
        let granted = self.holder.parts(handle);
        granted.len() == ask.parts.len() && ask.parts.iter().all(|part| granted.contains(part))
    }

    /// Cancels a request together with a lease without attached processes. The model's next request gets another id.
    fn drop_earlier(&mut self, model: &ModelId) {
        tracing::debug!("an earlier lease of {model} is given back");
        self.cancel(model);
    }

    /// Cancels a model's place in the queue.
    pub(super) fn cancel(&mut self, model: &ModelId) {
        let Some(place) = self.places.remove(model) else { return };
        let cancelled = self.holder.cancel(&place.request_id);
        self.done(&cancelled);
        if let Err(error) = cancelled {
            tracing::debug!("the place of {model} in the ledger's queue: {}", chain(&error));
            self.cancelling.push(place.request_id);
        }
    }

    /// Renews the places in the queue, and updates the rest of the grace of leases that are revoked for them.
    pub(super) fn keep_places(&mut self) {
        for request_id in std::mem::take(&mut self.cancelling) {
            // The request may have been granted, and its lease would be renewed forever.
            if self.holder.cancel(&request_id).is_err() {
                self.cancelling.push(request_id);
            }
        }
        let heartbeat = self.holder.heartbeat();
        let due: Vec<LeaseAsk> = self
            .places
            .values()
            .filter(|place| place.ask.preempt || place.renewed.elapsed() >= heartbeat)
            .map(|place| place.ask.clone())
            .collect();
        for ask in due {
            self.wait(ask);
        }
    }

    fn ask(&mut self, ask: &LeaseAsk, mode: Mode) -> Result<Acquired, StoreError> {
        let known = self.places.get(&ask.model).map(|place| place.request_id.clone());
        let request_id = known.unwrap_or_else(|| {
            self.asked += 1;
            format!("{}-{}", self.run, self.asked)
        });
        let LeaseAsk { model, parts, priority, yields, .. } = ask.clone();
        let place = QueuePlace { request_id: request_id.clone(), ask: ask.clone(), renewed: Instant::now() };
        self.places.insert(model.clone(), place);
        let yielding = Yielding { preemptible: yields, min_hold: MIN_HOLD, ..Yielding::default() };
        let request = AcquireRequest::new(request_id, model.as_str(), priority, parts);
        let acquired = self.holder.acquire(AcquireRequest { mode, yielding, ..request });
        self.done(&acquired);
        acquired
    }

    pub(super) fn attach(&mut self, slot: SlotKey, pid: u32) -> Result<(), StoreError> {
        let Some(held) = self.held.get_mut(&slot) else { return Err(StoreError::NoSuchProcess(pid)) };
        let attached = self.holder.attach(&held.handle, pid).inspect(|()| {
            held.pid = Some(pid);
            held.unexplained = self.table.samples().iter().filter_map(unexplained).collect();
        });
        self.done(&attached);
        attached
    }

    /// Records that a load is complete.
    pub(super) fn loaded(&mut self, slot: SlotKey, may_hold: Vec<(DeviceId, ByteCount)>) {
        let Some(held) = self.held.get_mut(&slot) else { return };
        held.may_hold = may_hold;
        held.load = LoadKnown::Complete;
        if let (Some(pid), Ok(owner)) = (held.pid, this_process()) {
            let tree = ProcessTree::of_this_host(owner.pid_ns);
            held.family = tree.lineage(pid, &[]).first().map(|root| tree.members(root)).unwrap_or_default();
        }
        if self.state_loads() {
            // The memory in use now is what the load took.
            self.look_or_log();
        }
    }

    /// Records which processes use devices for this coordinator's leases, and drops those that have ended and released
    /// their memory.
    pub(super) fn note_users(&mut self) -> Result<(), StoreError> {
        let (showing, tree) = (self.showing(), ProcessTree::of_this_host(this_process()?.pid_ns));
        for held in self.held.values_mut() {
            for user in self.holder.users_of(&held.handle) {
                if !held.family.contains(&user) {
                    held.family.push(user);
                }
            }
            // A sample may be older than the process, so processes are dropped only when there are many.
            if held.family.len() > MOST_USERS {
                held.family.retain(|process| showing.contains(&process.pid) || tree.shows(process));
            }
        }
        Ok(())
    }

    /// Records completed loads in the ledger, on devices whose accounting needs that. Returns whether the ledger has
    /// changed.
    pub(super) fn state_loads(&mut self) -> bool {
        let blind = |held: &Held| {
            let parts = self.holder.parts(&held.handle);
            parts.iter().any(|(device, _)| self.blind.contains_key(device))
        };
        let to_state = |held: &Held| held.load == LoadKnown::Complete && blind(held);
        let slots: Vec<SlotKey> = self.held.iter().filter(|(_, held)| to_state(held)).map(|(slot, _)| *slot).collect();
        for slot in &slots {
            let Some(held) = self.held.get_mut(slot) else { continue };
            let stated = self.holder.loaded(&held.handle);
            match &stated {
                Ok(()) => held.load = LoadKnown::Stated,
                // The next sample repeats the attempt; after a while the load counts as complete anyway.
                Err(error) => tracing::warn!("a load could not be stated as complete: {}", chain(error)),
            }
            self.done(&stated);
        }
        !slots.is_empty()
    }

    /// Renews all leases.
    pub(super) fn renew(&mut self) {
        self.rank();
        let renewed = self.holder.renew();
        self.done(&renewed);
        let kept = match renewed {
            Ok(kept) => kept,
            Err(error) => return tracing::debug!("leases could not be renewed: {}", chain(&error)),
        };
        let slot_of =
            |handle: &LeaseHandle| self.held.iter().find(|(_, held)| held.handle == *handle).map(|(slot, _)| *slot);
        for slot in kept.lost.iter().filter_map(slot_of) {
            tracing::error!(slot = %slot.id, "a lease is lost, its worker is ended");
            self.news.lease_lost(slot);
        }
        for (handle, parts) in &kept.reduced {
            let sizes: Vec<String> = parts.iter().map(|(device, bytes)| format!("{bytes} on {device}")).collect();
            tracing::warn!(lease = %handle.lease, "the store forgot a lease and counts less of it now: {}", sizes.join(", "));
        }
        let mut revoked = BTreeSet::new();
        for asked in &kept.revoked {
            let Some(slot) = slot_of(&asked.handle) else { continue };
            revoked.insert(slot);
            let (by, priority, remaining) = (asked.wanted_by.clone(), asked.priority, asked.remaining);
            self.news.event(Event::LeaseRevoked { slot, by, priority, remaining });
        }
        for &slot in self.revoked.difference(&revoked) {
            self.news.event(Event::LeaseKept { slot });
        }
        self.revoked = revoked;
    }

    /// Records the current priorities of this coordinator's leases in the ledger, which may have to choose a lease to
    /// revoke.
    fn rank(&mut self) {
        let known = std::mem::take(&mut *self.ranks.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (slot, priority, busy) in known {
            if let Some(held) = self.held.get(&slot) {
                self.holder.rank(&held.handle, priority, busy);
            }
        }
        let ranks = self.ranks.clone();
        self.news.look(move |scheduler| {
            let slots = scheduler.slots().into_iter().filter(|slot| slot.ready_at.is_some());
            let rank = slots.map(|slot| (slot.key(), slot.rank, slot.running > 0)).collect();
            *ranks.0.lock().unwrap_or_else(PoisonError::into_inner) = rank;
        });
    }

    /// Releases leases whose memory no device shows any more. If a device still shows memory of a lease after the
    /// patience, the lease stays charged until its processes are seen to be gone. The device is then reported as
    /// leaking (RC-18). While the store is unreachable, releases wait.
    pub(super) fn finish_releases(&mut self) {
        let showing = self.showing();
        for (slot, since) in std::mem::take(&mut self.releasing) {
            let Some(held) = self.held.get(&slot) else {
                self.news.event(Event::LeaseReleased { slot });
                continue;
            };
            // Every process of the worker's tree counts, whichever session it is in: one may have outlived the worker.
            let mut left = self.holder.living_of(&held.handle, &showing);
            for process in held.family.iter().filter(|process| still_holds(process, &showing)) {
                // The ledger may contain the process too: its memory is counted once.
                if !left.contains(process) {
                    left.push(process.clone());
                }
            }
            let leaks = !left.is_empty();
            if leaks && since.elapsed() < self.return_patience {
                self.releasing.push((slot, since));
                continue;
            }
            let evidence = if leaks { Evidence::None } else { Evidence::Gone };
            let released = self.holder.release(&held.handle, evidence);
            self.done(&released);
            match released {
                Err(error) if error.is_outage() => {
                    self.releasing.push((slot, since));
                    continue;
                }
                Err(error) => {
                    tracing::warn!("a lease could not be released: {}", chain(&error));
                    self.unsettled = true;
                }
                Ok(()) => {
                    self.unsettled |= leaks;
                    self.leaks.add(left);
                }
            }
            self.held.remove(&slot);
            self.news.event(Event::LeaseReleased { slot });
        }
    }
}
