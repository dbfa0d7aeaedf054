//! Leases and requests of other holders, as the ledger shows them to a scheduler that plans around them.

use std::time::Duration;

use crate::{ByteCount, DeviceId, Priority};

/// A lease of another holder: a training job, another coordinator, or a holder that has ended and whose bytes still
/// count.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherLease {
    /// The lease's name.
    pub lease: String,
    /// The holder's description of its purpose.
    pub label: String,
    /// The lease's priority.
    pub priority: Priority,
    /// The bytes that the lease counts for on each device.
    pub parts: Vec<(DeviceId, ByteCount)>,
    /// Whether a more important request may preempt the lease now.
    pub may_be_asked: bool,
    /// The time left for the lease's release, if it was revoked.
    pub revoking: Option<Duration>,
    /// Whether the lease was revoked and not released in time.
    pub in_default: bool,
}

/// A request of another holder that waits in the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherRequest {
    /// The holder's description of its purpose.
    pub label: String,
    /// The request's priority.
    pub priority: Priority,
    /// The bytes that the request will get in its turn.
    pub parts: Vec<(DeviceId, ByteCount)>,
}

impl OtherLease {
    /// The bytes that the lease counts for on a device.
    pub fn on(&self, device: &DeviceId) -> ByteCount {
        on(&self.parts, device)
    }
}

impl OtherRequest {
    /// The bytes that the request will get on a device.
    pub fn on(&self, device: &DeviceId) -> ByteCount {
        on(&self.parts, device)
    }
}

fn on(parts: &[(DeviceId, ByteCount)], device: &DeviceId) -> ByteCount {
    parts.iter().filter(|(part, _)| part == device).map(|&(_, bytes)| bytes).sum()
}
