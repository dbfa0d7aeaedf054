//! The document: everything promised on one host. Data only; the rules are elsewhere.
//!
//! Each object keeps the fields it does not know, so that an older process never drops what a newer one wrote.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Priority};
use serde::{Deserialize, Serialize};

/// The version of the document that this code writes. A process that finds a larger number may only renew and release.
pub const SCHEMA: u32 = 1;

/// Fields of a newer version, kept as they are.
type Unknown = BTreeMap<String, serde_json::Value>;

/// Everything promised on one host since it was booted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// The version of this document.
    pub schema: u32,
    /// The host's current boot; another boot is another ledger, because a reboot empties every device.
    pub boot_id: String,
    /// The largest token given so far.
    pub fence: Token,
    /// The latest time seen; time never goes back.
    pub last_time: StoreTime,
    /// How long things last, the same for everyone who uses this ledger.
    pub terms: Terms,
    /// What can be leased.
    pub devices: BTreeMap<DeviceKey, Device>,
    /// What is leased. Every state is counted.
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Request ids whose lease has ended, and when: a late duplicate gets no second lease.
    pub done: BTreeMap<String, StoreTime>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// How long things last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// A lease that is not renewed for this long expires.
    #[serde(with = "millis")]
    pub lease: Duration,
    /// How often a holder renews.
    #[serde(with = "millis")]
    pub heartbeat: Duration,
    /// An observation older than this says nothing any more.
    #[serde(with = "millis")]
    pub stale: Duration,
    /// How long an ended request id is remembered.
    #[serde(with = "millis")]
    pub remembered: Duration,
    #[serde(flatten)]
    unknown: Unknown,
}

/// What can be leased: a GPU by its UUID, or `cpu`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceKey(String);

/// A device, and what was last seen on it. `None` is unknown, never zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// What people call it, such as `cuda:0`.
    pub name: String,
    /// All of its memory that may be used.
    pub capacity: ByteCount,
    /// The part of it that is never leased.
    pub reserve: ByteCount,
    /// Bytes in use at the last observation.
    #[serde(default)]
    pub used: Option<ByteCount>,
    /// The part of `used` that belonged to no leased process.
    #[serde(default)]
    pub foreign: Option<ByteCount>,
    /// When the last observation was sampled.
    #[serde(default)]
    pub observed_at: Option<StoreTime>,
    /// When bytes last left, or a process was attached: only an observation sampled later tells what is free.
    #[serde(default)]
    pub unsettled_since: Option<StoreTime>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// A promise of bytes to a holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Proves that the caller holds this lease and not an earlier one.
    pub token: Token,
    /// The caller's name for its request: asking again gives the same lease.
    pub request_id: String,
    /// Who asked.
    pub owner: Owner,
    /// How important it is.
    pub priority: Priority,
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
    #[serde(flatten)]
    unknown: Unknown,
}

/// Bytes on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Where.
    pub device: DeviceKey,
    /// How much was promised.
    pub bytes: ByteCount,
    /// How much the lease's processes really used at the last observation.
    #[serde(default)]
    pub measured: Option<ByteCount>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// How far a lease is. A lease that ended is not in the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LeaseState {
    /// Granted; no process has been let through the gate.
    Pending,
    /// Processes are attached.
    Active,
    /// Expired or released without evidence: its bytes may still be in use, so they stay counted.
    Limbo,
    /// A state of a newer version. Counted like every other.
    #[serde(untagged)]
    Other(String),
}

/// Who asked for a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Owner {
    /// The process that renews and releases.
    #[serde(flatten)]
    pub process: Process,
    /// For people: what it is for.
    pub label: String,
    /// What it is.
    pub kind: OwnerKind,
    #[serde(flatten)]
    unknown: Unknown,
}

/// What holds a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
    /// The pid namespace in which `pid` has a meaning.
    pub pid_ns: String,
}

/// Microseconds on the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreTime(pub u64);

/// A number that only grows; a larger one was granted later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub u64);

/// Names a lease in the ledger and in the API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(String);

impl Ledger {
    /// An empty ledger of this boot. `fence` is what an earlier ledger reached, if one is known.
    pub fn new(boot_id: impl Into<String>, fence: Token, terms: Terms) -> Self {
        Self {
            schema: SCHEMA,
            boot_id: boot_id.into(),
            fence,
            last_time: StoreTime::default(),
            terms,
            devices: BTreeMap::new(),
            leases: BTreeMap::new(),
            done: BTreeMap::new(),
            unknown: Unknown::new(),
        }
    }

    /// Takes over the terms of a coordinator that was started with others. A newer document is left alone.
    pub fn adopt(&mut self, terms: &Terms) {
        if self.schema <= SCHEMA {
            let unknown = std::mem::take(&mut self.terms.unknown);
            self.terms = Terms { unknown, ..terms.clone() };
        }
    }

    /// The bytes that leases hold on a device: what was promised or what is used, whichever is more, in every state.
    pub fn charged(&self, device: &DeviceKey) -> ByteCount {
        self.leases
            .values()
            .flat_map(|lease| &lease.parts)
            .filter(|part| part.device == *device)
            .map(Part::charged)
            .sum()
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            heartbeat: Duration::from_secs(3),
            stale: Duration::from_secs(10),
            remembered: Duration::from_secs(600),
            unknown: Unknown::new(),
        }
    }
}

impl DeviceKey {
    /// The host's memory.
    pub fn cpu() -> Self {
        Self("cpu".to_owned())
    }

    /// A GPU by its UUID; its index is only for people.
    pub fn gpu(uuid: impl Into<String>) -> Self {
        Self(uuid.into())
    }

    /// The text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Device {
    pub(crate) fn new(name: String, capacity: ByteCount, reserve: ByteCount) -> Self {
        Self {
            name,
            capacity,
            reserve,
            used: None,
            foreign: None,
            observed_at: None,
            unsettled_since: None,
            unknown: Unknown::new(),
        }
    }

    /// The most that leases can ever hold here.
    pub fn leasable(&self) -> ByteCount {
        self.capacity.saturating_sub(self.reserve)
    }
}

impl Lease {
    pub(crate) fn new(
        token: Token,
        request_id: String,
        owner: Owner,
        priority: Priority,
        parts: Vec<Part>,
        (now, deadline): (StoreTime, StoreTime),
    ) -> Self {
        Self {
            token,
            request_id,
            owner,
            priority,
            parts,
            pids: Vec::new(),
            state: LeaseState::Pending,
            deadline,
            granted_at: now,
            unknown: Unknown::new(),
        }
    }
}

impl Part {
    /// So many bytes there.
    pub fn new(device: DeviceKey, bytes: ByteCount) -> Self {
        Self { device, bytes, measured: None, unknown: Unknown::new() }
    }

    /// What this part counts for.
    pub fn charged(&self) -> ByteCount {
        self.bytes.max(self.measured.unwrap_or_default())
    }
}

impl Owner {
    /// An owner with this label.
    pub fn new(process: Process, label: impl Into<String>, kind: OwnerKind) -> Self {
        Self { process, label: label.into(), kind, unknown: Unknown::new() }
    }
}

impl StoreTime {
    /// This time later by `span`.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Time from `earlier` to this; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl LeaseId {
    pub(crate) fn of(token: Token) -> Self {
        Self(format!("lease-{}", token.0))
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for LeaseId {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Durations as whole milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}
