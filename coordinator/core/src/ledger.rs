//! The lease ledger as the scheduler sees it, shared with other holders (LE-3). It records whether memory can be
//! leased, other holders' leases, and their waiting requests.

use std::fmt;
use std::time::Duration;

use model_boss_protocol::{ByteCount, Priority};
use schemars::JsonSchema;
use serde::Serialize;

/// Whether memory can be leased now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LedgerState {
    /// Memory can be leased.
    #[default]
    Open,
    /// The store may have lost records: no lease is granted until every holder has had time to report its own.
    Recovering {
        /// The longest time until leases are granted again.
        #[serde(rename = "left_ms", serialize_with = "crate::time::as_millis")]
        #[schemars(with = "u64")]
        left: Duration,
    },
    /// The store cannot be reached or used. Loaded models serve on; no model is loaded, and none is evicted for
    /// memory.
    Away {
        /// The reason, human-readable.
        detail: String,
    },
}

/// A lease or a waiting request of another holder on a device, for display.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct LeaseShare {
    /// The lease's name; `null` for a waiting request.
    pub lease: Option<String>,
    /// The holder's description of its purpose.
    pub label: String,
    /// The priority of the lease or request.
    pub priority: Priority,
    /// The bytes on the device.
    pub bytes: ByteCount,
}

/// A lease that was revoked, or may be, human-readable.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AskedLease {
    /// The lease's name.
    pub lease: String,
    /// The holder's description of its purpose.
    pub label: String,
    /// The time left for the lease's release; `null` when it was not revoked yet.
    #[serde(rename = "grace_left_ms", serialize_with = "crate::time::optional_millis")]
    #[schemars(with = "Option<u64>")]
    pub left: Option<Duration>,
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
