//! The state of a holder: its store, its leases, and the ledger as last read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use model_boss_lease::{DeviceKey, LeaseId, Ledger, Owner, Process, Record, Request};
use model_boss_protocol::{ByteCount, DeviceId, chain};

use crate::capability::CapabilityKey;
use crate::claim::{ClaimScope, DeviceClaim};
use crate::mark::Mark;
use crate::place::HostFolders;
use crate::race::Pacing;
use crate::store::{Store, Swap};
use crate::tree::{self, ProcessTree};
use crate::{DeviceDeclaration, LeaseHandle, StoreError};

/// A smaller change of an observation is not written while the last one is fresh.
const SMALL_CHANGE: ByteCount = ByteCount::mib(64);

/// A process that holds leases.
pub struct Holder {
    pub(super) store: Box<dyn Store>,
    pub(crate) owner: Owner,
    /// A new ledger of this boot, with these terms.
    pub(super) empty: Ledger,
    pub(super) claim: ClaimScope,
    pub(super) place: HostFolders,
    pub(super) mark: Mark,
    pub(super) devices: BTreeMap<DeviceId, Claimed>,
    pub(super) held: BTreeMap<LeaseId, HeldLease>,
    /// The ledger as this process last saw it.
    pub(crate) seen: Ledger,
    /// Whether a ledger of this boot existed: if it does not any more, it was lost.
    pub(super) met: bool,
    /// The store's last answers.
    pub(super) reach: Reach,
    /// The key of the guests' proofs.
    pub(super) capabilities: CapabilityKey,
    /// Time and randomness for retries after a lost race.
    pub(super) pacing: Box<dyn Pacing>,
    /// The descendants of the processes of other holders' leases. They show to which lease a process belongs whose
    /// ancestors have all ended.
    pub(super) below: BTreeMap<LeaseId, Descendants>,
}

/// The last seen descendants of the processes attached to a lease.
#[derive(Debug, Default)]
pub(super) struct Descendants {
    pub(super) processes: Vec<Process>,
    /// Whether a guard is attached: its descendants end with it.
    pub(super) guarded: bool,
}

impl Holder {
    /// The processes of this host. Marks of guards that a lease names count only for processes of that lease's user.
    pub(super) fn tree(&self) -> ProcessTree {
        let leases = self.seen.leases.values();
        let of_user = leases.filter_map(|lease| Some((lease, lease.owner.user?)));
        let roots = of_user.flat_map(|(lease, user)| lease.pids.iter().map(move |root| (root, user)));
        ProcessTree::of_this_host(self.owner.process.pid_ns.clone()).with_users(roots)
    }
}

/// The last answers of the store. Reads and writes fail separately: a server that is full, or that became a replica,
/// still answers reads. Only answers of the store itself count, so an operation without access to it changes nothing
/// here.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// The reason why the last read failed.
    pub(super) read: Option<String>,
    /// The reason why the last write failed, until one succeeds.
    pub(super) write: Option<String>,
}

impl Reach {
    pub(super) fn read<T>(&mut self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        self.read = answer.as_ref().err().map(|error| chain(error));
        answer
    }

    pub(super) fn written(&mut self, answer: Result<Swap, StoreError>) -> Result<Swap, StoreError> {
        match &answer {
            Ok(Swap::Done) => self.write = None,
            // A lost race wrote no data.
            Ok(Swap::Conflict | Swap::Stale) => {}
            Err(error) => self.write = Some(chain(error)),
        }
        answer
    }
}

/// A device that this process has locked for its host.
pub(super) struct Claimed {
    pub(super) declaration: DeviceDeclaration,
    pub(super) written: Option<LastWrite>,
    pub(super) claim: DeviceClaim,
}

/// The record that this process keeps of a lease.
pub(super) struct HeldLease {
    pub(super) handle: LeaseHandle,
    pub(super) request: Request,
    pub(super) parts: Vec<(DeviceKey, ByteCount)>,
    pub(super) pids: Vec<Process>,
    /// Whether the lease was used since the last heartbeat.
    pub(super) used: bool,
}

impl HeldLease {
    pub(super) fn new(handle: LeaseHandle, request: Request, parts: Vec<(DeviceKey, ByteCount)>) -> Self {
        Self { handle, request, parts, pids: Vec::new(), used: false }
    }

    pub(super) fn record(&self, boot_id: &str) -> Record {
        let Request { request_id, owner, priority, yielding, .. } = self.request.clone();
        let LeaseHandle { lease, token } = self.handle.clone();
        let token = Some(token);
        let pids = self.pids.iter().filter(|process| !tree::is_gone(process)).cloned().collect();
        let (parts, boot_id) = (self.parts.clone(), boot_id.to_owned());
        Record { lease, token, request_id, owner, priority, yielding, parts, pids, boot_id }
    }
}

/// The last observation that was written.
pub(super) struct LastWrite {
    pub(super) at: Instant,
    pub(super) used: Option<ByteCount>,
    pub(super) processes: BTreeMap<u32, ByteCount>,
}

impl LastWrite {
    pub(super) fn differs(&self, fresh: &Self, heartbeat: Duration) -> bool {
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
