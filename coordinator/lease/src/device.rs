//! Devices, and the last observation of each.

use std::fmt;

use model_boss_protocol::ByteCount;
use serde::{Deserialize, Serialize};

use crate::unknown::{UnknownFields, UnknownValue};
use crate::{Process, StoreTime};

/// The key of a device: a GPU's UUID, or `cpu`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceKey(String);

/// A device with its last observation. `None` is unknown, never zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Device {
    /// The human-readable name, such as `cuda:0`.
    pub name: String,
    /// The device's usable memory, the reserve included.
    pub capacity: ByteCount,
    /// The part of `capacity` that is never leased.
    pub reserve: ByteCount,
    /// The method by which the leases' use of the device is measured.
    #[serde(default)]
    pub accounting: Accounting,
    /// Bytes in use at the last observation.
    #[serde(default)]
    pub used: Option<ByteCount>,
    /// The part of `used` that belonged to no leased process.
    #[serde(default)]
    pub foreign: Option<ByteCount>,
    /// The processes that use the foreign bytes, the largest first, if the probe can list them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strangers: Vec<ProcessUse>,
    /// The time at which the last observation was sampled.
    #[serde(default)]
    pub observed_at: Option<StoreTime>,
    /// The last time when a lease ended or a process was attached: only a later observation shows the free bytes.
    #[serde(default)]
    pub unsettled_since: Option<StoreTime>,
    #[serde(flatten)]
    pub(crate) unknown: UnknownFields,
}

/// The method by which the leases' use of a device is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accounting {
    /// The probe reports the use of each process.
    #[default]
    PerProcess,
    /// The probe reports no processes, as on WSL, some MIG devices or in a foreign pid namespace. The operator states
    /// the use by others, one load runs at a time, and the driver must show room as well.
    Degraded {
        /// The bytes that programs without a lease use, as the operator stated.
        foreign: ByteCount,
    },
    /// A method that a newer version wrote. No lease is granted on such a device.
    #[serde(untagged)]
    Other(UnknownValue),
}

/// The use of a device by one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessUse {
    /// The process itself, then its ancestors from its parent on, then the leaders of its group and session, as far
    /// as known.
    pub lineage: Vec<Process>,
    /// The bytes the process uses.
    pub bytes: ByteCount,
}

impl DeviceKey {
    /// The host's memory.
    pub fn cpu() -> Self {
        Self("cpu".to_owned())
    }

    /// A GPU by its UUID; its index is only for display.
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

    /// The most bytes that leases can hold on this device.
    pub fn leasable(&self) -> ByteCount {
        self.capacity.saturating_sub(self.reserve)
    }
}
