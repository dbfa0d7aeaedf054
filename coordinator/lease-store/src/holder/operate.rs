//! Opening a ledger, reading it, and one operation on it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use model_boss_lease::{
    DeviceKey, LeaseDurations, Ledger, Op, Outcome, Owner, OwnerKind, StoreTime, after_loss, apply, read_from,
};
use model_boss_protocol::{ByteCount, DeviceId};

use super::state::{Holder, Reach};
use crate::capability::CapabilityKey;
use crate::claim::ClaimScope;
use crate::mark::Mark;
use crate::place::HostFolders;
use crate::race::{RealPacing, pause_after};
use crate::store::{Document, Etag, LedgerStore as _, Snapshot, Store, Swap};
use crate::view::{LeaseView, WaiterView};
use crate::{EmbeddedStore, RedisStore, StoreError, host};

impl Holder {
    /// Opens the embedded store in `state_dir`. [`Holder::settle`] should follow.
    ///
    /// `runtime_dir` is for tests: the folder for claims and for the mark that this boot's ledger had leases. Claims
    /// keep two coordinators of this host from counting one device twice. By default both are in folders of the whole
    /// host.
    pub fn embedded(
        state_dir: &Path,
        runtime_dir: Option<&Path>,
        owner: Owner,
        terms: LeaseDurations,
    ) -> Result<Self, StoreError> {
        let place = HostFolders::of(runtime_dir)?;
        let mut store = EmbeddedStore::open(state_dir)?;
        let boot_id = host::boot_id()?;
        let mark = Mark::open(&place, &boot_id, store.describe(), Some(store.path()));
        let empty = Ledger::new(boot_id, store.earlier_fence()?, terms);
        let claim = ClaimScope::Alone(format!("state folder {}", state_dir.display()));
        Self::over(Box::new(store), empty, claim, (place, mark), owner)
    }

    /// Opens the ledger that this host's processes share in Redis. `runtime_dir` is for tests ([`Holder::embedded`]),
    /// and must be the same for all these processes.
    pub fn redis(
        url: &str,
        runtime_dir: Option<&Path>,
        owner: Owner,
        terms: LeaseDurations,
    ) -> Result<Self, StoreError> {
        Self::redis_of(url, host::boot_id()?, runtime_dir, owner, terms)
    }

    /// Opens a separate ledger in Redis for a simulated machine, whose promises do not concern the real one. `name`
    /// distinguishes such ledgers.
    pub fn redis_beside(
        url: &str,
        name: &str,
        runtime_dir: Option<&Path>,
        owner: Owner,
        terms: LeaseDurations,
    ) -> Result<Self, StoreError> {
        Self::redis_of(url, format!("{}-{name}", host::boot_id()?), runtime_dir, owner, terms)
    }

    fn redis_of(
        url: &str,
        boot_id: String,
        runtime_dir: Option<&Path>,
        owner: Owner,
        terms: LeaseDurations,
    ) -> Result<Self, StoreError> {
        let place = HostFolders::of(runtime_dir)?;
        let store = RedisStore::open(url, &boot_id)?;
        let ledger = format!("ledger {}", store.server());
        let mark = Mark::open(&place, &boot_id, ledger.clone(), None);
        let empty = Ledger::new(boot_id, model_boss_lease::Token(0), terms);
        Self::over(Box::new(store), empty, ClaimScope::Shared(ledger), (place, mark), owner)
    }

    /// A holder over any store. `empty` is the initial ledger if the store has none.
    pub(super) fn over(
        store: Box<dyn Store>,
        mut empty: Ledger,
        claim: ClaimScope,
        (place, mark): (HostFolders, Mark),
        owner: Owner,
    ) -> Result<Self, StoreError> {
        empty.fence = empty.fence.max(mark.fence());
        let (devices, held, seen, reach) = (BTreeMap::new(), BTreeMap::new(), empty.clone(), Reach::default());
        let (met, capabilities, pacing) = (false, CapabilityKey::random()?, Box::new(RealPacing::new()));
        let mut holder = Self {
            store,
            owner,
            empty,
            claim,
            place,
            mark,
            devices,
            held,
            seen,
            met,
            reach,
            capabilities,
            pacing,
            below: BTreeMap::new(),
        };
        // Reads the ledger, so that an invalid document is reported here and not at the first load.
        holder.apply(&|_| Op::Renew { leases: Vec::new() })?;
        if !holder.is_alone() {
            // The mark is written before the first acquire.
            holder.mark.begun();
        }
        Ok(holder)
    }

    /// Whether no other process writes this ledger.
    fn is_alone(&self) -> bool {
        matches!(self.claim, ClaimScope::Alone(_))
    }

    /// Conditions that hide other processes of this host, or that prevent a loss from being noticed.
    pub fn warnings(&self) -> Vec<String> {
        self.place.warning.iter().chain(&self.mark.trouble).cloned().collect()
    }

    /// A name that distinguishes this process from all others that ever used the ledger, for request ids.
    pub fn name(&self) -> String {
        let process = &self.owner.process;
        let namespace: String = process.pid_ns.chars().filter(char::is_ascii_digit).collect();
        format!("{namespace}-{}-{}", process.pid, process.start_time)
    }

    /// The interval at which [`Holder::renew`] is due.
    pub fn heartbeat(&self) -> Duration {
        self.seen.terms.heartbeat
    }

    /// The time after which a lease expires unless renewed.
    pub fn term(&self) -> Duration {
        self.seen.terms.lease
    }

    /// Whether a process started or a lease ended on a device after its last observation, in the ledger as last read.
    /// The call does no I/O.
    pub fn is_unsettled(&self) -> bool {
        self.seen.devices.values().any(|device| device.unsettled_since.is_some() || device.observed_at.is_none())
    }

    /// The rest of the recovery window, in which no lease is granted, in the ledger as last read.
    pub fn recovering(&self) -> Option<Duration> {
        self.seen.recovering()
    }

    /// The reason why the store cannot be used now: its last read or write failed. The call does no I/O.
    pub fn outage(&self) -> Option<&str> {
        self.reach.read.as_deref().or(self.reach.write.as_deref())
    }

    /// All leases of this host in the ledger as last read. The call does no I/O.
    pub fn leases(&self) -> Vec<LeaseView> {
        self.seen.leases.iter().map(|(id, lease)| LeaseView::of(id, lease, &self.seen)).collect()
    }

    /// The waiting requests in the ledger as last read, in the order of arrival. The call does no I/O.
    pub fn waiters(&self) -> Vec<WaiterView> {
        WaiterView::queue(&self.seen)
    }

    /// Reads the ledger again, for display.
    pub fn refresh(&mut self) -> Result<(), StoreError> {
        self.apply(&|_| Op::Renew { leases: Vec::new() }).map(drop)
    }

    /// The kind and address of the store, human-readable.
    pub fn describe(&self) -> String {
        self.store.describe()
    }

    /// Loads a small document that all users of the store share.
    pub fn load_document(&mut self, name: &str) -> Result<Document, StoreError> {
        self.reach.read(self.store.load_document(name))
    }

    /// Changes a small document if no other process did.
    pub fn swap_document(&mut self, name: &str, loaded: &Document, content: &str) -> Result<Swap, StoreError> {
        self.reach.written(self.store.swap_document(name, loaded, content))
    }

    pub(super) fn key(&self, device: &DeviceId) -> Result<DeviceKey, StoreError> {
        let claimed = self.devices.get(device).ok_or_else(|| StoreError::Undeclared(device.clone()))?;
        Ok(claimed.declaration.key.clone())
    }

    pub(super) fn keyed(&self, parts: &[(DeviceId, ByteCount)]) -> Result<Vec<(DeviceKey, ByteCount)>, StoreError> {
        parts.iter().map(|(device, bytes)| Ok((self.key(device)?, *bytes))).collect()
    }

    /// Parts by the devices' names for display, if this process has them.
    pub(super) fn named(&self, parts: &[(DeviceKey, ByteCount)]) -> Vec<(DeviceId, ByteCount)> {
        let name = |key: &DeviceKey| {
            self.devices.iter().find(|(_, claimed)| claimed.declaration.key == *key).map(|(device, _)| device.clone())
        };
        parts.iter().filter_map(|(key, bytes)| Some((name(key)?, *bytes))).collect()
    }

    /// The time for which an operation may lose races before it fails: until the next heartbeat is due.
    fn patience(&self) -> Duration {
        self.seen.terms.heartbeat
    }

    /// Performs one operation: read, rules, swap, and again after a lost race. The operation may depend on the
    /// store's time of reading.
    pub(super) fn apply(&mut self, op: &dyn Fn(StoreTime) -> Op) -> Result<Outcome, StoreError> {
        let (begun, limit) = (self.pacing.now(), self.patience());
        let mut losses = 0;
        loop {
            let (loaded, mut before) = self.read()?;
            let mut ledger = before.as_ref().unwrap_or(&self.empty).clone();
            let lost = match &before {
                None => self.met || self.mark.is_leased(),
                Some(_) => self.is_alone() && self.mark.is_ahead_of(loaded.etag),
            };
            if lost {
                ledger.fence = ledger.fence.max(self.empty.fence);
                after_loss(&mut ledger, loaded.now);
            }
            if let Some(run_id) = &loaded.run_id {
                read_from(&mut ledger, loaded.now, run_id);
            }
            if self.owner.kind == OwnerKind::Coordinator {
                ledger.adopt(&self.empty.terms);
            }
            // A ledger after a loss has no devices. A request that comes before the next observation would be refused
            // as one for an unknown device, although it only has to wait.
            for declaration in self.missing_from(&ledger) {
                apply(&mut ledger, loaded.now, declaration);
            }
            let outcome = apply(&mut ledger, loaded.now, op(loaded.now));
            // A change of time alone is not worth a write.
            if let Some(before) = &mut before {
                before.last_time = ledger.last_time;
            }
            let swap = if before.as_ref() == Some(&ledger) {
                Swap::Done
            } else {
                let document = serde_json::to_string(&ledger).map_err(StoreError::Encode)?;
                let next = Etag::random()?;
                if self.is_alone() {
                    self.mark.write(loaded.etag, before.as_ref(), next, &ledger);
                }
                self.reach.written(self.store.compare_and_swap(&loaded, next, &document))?
            };
            if swap == Swap::Done {
                // If the ledger is lost, its tokens continue from this one, even if the clock is set back.
                self.empty.fence = self.empty.fence.max(ledger.fence);
                self.seen = ledger;
                self.met = true;
                return Ok(outcome);
            }
            losses += 1;
            let pause = pause_after(losses, self.pacing.chance());
            if self.pacing.now().saturating_sub(begun).saturating_add(pause) > limit {
                return Err(StoreError::Contended(losses));
            }
            self.pacing.pause(pause);
        }
    }

    /// Reads the document, and the ledger in it.
    fn read(&mut self) -> Result<(Snapshot, Option<Ledger>), StoreError> {
        let read = self.store.load().and_then(|loaded| {
            let ledger = loaded.document.as_deref().map(serde_json::from_str).transpose();
            let ledger = ledger.map_err(|error| self.corrupt(&error))?;
            Ok((loaded, ledger))
        });
        self.reach.read(read)
    }

    fn corrupt(&self, error: &serde_json::Error) -> StoreError {
        StoreError::Corrupt { what: self.store.describe(), detail: error.to_string() }
    }
}

pub(super) fn unexpected(operation: &'static str, outcome: Outcome) -> StoreError {
    match outcome {
        Outcome::Refused(refusal) => StoreError::Refused(refusal),
        Outcome::Recovering { retry_after } => StoreError::Recovering(retry_after),
        _ => StoreError::Unexpected(operation),
    }
}
