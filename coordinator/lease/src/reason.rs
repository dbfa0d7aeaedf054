//! Why bytes are not given now, as a value and as a sentence.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Priority};

/// Why bytes are not given now. Prints as a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Nobody could say how much of the device is in use.
    Unobserved {
        /// What people call it.
        device: String,
    },
    /// What is known about the device is too old.
    Stale {
        /// What people call it.
        device: String,
        /// How old.
        age: Duration,
    },
    /// Something started or ended there after the last look.
    Unsettled {
        /// What people call it.
        device: String,
    },
    /// Not enough is free.
    Capacity {
        /// What people call it.
        device: String,
        /// How much was asked for.
        needs: ByteCount,
        /// How much is free.
        free: ByteCount,
        /// Who holds the rest, the largest first.
        holders: Vec<Share>,
        /// What programs without a lease use.
        foreign: ByteCount,
    },
    /// Enough would be free, but others came first or are more important.
    Behind {
        /// What people call it.
        device: String,
        /// How much was asked for.
        needs: ByteCount,
        /// How much is left when they have theirs.
        left: ByteCount,
        /// The first of them.
        first: String,
    },
    /// Processes cannot be told apart there, so one load runs at a time.
    Loading {
        /// What people call it.
        device: String,
        /// What is being loaded.
        label: String,
    },
    /// The only holders that could be asked were asked and did not give their bytes back in time.
    InDefault {
        /// What people call the device.
        device: String,
        /// The first of them.
        label: String,
    },
}

/// What a lease holds of a device, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// What it is for.
    pub label: String,
    /// How much it holds.
    pub bytes: ByteCount,
    /// How important it is.
    pub priority: Priority,
}

impl fmt::Display for WaitReason {
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
