//! A device, and what was last seen on it.

use std::fmt;

use model_boss_protocol::ByteCount;
use serde::{Deserialize, Serialize};

use crate::unknown::{UnknownFields, UnknownValue};
use crate::{Process, StoreTime};

/// What can be leased: a GPU by its UUID, or `cpu`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceKey(String);

/// A device, and what was last seen on it. `None` is unknown, never zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Device {
    /// What people call it, such as `cuda:0`.
    pub name: String,
    /// All of its memory that may be used.
    pub capacity: ByteCount,
    /// The part of it that is never leased.
    pub reserve: ByteCount,
    /// How it is known what leases use of it.
    #[serde(default)]
    pub accounting: Accounting,
    /// Bytes in use at the last observation.
    #[serde(default)]
    pub used: Option<ByteCount>,
    /// The part of `used` that belonged to no leased process.
    #[serde(default)]
    pub foreign: Option<ByteCount>,
    /// Whose bytes `foreign` are, the largest first, as far as the probe could tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strangers: Vec<ProcessUse>,
    /// When the last observation was sampled.
    #[serde(default)]
    pub observed_at: Option<StoreTime>,
    /// When bytes last left, or a process was attached: only an observation sampled later tells what is free.
    #[serde(default)]
    pub unsettled_since: Option<StoreTime>,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// How it is known what leases use of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accounting {
    /// The probe tells the processes apart.
    #[default]
    PerProcess,
    /// It does not (WSL, some MIG, a foreign pid namespace): the operator says how much others use, one load runs at a
    /// time, and the driver must show room as well.
    Degraded {
        /// What programs without a lease use, as the operator says.
        foreign: ByteCount,
    },
    /// A way of a newer version. Nothing is granted.
    #[serde(untagged)]
    Other(UnknownValue),
}

/// What one process uses of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessUse {
    /// The process itself, then its parent, its grandparent and so on, then the leaders of its group and session, as
    /// far as known.
    pub lineage: Vec<Process>,
    /// How much it uses.
    pub bytes: ByteCount,
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
    pub(crate) fn new(name: String, capacity: ByteCount, reserve: ByteCount, accounting: Accounting) -> Self {
        Self {
            name,
            capacity,
            reserve,
            accounting,
            used: None,
            foreign: None,
            strangers: Vec::new(),
            observed_at: None,
            unsettled_since: None,
            unknown: UnknownFields::default(),
        }
    }

    /// The most that leases can ever hold here.
    pub fn leasable(&self) -> ByteCount {
        self.capacity.saturating_sub(self.reserve)
    }
}
