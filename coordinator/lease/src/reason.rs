//! Reasons why bytes are not granted now, as values and as sentences.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Priority};

/// The reason why bytes are not granted now. It prints as a human-readable sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseWaitReason {
    /// The device's use is not known.
    Unobserved {
        /// The device's human-readable name.
        device: String,
    },
    /// The last observation of the device is too old.
    Stale {
        /// The device's human-readable name.
        device: String,
        /// The age of the last observation.
        age: Duration,
    },
    /// A process started or a lease ended on the device after the last observation.
    Unsettled {
        /// The device's human-readable name.
        device: String,
    },
    /// The device has too few free bytes.
    Capacity {
        /// The device's human-readable name.
        device: String,
        /// The bytes requested.
        needs: ByteCount,
        /// The free bytes.
        free: ByteCount,
        /// The holders of the other bytes, the largest first.
        holders: Vec<Share>,
        /// The bytes that programs without a lease use.
        foreign: ByteCount,
    },
    /// Enough would be free, but other requests are earlier or more important.
    Behind {
        /// The device's human-readable name.
        device: String,
        /// The bytes requested.
        needs: ByteCount,
        /// The bytes left after these requests.
        left: ByteCount,
        /// The label of the first of these requests.
        first: String,
    },
    /// Processes cannot be told apart on the device, so one load runs at a time.
    Loading {
        /// The device's human-readable name.
        device: String,
        /// The label of the load.
        label: String,
    },
    /// All leases that could be revoked were revoked, and not released in time.
    InDefault {
        /// The device's human-readable name.
        device: String,
        /// The label of the first such lease.
        label: String,
    },
}

/// The bytes of a lease on a device, human-readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The label of the lease.
    pub label: String,
    /// The bytes the lease holds.
    pub bytes: ByteCount,
    /// The priority of the lease.
    pub priority: Priority,
}

impl fmt::Display for LeaseWaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unobserved { device } => write!(f, "the memory in use on {device} is not known"),
            Self::Stale { device, age } => {
                write!(f, "the memory in use on {device} was last seen {} ms ago", age.as_millis())
            }
            Self::Unsettled { device } => write!(f, "{device} has not been looked at since its last change"),
            Self::Capacity { device, needs, free, holders, foreign } => {
                write!(f, "{device} has {free} free and {needs} are needed")?;
                let mut parts: Vec<String> = holders.iter().map(ToString::to_string).collect();
                if *foreign > ByteCount::ZERO {
                    parts.push(format!("other programs {foreign}"));
                }
                if parts.is_empty() { Ok(()) } else { write!(f, "; held by {}", parts.join(", ")) }
            }
            Self::Behind { device, needs, left, first } => {
                write!(f, "{needs} are needed on {device} and {left} are left after those who wait before it: {first}")
            }
            Self::Loading { device, label } => {
                write!(f, "{label} is being loaded on {device}, where one load runs at a time")
            }
            Self::InDefault { device, label } => {
                write!(f, "{label} was asked to give its memory on {device} back and did not do so in time")
            }
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (priority {})", self.label, self.bytes, self.priority)
    }
}
