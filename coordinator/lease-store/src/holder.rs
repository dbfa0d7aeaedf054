//! How a process uses the ledger: each call is read, rules, swap, until the swap succeeds. Decides nothing itself.
//!
//! Blocks on the store; call it from a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model_boss_lease::{
    DeviceKey, Evidence, LeaseId, Ledger, Op, Outcome, Owner, OwnerKind, Process, ProcessUse, StoreTime, Terms, Token,
    apply,
};
use model_boss_protocol::{ByteCount, DeviceId, Priority};

use crate::lock::{LockFile, own_folder};
use crate::store::{LedgerStore, Swap};
use crate::view::LeaseView;
use crate::{EmbeddedStore, StoreError, host};

/// After so many lost races the caller is told.
const ATTEMPTS: u32 = 16;

/// An observation that differs by less is not written again while it is fresh.
const SMALL_CHANGE: ByteCount = ByteCount::mib(64);

/// A process that holds leases.
pub struct Holder {
    store: Box<dyn LedgerStore>,
    owner: Owner,
    /// What a ledger begins with: this boot, these terms.
    empty: Ledger,
    state_dir: PathBuf,
    runtime_dir: PathBuf,
    devices: BTreeMap<DeviceId, Claimed>,
    held: BTreeMap<LeaseId, LeaseHandle>,
    /// The ledger as this process last saw it.
    seen: Ledger,
}

/// A device that this process has locked for its host.
struct Claimed {
    key: DeviceKey,
    written: Option<Written>,
    _lock: LockFile,
}

/// The last observation that was written.
struct Written {
    at: Instant,
    used: Option<ByteCount>,
    processes: BTreeMap<u32, ByteCount>,
}

/// A device that can be leased.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceDeclaration {
    /// The name people use.
    pub device: DeviceId,
    /// What it really is.
    pub key: DeviceKey,
    /// All of its memory that may be used.
    pub capacity: ByteCount,
    /// The part of it that is never leased.
    pub reserve: ByteCount,
}

/// What a probe saw of a device in one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Which device.
    pub device: DeviceId,
    /// Bytes in use by anybody; `None` when the driver would not say.
    pub used: Option<ByteCount>,
    /// Bytes in use by each process that the probe could tell apart. Descendants of leased processes are found here.
    pub processes: Vec<(u32, ByteCount)>,
    /// When the sample was taken.
    pub sampled_at: Instant,
}

/// A wish for bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct AcquireRequest {
    /// The caller's name for this wish; asking again gives the same lease. Unique among everything ever asked.
    pub request_id: String,
    /// For people: the model.
    pub label: String,
    /// How important it is.
    pub priority: Priority,
    /// How much on which device; each device once.
    pub parts: Vec<(DeviceId, ByteCount)>,
}

/// What came of a wish.
#[derive(Clone, Debug, PartialEq)]
pub enum Acquired {
    /// The bytes are promised.
    Granted(LeaseHandle),
    /// Not now.
    Wait {
        /// Why, for people.
        reason: String,
        /// When asking again makes sense, if nothing is heard before.
        retry_after: Duration,
    },
    /// Not on this host, ever.
    NeverFits {
        /// Why, for people.
        reason: String,
    },
}

/// A held lease. Dropping it releases nothing: only [`Holder::release`] knows what is shown about the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHandle {
    /// Its name.
    pub lease: LeaseId,
    /// What proves it.
    pub token: Token,
}

/// A lease whose owner is gone and whose processes are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The lease.
    pub lease: LeaseId,
    /// What it was for.
    pub label: String,
    /// The processes that still live (or that left processes of their group behind).
    pub processes: Vec<Process>,
}

impl Holder {
    /// Opens the embedded store in `state_dir`. `runtime_dir` holds the locks that keep two coordinators of this host
    /// from counting one device twice. Call [`Holder::settle`] next.
    pub fn embedded(state_dir: &Path, runtime_dir: &Path, owner: Owner, terms: Terms) -> Result<Self, StoreError> {
        let runtime_dir = own_folder(runtime_dir)?;
        let store = EmbeddedStore::open(state_dir)?;
        let empty = Ledger::new(host::boot_id()?, store.earlier_fence()?, terms);
        Self::over(Box::new(store), empty, (state_dir, &runtime_dir), owner)
    }

    /// A holder over any store. `empty` is the ledger to begin with when the store has none.
    fn over(
        store: Box<dyn LedgerStore>,
        empty: Ledger,
        (state_dir, runtime_dir): (&Path, &Path),
        owner: Owner,
    ) -> Result<Self, StoreError> {
        let (state_dir, runtime_dir) = (state_dir.to_owned(), runtime_dir.to_owned());
        let (devices, held, seen) = (BTreeMap::new(), BTreeMap::new(), empty.clone());
        let mut holder = Self { store, owner, empty, state_dir, runtime_dir, devices, held, seen };
        // Reads the ledger, so that a file that cannot be understood is reported here and not at the first load.
        holder.apply(&Op::Renew { leases: Vec::new() })?;
        Ok(holder)
    }

    /// Locks a device for this host, if it is not yet, and states what it has.
    pub fn declare(&mut self, declaration: &DeviceDeclaration) -> Result<(), StoreError> {
        let DeviceDeclaration { device, key, capacity, reserve } = declaration;
        if self.devices.get(device).is_none_or(|claimed| claimed.key != *key) {
            let name = device.to_string();
            let lock = LockFile::of_device(&self.runtime_dir, key, &name, &self.state_dir)?;
            self.devices.insert(device.clone(), Claimed { key: key.clone(), written: None, _lock: lock });
        }
        let (device, name) = (key.clone(), device.to_string());
        match self.apply(&Op::Declare { device, name, capacity: *capacity, reserve: *reserve })? {
            Outcome::Noted => Ok(()),
            other => Err(unexpected("declare", other)),
        }
    }

    /// Writes down what a device shows, unless it shows what was written a moment ago. Gives the bytes in use by
    /// programs that hold no lease, where known.
    pub fn observe(&mut self, observation: &Observation) -> Result<Option<ByteCount>, StoreError> {
        let Observation { device, used, processes, sampled_at } = observation;
        let key = self.key(device)?;
        let unsettled = self.seen.devices.get(&key).is_none_or(|device| device.unsettled_since.is_some());
        let fresh = Written { at: *sampled_at, used: *used, processes: processes.iter().copied().collect() };
        let known = self.devices.get(device).and_then(|claimed| claimed.written.as_ref());
        if unsettled || known.is_none_or(|known| known.differs(&fresh, self.empty.terms.heartbeat)) {
            let namespace = &self.owner.process.pid_ns;
            let processes = processes
                .iter()
                .map(|(pid, bytes)| ProcessUse { lineage: host::lineage(*pid, namespace), bytes: *bytes })
                .collect();
            // The store's clock and ours are the same kernel's; only the age travels between them.
            let age = u64::try_from(sampled_at.elapsed().as_micros()).unwrap_or(u64::MAX);
            let sampled_at = StoreTime(host::time_since_boot()?.0.saturating_sub(age));
            match self.apply(&Op::Observe { device: key.clone(), used: *used, processes, sampled_at })? {
                Outcome::Noted => {}
                other => return Err(unexpected("observe", other)),
            }
            if let Some(claimed) = self.devices.get_mut(device) {
                claimed.written = Some(fresh);
            }
        }
        Ok(self.seen.devices.get(&key).and_then(|device| device.foreign))
    }

    /// Asks for bytes: all parts or none.
    pub fn acquire(&mut self, request: AcquireRequest) -> Result<Acquired, StoreError> {
        let AcquireRequest { request_id, label, priority, parts } = request;
        let mut owner = self.owner.clone();
        owner.label = label;
        let parts = self.keyed(parts)?;
        Ok(match self.apply(&Op::Acquire { request_id, owner, priority, parts })? {
            Outcome::Granted(grant) => {
                let handle = LeaseHandle { lease: grant.lease, token: grant.token };
                self.held.insert(handle.lease.clone(), handle.clone());
                Acquired::Granted(handle)
            }
            Outcome::Wait(reason) => Acquired::Wait { reason: reason.to_string(), retry_after: Duration::from_secs(1) },
            Outcome::NeverFits(reason) => Acquired::NeverFits { reason: reason.to_string() },
            other => return Err(unexpected("acquire", other)),
        })
    }

    /// The gate: only after this may the process touch the device. After [`StoreError::Lost`] it must not.
    pub fn attach(&mut self, handle: &LeaseHandle, pid: u32) -> Result<(), StoreError> {
        let process = host::process(pid)?;
        let LeaseHandle { lease, token } = handle.clone();
        match self.apply(&Op::Attach { lease, token, process, boot_id: self.empty.boot_id.clone() })? {
            Outcome::Attached => Ok(()),
            Outcome::Lost => {
                self.held.remove(&handle.lease);
                Err(StoreError::Lost(handle.lease.clone()))
            }
            other => Err(unexpected("attach", other)),
        }
    }

    /// Keeps every held lease alive. Gives those that are lost: their processes must be ended.
    pub fn renew(&mut self) -> Result<Vec<LeaseHandle>, StoreError> {
        if self.held.is_empty() {
            return Ok(Vec::new());
        }
        let leases = self.held.values().map(|handle| (handle.lease.clone(), handle.token)).collect();
        match self.apply(&Op::Renew { leases })? {
            Outcome::Renewed { lost } => Ok(lost.iter().filter_map(|lease| self.held.remove(lease)).collect()),
            other => Err(unexpected("renew", other)),
        }
    }

    /// How often [`Holder::renew`] is due.
    pub fn heartbeat(&self) -> Duration {
        self.empty.terms.heartbeat
    }

    /// Makes a lease smaller or, where there is room, larger. `None` means done; otherwise why not, for people.
    pub fn resize(
        &mut self,
        handle: &LeaseHandle,
        parts: Vec<(DeviceId, ByteCount)>,
    ) -> Result<Option<String>, StoreError> {
        let parts = self.keyed(parts)?;
        let LeaseHandle { lease, token } = handle.clone();
        match self.apply(&Op::Resize { lease, token, parts })? {
            Outcome::Resized => Ok(None),
            Outcome::Wait(reason) => Ok(Some(reason.to_string())),
            Outcome::NeverFits(reason) => Ok(Some(reason.to_string())),
            Outcome::Lost => Err(StoreError::Lost(handle.lease.clone())),
            other => Err(unexpected("resize", other)),
        }
    }

    /// Gives the bytes back. Without evidence they stay counted until [`Holder::settle`] finds the processes gone.
    /// Releasing what is no longer held is no error.
    pub fn release(&mut self, handle: &LeaseHandle, evidence: Evidence) -> Result<(), StoreError> {
        let LeaseHandle { lease, token } = handle.clone();
        let outcome = self.apply(&Op::Release { lease, token, evidence })?;
        self.held.remove(&handle.lease);
        match outcome {
            Outcome::Released | Outcome::InLimbo | Outcome::Lost => Ok(()),
            other => Err(unexpected("release", other)),
        }
    }

    /// Ends every lease that nobody holds any more and whose processes are gone. Gives those of former coordinators
    /// whose processes still live: they are ours to end, and then to settle again.
    pub fn settle(&mut self) -> Result<Vec<Leftover>, StoreError> {
        let mut living = Vec::new();
        for (id, lease) in self.seen.leases.clone() {
            let mine = lease.owner.process == self.owner.process;
            let abandoned = if mine { !self.held.contains_key(&id) } else { host::is_gone(&lease.owner.process) };
            if !abandoned {
                continue;
            }
            let suspects: BTreeSet<_> = lease.pids.iter().chain([&lease.owner.process]).cloned().collect();
            let (gone, alive): (Vec<_>, Vec<_>) = suspects.into_iter().partition(host::is_gone);
            let seen_from = self.owner.process.pid_ns.clone();
            match self.apply(&Op::ConfirmDead { lease: id.clone(), gone, seen_from })? {
                Outcome::Released | Outcome::Lost => {}
                Outcome::NotShown => {
                    let processes: Vec<_> = alive.into_iter().filter(|process| lease.pids.contains(process)).collect();
                    if lease.owner.kind == OwnerKind::Coordinator && !processes.is_empty() {
                        living.push(Leftover { lease: id, label: lease.owner.label, processes });
                    }
                }
                other => return Err(unexpected("confirm dead", other)),
            }
        }
        Ok(living)
    }

    /// Every lease of this host, as last seen. No I/O.
    pub fn leases(&self) -> Vec<LeaseView> {
        self.seen.leases.iter().map(|(id, lease)| LeaseView::of(id, lease, &self.seen)).collect()
    }

    /// What and where the store is, for people.
    pub fn describe(&self) -> String {
        self.store.describe()
    }

    fn key(&self, device: &DeviceId) -> Result<DeviceKey, StoreError> {
        let claimed = self.devices.get(device).ok_or_else(|| StoreError::Undeclared(device.clone()))?;
        Ok(claimed.key.clone())
    }

    fn keyed(&self, parts: Vec<(DeviceId, ByteCount)>) -> Result<Vec<(DeviceKey, ByteCount)>, StoreError> {
        parts.into_iter().map(|(device, bytes)| Ok((self.key(&device)?, bytes))).collect()
    }

    /// One operation: read, rules, swap; again when somebody else was faster.
    fn apply(&mut self, op: &Op) -> Result<Outcome, StoreError> {
        for _ in 0..ATTEMPTS {
            let loaded = self.store.load()?;
            let mut before: Option<Ledger> = match &loaded.document {
                Some(document) => Some(serde_json::from_str(document).map_err(|error| self.corrupt(&error))?),
                None => None,
            };
            let mut ledger = before.as_ref().unwrap_or(&self.empty).clone();
            ledger.adopt(&self.empty.terms);
            let outcome = apply(&mut ledger, loaded.now, op.clone());
            // Time alone is not worth a write.
            if let Some(before) = &mut before {
                before.last_time = ledger.last_time;
            }
            let swap = if before.as_ref() == Some(&ledger) {
                Swap::Done
            } else {
                let document = serde_json::to_string(&ledger).map_err(StoreError::Encode)?;
                self.store.compare_and_swap(&loaded, &document)?
            };
            if swap == Swap::Done {
                self.seen = ledger;
                return Ok(outcome);
            }
        }
        Err(StoreError::Contended(ATTEMPTS))
    }

    fn corrupt(&self, error: &serde_json::Error) -> StoreError {
        StoreError::Corrupt { what: self.store.describe(), detail: error.to_string() }
    }
}

impl Written {
    fn differs(&self, fresh: &Self, heartbeat: Duration) -> bool {
        let far = |a: Option<ByteCount>, b: Option<ByteCount>| match (a, b) {
            (Some(a), Some(b)) => a.saturating_sub(b).max(b.saturating_sub(a)) > SMALL_CHANGE,
            (a, b) => a.is_some() != b.is_some(),
        };
        let pids: BTreeSet<_> = self.processes.keys().chain(fresh.processes.keys()).collect();
        fresh.at.saturating_duration_since(self.at) >= heartbeat
            || far(self.used, fresh.used)
            || pids.into_iter().any(|pid| far(self.processes.get(pid).copied(), fresh.processes.get(pid).copied()))
    }
}

fn unexpected(operation: &'static str, outcome: Outcome) -> StoreError {
    match outcome {
        Outcome::Refused(refusal) => StoreError::Refused(refusal),
        _ => StoreError::Unexpected(operation),
    }
}

#[cfg(test)]
mod tests;
