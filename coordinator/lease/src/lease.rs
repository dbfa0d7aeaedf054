//! A lease: a promise of bytes to a holder.

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
    /// Proves that the caller holds this lease and not an earlier one.
    pub token: Token,
    /// The caller's name for its request: asking again gives the same lease.
    pub request_id: String,
    /// Who asked.
    pub owner: Owner,
    /// How important it is.
    pub priority: Priority,
    /// Whether and how it may be asked to give its bytes back.
    #[serde(flatten)]
    pub yielding: Yielding,
    /// How much on which device; each device once.
    pub parts: Vec<Part>,
    /// The processes that may touch the devices. Their descendants belong to the lease too.
    pub pids: Vec<Process>,
    /// How far it is.
    pub state: LeaseState,
    /// When it expires unless renewed.
    pub deadline: StoreTime,
    /// When it was granted.
    pub granted_at: StoreTime,
    /// When a process was last let through the gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached_at: Option<StoreTime>,
    /// When its holder last said that it was in use.
    #[serde(default)]
    pub used_at: StoreTime,
    /// When its holder said that its load is complete. Matters where processes cannot be told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded_at: Option<StoreTime>,
    /// `REVOKING`: until when its holder should have given the bytes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoke_deadline: Option<StoreTime>,
    /// `REVOKING`: the request that it gives way to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptor: Option<String>,
    /// Its holder was asked and did not give the bytes back in time. It is not asked again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub in_default: bool,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// Whether and how a lease may be asked to give its bytes back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Yielding {
    /// Whether it may be asked at all.
    #[serde(default)]
    pub preemptible: bool,
    /// How long its holder needs to give the bytes back.
    #[serde(default, with = "millis")]
    pub grace: Duration,
    /// How long it is left alone after its grant.
    #[serde(default, with = "millis")]
    pub min_hold: Duration,
    /// What it costs to come back later; of equals the cheapest goes first.
    #[serde(default, with = "millis")]
    pub reload: Duration,
}

/// Bytes on one device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Where.
    pub device: DeviceKey,
    /// How much was promised.
    pub bytes: ByteCount,
    /// How much the lease's processes really used at the last observation.
    #[serde(default)]
    pub measured: Option<ByteCount>,
    /// The processes of the lease that the last observation showed there, descendants of the attached ones included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<Process>,
    /// Degraded accounting: what the device had in use when this part was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_before: Option<ByteCount>,
    /// Degraded accounting: by how much the use of the device had grown when the load was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<ByteCount>,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// How far a lease is. A lease that ended is not in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LeaseState {
    /// Granted; no process has been let through the gate.
    Pending,
    /// Processes are attached.
    Active,
    /// Its holder is asked to give the bytes back. They stay counted.
    Revoking,
    /// Expired or released without evidence: its bytes may still be in use, so they stay counted.
    Limbo,
    /// A state of a newer version. Counted like every other.
    #[serde(untagged)]
    Other(String),
}

/// Who asked for a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The process that renews and releases.
    #[serde(flatten)]
    pub process: Process,
    /// For people: what it is for.
    pub label: Label,
    /// What it is.
    pub kind: OwnerKind,
    /// The user on the host who asked, where that is known: each has so many leases and no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// What holds a lease.
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

/// A number that only grows; a larger one was granted later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub u64);

/// Names a lease in the ledger and in the API. Whoever asks draws it; it says nothing about the token.
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

    /// What it counts for on a device.
    pub fn charged(&self, device: &DeviceKey) -> ByteCount {
        self.parts.iter().filter(|part| part.device == *device).map(Part::charged).sum()
    }

    /// What was promised, device by device.
    pub fn promised(&self) -> Vec<(DeviceKey, ByteCount)> {
        let promised = self.parts.iter().filter(|part| part.bytes > ByteCount::ZERO);
        promised.map(|part| (part.device.clone(), part.bytes)).collect()
    }

    /// Whether this process is attached, or was seen to use a device as a descendant of an attached one.
    pub fn owns(&self, process: &Process) -> bool {
        self.family().any(|member| member == process)
    }

    /// The attached processes and the descendants of theirs that were seen to use a device.
    pub fn family(&self) -> impl Iterator<Item = &Process> {
        self.pids.iter().chain(self.parts.iter().flat_map(|part| &part.users))
    }

    /// No process was ever let through the gate: whatever becomes of it, no byte is in use.
    pub fn is_untouched(&self) -> bool {
        self.state == LeaseState::Pending && self.pids.is_empty()
    }
}

impl Default for Yielding {
    /// Never asked.
    fn default() -> Self {
        let (grace, min_hold) = (Duration::from_secs(60), Duration::from_secs(600));
        Self { preemptible: false, grace, min_hold, reload: Duration::ZERO }
    }
}

impl Part {
    /// So many bytes there.
    pub fn new(device: DeviceKey, bytes: ByteCount) -> Self {
        let (measured, users, used_before, settled) = (None, Vec::new(), None, None);
        Self { device, bytes, measured, users, used_before, settled, unknown: UnknownFields::default() }
    }

    /// What this part counts for.
    pub fn charged(&self) -> ByteCount {
        self.bytes.max(self.measured.unwrap_or_default())
    }
}

impl Owner {
    /// An owner with this label.
    pub fn new(process: Process, label: impl Into<Label>, kind: OwnerKind) -> Self {
        Self { process, label: label.into(), kind, user: None, unknown: UnknownFields::default() }
    }

    /// The same, asked for by this user.
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
