//! Leases: promises of bytes to holders.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Label, Priority};
use serde::{Deserialize, Serialize};

use crate::time::millis;
use crate::unknown::UnknownFields;
use crate::{DeviceKey, Process, StoreTime};

/// A promise of bytes to a holder.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// A token that proves that the caller holds this lease and not an earlier one.
    pub token: Token,
    /// The caller's name for its request: repeating the request gives the same lease.
    pub request_id: String,
    /// The owner that requested the lease.
    pub owner: Owner,
    /// The importance of the lease for the queue and for preemption.
    pub priority: Priority,
    /// The conditions under which the lease may be revoked.
    #[serde(flatten)]
    pub yielding: Yielding,
    /// The bytes on each device; each device is listed once.
    pub parts: Vec<Part>,
    /// The processes that may use the devices. Their descendants belong to the lease too.
    pub pids: Vec<Process>,
    /// The state in the lease's lifecycle.
    pub state: LeaseState,
    /// The time at which the lease expires unless renewed.
    pub deadline: StoreTime,
    /// The time of the lease's grant.
    pub granted_at: StoreTime,
    /// The last time a process passed the gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached_at: Option<StoreTime>,
    /// The last time the lease's holder reported that it was in use.
    #[serde(default)]
    pub used_at: StoreTime,
    /// The time at which the holder reported a complete load. It matters if processes cannot be told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_at: Option<StoreTime>,
    /// `REVOKING`: the time by which its holder should release the bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoke_deadline: Option<StoreTime>,
    /// `REVOKING`: the request that it was revoked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptor: Option<String>,
    /// Whether the lease was revoked and not released in time. It is not revoked again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub in_default: bool,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// The conditions under which a lease may be revoked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Yielding {
    /// Whether the lease may be revoked at all.
    #[serde(default)]
    pub preemptible: bool,
    /// The time that the lease's holder needs to release the bytes.
    #[serde(default, with = "millis")]
    pub grace: Duration,
    /// The time after the lease's grant in which it is not revoked.
    #[serde(default, with = "millis")]
    pub min_hold: Duration,
    /// The time to load again later; among equals the cheapest lease is revoked first.
    #[serde(default, with = "millis")]
    pub reload: Duration,
}

/// Bytes on one device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// The device that the bytes are on.
    pub device: DeviceKey,
    /// The promised bytes.
    pub bytes: ByteCount,
    /// The bytes that the lease's processes used at the last observation.
    #[serde(default)]
    pub measured: Option<ByteCount>,
    /// The lease's processes that the last observation showed on the device, descendants of attached ones included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<Process>,
    /// Degraded accounting: the bytes in use on the device when this part was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_before: Option<ByteCount>,
    /// Degraded accounting: the growth of the device's use until the load was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<ByteCount>,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// The state of a lease. A lease that ended is not in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LeaseState {
    /// The lease is granted, and no process has passed the gate.
    Pending,
    /// The lease is granted, and processes are attached.
    Active,
    /// The lease is revoked: its holder has to release the bytes, which still count.
    Revoking,
    /// The lease expired, or was released without evidence: its bytes may still be in use, so they stay counted.
    Limbo,
    /// A state of a newer version. Its bytes count like those of every other.
    #[serde(untagged)]
    Other(String),
}

/// The owner of a lease or request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The process that renews and releases.
    #[serde(flatten)]
    pub process: Process,
    /// The purpose, human-readable.
    pub label: Label,
    /// The kind of program.
    pub kind: OwnerKind,
    /// The user of the request on this host, if known: the number of leases for each is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// The kind of program that holds a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnerKind {
    /// A coordinator, for one of its workers.
    Coordinator,
    /// A training job or any other program.
    Job,
    /// A kind of a newer version.
    #[serde(untagged)]
    Other(String),
}

/// A fencing token, which only grows: the larger of two was granted later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub u64);

/// The name of a lease in the ledger and in the API. The asker draws it at random; it reveals nothing about the
/// token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(String);

impl Lease {
    pub(crate) fn new(
        token: Token,
        request_id: String,
        (owner, priority, yielding): (Owner, Priority, Yielding),
        parts: Vec<Part>,
        (now, deadline): (StoreTime, StoreTime),
    ) -> Self {
        Self {
            token,
            request_id,
            owner,
            priority,
            yielding,
            parts,
            pids: Vec::new(),
            state: LeaseState::Pending,
            deadline,
            granted_at: now,
            attached_at: None,
            used_at: now,
            loaded_at: None,
            revoke_deadline: None,
            preemptor: None,
            in_default: false,
            unknown: UnknownFields::default(),
        }
    }

    /// The bytes that the lease counts for on a device.
    pub fn charged(&self, device: &DeviceKey) -> ByteCount {
        self.parts.iter().filter(|part| part.device == *device).map(Part::charged).sum()
    }

    /// The promised bytes, device by device.
    pub fn promised(&self) -> Vec<(DeviceKey, ByteCount)> {
        let promised = self.parts.iter().filter(|part| part.bytes > ByteCount::ZERO);
        promised.map(|part| (part.device.clone(), part.bytes)).collect()
    }

    /// Whether this process is attached, or was seen to use a device as a descendant of an attached one.
    pub fn owns(&self, process: &Process) -> bool {
        self.family().any(|member| member == process)
    }

    /// The attached processes and those of their descendants that were seen to use a device.
    pub fn family(&self) -> impl Iterator<Item = &Process> {
        self.pids.iter().chain(self.parts.iter().flat_map(|part| &part.users))
    }

    /// Whether no process ever passed the gate, so that none of its bytes can be in use.
    pub fn is_untouched(&self) -> bool {
        self.state == LeaseState::Pending && self.pids.is_empty()
    }
}

impl Default for Yielding {
    /// The default is not preemptible.
    fn default() -> Self {
        let (grace, min_hold) = (Duration::from_secs(60), Duration::from_secs(600));
        Self { preemptible: false, grace, min_hold, reload: Duration::ZERO }
    }
}

impl Part {
    /// A part of this many bytes, not measured yet.
    pub fn new(device: DeviceKey, bytes: ByteCount) -> Self {
        let (measured, users, used_before, settled) = (None, Vec::new(), None, None);
        Self { device, bytes, measured, users, used_before, settled, unknown: UnknownFields::default() }
    }

    /// The bytes that this part counts for: the larger of promised and used.
    pub fn charged(&self) -> ByteCount {
        self.bytes.max(self.measured.unwrap_or_default())
    }
}

impl Owner {
    /// An owner with this label.
    pub fn new(process: Process, label: impl Into<Label>, kind: OwnerKind) -> Self {
        Self { process, label: label.into(), kind, user: None, unknown: UnknownFields::default() }
    }

    /// Adds the user of the request to the owner.
    #[must_use]
    pub fn of_user(self, user: Option<u32>) -> Self {
        Self { user, ..self }
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for LeaseId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for LeaseId {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}
