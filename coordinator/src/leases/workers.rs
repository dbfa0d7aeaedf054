//! The leases of the coordinator's own workers: waited for, asked for, attached, kept and given back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use model_boss_core::Event;
use model_boss_host::error_chain::chain;
use model_boss_lease_store::{
    AcquireRequest, Acquired, Evidence, LeaseHandle, Mode, ProcessTree, StoreError, Yielding, this_process,
};
use model_boss_protocol::ModelId;

use super::held::{Ask, Filling, Held, LoadKnown, Place};
use super::leaks::still_holds;
use super::ledger::Ledger;
use super::look::unexplained;

/// What will never fit is asked for again after this, all the same: devices may change.
const NEVER_FITS_RETRY: Duration = Duration::from_secs(10);

/// A store that failed is asked again after this long.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// So many processes of a lease are remembered without a look at which of them are gone.
const MOST_USERS: usize = 256;

/// A model is not asked back before it was held for this long (RC-18's hold).
const MIN_HOLD: Duration = Duration::from_secs(10);

impl Ledger {
    /// Asks for the bytes of a filling. Its model keeps its place in the queue if they are not given now.
    pub(super) fn acquire(&mut self, filling: Filling, ask: Ask) {
        // Every acquirer looks first: nothing is granted on an old or missing observation.
        self.look_again();
        let acquired = self.ask(&ask, Mode::Wait);
        let (slot, generation) = filling;
        let (reason, retry_after) = match acquired {
            Ok(Acquired::Granted(handle)) if !self.is_whole(&handle, &ask) => {
                self.drop_earlier(&ask.model);
                ("an earlier answer of the lease store got lost; it is asked anew".to_owned(), STORE_RETRY)
            }
            Ok(Acquired::Granted(handle)) => {
                self.places.remove(&ask.model);
                self.held.insert(
                    filling,
                    Held {
                        handle,
                        pid: None,
                        load: LoadKnown::Runs,
                        unexplained: Vec::new(),
                        doubts: BTreeMap::new(),
                        family: Vec::new(),
                        told: Vec::new(),
                    },
                );
                self.news.event(Event::LeaseGranted { slot, generation });
                return;
            }
            Ok(Acquired::Wait { reason, retry_after, .. }) => (reason, retry_after),
            Ok(Acquired::NeverFits { reason }) => (reason, NEVER_FITS_RETRY),
            Err(error) => (chain(&error), STORE_RETRY),
        };
        self.tell_others();
        self.news.event(Event::LeaseRefused { slot, generation, reason, retry_after });
    }

    /// Takes or keeps a place for a model that cannot be loaded yet, and asks others to make way if it may.
    pub(super) fn wait(&mut self, ask: Ask) {
        if ask.preempt {
            self.look_again();
        }
        let mode = if ask.preempt { Mode::ReservePreempt } else { Mode::Reserve };
        match self.ask(&ask, mode) {
            // A place is never granted anything: it is what an earlier question came to whose answer got lost.
            Ok(Acquired::Granted(_)) => self.drop_earlier(&ask.model),
            Ok(_) => {}
            Err(error) => tracing::debug!("the place of {} in the ledger's queue: {}", ask.model, chain(&error)),
        }
        self.tell_others();
    }

    /// Whether a lease is for what was asked for: the same request always gives the same lease, also after its answer was
    /// lost and other devices were chosen.
    fn is_whole(&self, handle: &LeaseHandle, ask: &Ask) -> bool {
        let granted = self.holder.parts(handle);
        granted.len() == ask.parts.len() && ask.parts.iter().all(|part| granted.contains(part))
    }

    /// Takes a request back together with a lease that nobody was let through to. The next one has another name.
    fn drop_earlier(&mut self, model: &ModelId) {
        tracing::debug!("an earlier lease of {model} is given back");
        self.forgo(model);
    }

    /// Leaves the queue.
    pub(super) fn forgo(&mut self, model: &ModelId) {
        let Some(place) = self.places.remove(model) else { return };
        let cancelled = self.holder.cancel(&place.request_id);
        self.done(&cancelled);
        if let Err(error) = cancelled {
            tracing::debug!("the place of {model} in the ledger's queue: {}", chain(&error));
            self.cancelling.push(place.request_id);
        }
    }

    /// Places are kept by asking again; who waits for others to make way hears each time who still has time.
    pub(super) fn keep_places(&mut self) {
        for request_id in std::mem::take(&mut self.cancelling) {
            // It may have come with a lease, which would be renewed for ever.
            if self.holder.cancel(&request_id).is_err() {
                self.cancelling.push(request_id);
            }
        }
        let heartbeat = self.holder.heartbeat();
        let due: Vec<Ask> = self
            .places
            .values()
            .filter(|place| place.ask.preempt || place.asked.elapsed() >= heartbeat)
            .map(|place| place.ask.clone())
            .collect();
        for ask in due {
            self.wait(ask);
        }
    }

    fn ask(&mut self, ask: &Ask, mode: Mode) -> Result<Acquired, StoreError> {
        let known = self.places.get(&ask.model).map(|place| place.request_id.clone());
        let request_id = known.unwrap_or_else(|| {
            self.asked += 1;
            format!("{}-{}", self.run, self.asked)
        });
        let Ask { model, parts, priority, yields, .. } = ask.clone();
        let place = Place { request_id: request_id.clone(), ask: ask.clone(), asked: Instant::now() };
        self.places.insert(model.clone(), place);
        let yielding = Yielding { preemptible: yields, min_hold: MIN_HOLD, ..Yielding::default() };
        let request = AcquireRequest::new(request_id, model.as_str(), priority, parts);
        let acquired = self.holder.acquire(AcquireRequest { mode, yielding, ..request });
        self.done(&acquired);
        acquired
    }

    pub(super) fn attach(&mut self, filling: Filling, pid: u32) -> Result<(), StoreError> {
        let Some(held) = self.held.get_mut(&filling) else { return Err(StoreError::NoSuchProcess(pid)) };
        let attached = self.holder.attach(&held.handle, pid).inspect(|()| {
            held.pid = Some(pid);
            held.unexplained = self.table.samples().iter().filter_map(unexplained).collect();
        });
        self.done(&attached);
        attached
    }

    /// Takes note that a load is complete.
    pub(super) fn loaded(&mut self, filling: Filling) {
        let Some(held) = self.held.get_mut(&filling) else { return };
        held.load = LoadKnown::Complete;
        if let (Some(pid), Ok(owner)) = (held.pid, this_process()) {
            let tree = ProcessTree::of_this_host(owner.pid_ns);
            held.family = tree.lineage(pid, &[]).first().map(|root| tree.members(root)).unwrap_or_default();
        }
        if self.state_loads() {
            // What is in use now is what it took.
            self.look_or_log();
        }
    }

    /// Notes which processes use devices for the leases of ours, and forgets those that are gone with their memory.
    pub(super) fn note_users(&mut self) -> Result<(), StoreError> {
        let (showing, tree) = (self.showing(), ProcessTree::of_this_host(this_process()?.pid_ns));
        for held in self.held.values_mut() {
            for user in self.holder.users_of(&held.handle) {
                if !held.family.contains(&user) {
                    held.family.push(user);
                }
            }
            // A sample may be older than the process: few are forgotten for it.
            if held.family.len() > MOST_USERS {
                held.family.retain(|process| showing.contains(&process.pid) || tree.shows(process));
            }
        }
        Ok(())
    }

    /// States which loads are complete, where only that tells whose memory is in use; whether there were any.
    pub(super) fn state_loads(&mut self) -> bool {
        let blind = |held: &Held| {
            let parts = self.holder.parts(&held.handle);
            parts.iter().any(|(device, _)| self.blind.contains_key(device))
        };
        let to_state = |held: &Held| held.load == LoadKnown::Complete && blind(held);
        let fillings: Vec<Filling> =
            self.held.iter().filter(|(_, held)| to_state(held)).map(|(filling, _)| *filling).collect();
        for filling in &fillings {
            let Some(held) = self.held.get_mut(filling) else { continue };
            let stated = self.holder.loaded(&held.handle);
            match &stated {
                Ok(()) => held.load = LoadKnown::Stated,
                // It is stated at the next look, or counts as complete after a while.
                Err(error) => tracing::warn!("a load could not be stated as complete: {}", chain(error)),
            }
            self.done(&stated);
        }
        !fillings.is_empty()
    }

    /// The heartbeat.
    pub(super) fn renew(&mut self) {
        self.rank();
        let renewed = self.holder.renew();
        self.done(&renewed);
        let kept = match renewed {
            Ok(kept) => kept,
            Err(error) => return tracing::debug!("leases could not be renewed: {}", chain(&error)),
        };
        let filling_of = |handle: &LeaseHandle| {
            self.held.iter().find(|(_, held)| held.handle == *handle).map(|(filling, _)| *filling)
        };
        for (slot, generation) in kept.lost.iter().filter_map(filling_of) {
            tracing::error!(%slot, "a lease is lost, its worker is ended");
            self.news.lease_lost(slot, generation);
        }
        for (handle, parts) in &kept.reduced {
            let sizes: Vec<String> = parts.iter().map(|(device, bytes)| format!("{bytes} on {device}")).collect();
            tracing::warn!(lease = %handle.lease, "the store forgot a lease and counts less of it now: {}", sizes.join(", "));
        }
        let mut revoked = BTreeSet::new();
        for asked in &kept.revoked {
            let Some((slot, generation)) = filling_of(&asked.handle) else { continue };
            revoked.insert((slot, generation));
            let (by, priority, remaining) = (asked.wanted_by.clone(), asked.priority, asked.remaining);
            self.news.event(Event::LeaseRevoked { slot, generation, by, priority, remaining });
        }
        for (slot, generation) in self.revoked.difference(&revoked) {
            self.news.event(Event::LeaseKept { slot: *slot, generation: *generation });
        }
        self.revoked = revoked;
    }

    /// Tells the ledger how important our leases are now: it may have to choose whom it asks to make way.
    fn rank(&mut self) {
        let known = std::mem::take(&mut *self.ranks.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (filling, priority, busy) in known {
            if let Some(held) = self.held.get(&filling) {
                self.holder.rank(&held.handle, priority, busy);
            }
        }
        let ranks = self.ranks.clone();
        self.news.look(move |scheduler| {
            let slots = scheduler.slots().into_iter().filter(|slot| slot.ready_at.is_some());
            let rank = slots.map(|slot| ((slot.id, slot.generation), slot.rank, slot.running > 0)).collect();
            *ranks.0.lock().unwrap_or_else(PoisonError::into_inner) = rank;
        });
    }

    /// Releases what no device shows any more. What one still shows when patience is over stays charged in the ledger until
    /// its processes are seen to be gone, and its device is said to be leaking (RC-18). While the store is out of reach they wait for it: nothing is forgotten.
    pub(super) fn finish_releases(&mut self) {
        let showing = self.showing();
        for (filling, since) in std::mem::take(&mut self.releasing) {
            let (slot, generation) = filling;
            let Some(held) = self.held.get(&filling) else {
                self.news.event(Event::LeaseReleased { slot, generation });
                continue;
            };
            // Every process of its tree counts, whichever session it is in: one may have outlived the worker.
            let mut left = self.holder.living_of(&held.handle, &showing);
            for process in held.family.iter().filter(|process| still_holds(process, &showing)) {
                // The ledger may know it too: its memory is counted once.
                if !left.contains(process) {
                    left.push(process.clone());
                }
            }
            let leaks = !left.is_empty();
            if leaks && since.elapsed() < self.return_patience {
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
                Ok(()) => {
                    self.unsettled |= leaks;
                    self.leaks.add(left);
                }
            }
            self.held.remove(&filling);
            self.news.event(Event::LeaseReleased { slot, generation });
        }
    }
}
