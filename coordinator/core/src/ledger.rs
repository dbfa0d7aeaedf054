//! What the scheduler knows of the lease ledger, which it shares with others (LE-3): whether memory can be leased at all,
//! what others hold, and who waits for memory.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, DeviceId, Priority};
use serde::Serialize;

/// Whether memory can be leased now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LedgerState {
    /// It can.
    #[default]
    Open,
    /// The store may have lost records: nothing is granted until every holder had the time to state its own.
    Recovering {
        /// How long that takes at most.
        #[serde(rename = "left_ms", serialize_with = "crate::time::as_millis")]
        left: Duration,
    },
    /// The store cannot be reached or used. What is loaded serves on; nothing is loaded and nobody is sent away for
    /// memory.
    Away {
        /// Why, for people.
        detail: String,
    },
}

/// A lease of another holder: a training job, another coordinator, or what nobody holds any more and is still counted.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherLease {
    /// Its name.
    pub lease: String,
    /// What it is for.
    pub label: String,
    /// How important it is.
    pub priority: Priority,
    /// What it counts for on each device.
    pub parts: Vec<(DeviceId, ByteCount)>,
    /// Whether somebody more important may ask for it back now.
    pub may_be_asked: bool,
    /// It was asked: how long it still has.
    pub revoking: Option<Duration>,
    /// It was asked and did not make way in time.
    pub in_default: bool,
}

/// A request of another holder that waits in the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherRequest {
    /// What it is for.
    pub label: String,
    /// How important it is.
    pub priority: Priority,
    /// What it will get when it has its turn.
    pub parts: Vec<(DeviceId, ByteCount)>,
}

/// What another holder has of a device, or wants of it, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeaseShare {
    /// Which lease; `null` for a request that waits.
    pub lease: Option<String>,
    /// What it is for.
    pub label: String,
    /// How important it is.
    pub priority: Priority,
    /// How much.
    pub bytes: ByteCount,
}

/// Somebody who was asked to give memory back, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AskedLease {
    /// Which lease.
    pub lease: String,
    /// What it is for.
    pub label: String,
    /// How long it still has; `null` when it was not asked yet.
    #[serde(rename = "grace_left_ms", serialize_with = "crate::time::optional_millis")]
    pub left: Option<Duration>,
}

impl OtherLease {
    pub(crate) fn on(&self, device: &DeviceId) -> ByteCount {
        on(&self.parts, device)
    }
}

impl OtherRequest {
    pub(crate) fn on(&self, device: &DeviceId) -> ByteCount {
        on(&self.parts, device)
    }
}

fn on(parts: &[(DeviceId, ByteCount)], device: &DeviceId) -> ByteCount {
    parts.iter().filter(|(part, _)| part == device).map(|&(_, bytes)| bytes).sum()
}

impl fmt::Display for LeaseShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lease, label, priority, bytes } = self;
        match lease {
            Some(lease) => write!(f, "held by {lease} ({label}): {bytes}, priority {priority}"),
            None => write!(f, "{label} comes first: {bytes}, priority {priority}"),
        }
    }
}

impl fmt::Display for AskedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.lease, self.label)?;
        match self.left {
            Some(left) => write!(f, ", {:.0} s left", left.as_secs_f64().ceil()),
            None => Ok(()),
        }
    }
}
