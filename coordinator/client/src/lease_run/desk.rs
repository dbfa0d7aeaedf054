//! The place where a lease is requested and held: the ledger in Redis, with or without a coordinator, or a coordinator
//! over HTTP. Leases are handled alike in both cases.

use std::time::Duration;

use model_boss_lease_store::Yielding;
use model_boss_protocol::{ByteCount, DeviceId, Priority};

use super::error::LeaseError;

/// The memory to request, and for which program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseRequest {
    /// The label, human-readable.
    pub(super) label: String,
    /// The size on each device.
    pub(super) memory: ByteCount,
    /// The devices; an empty list means any `count` GPUs.
    pub(super) devices: Vec<DeviceId>,
    pub(super) count: usize,
    pub(super) priority: Priority,
    /// Whether to revoke preemptible leases of lower priority.
    pub(super) preempt: bool,
    pub(super) yielding: Yielding,
}

/// One request and its lease. The methods block, so each value belongs to a thread of its own.
pub(super) trait Desk: Send {
    /// The ledger's address for messages, without credentials.
    fn describe(&self) -> String;
    /// The interval between calls of [`Desk::renew`].
    fn heartbeat(&self) -> Duration;
    /// Sends the request, or repeats it and keeps the place in the queue.
    fn acquire(&mut self) -> Result<Granting, LeaseError>;
    /// Passes a process through the gate: only after this may it touch the devices.
    fn attach(&mut self, pid: u32) -> Result<(), LeaseError>;
    /// Sends a heartbeat.
    fn renew(&mut self) -> Result<Renewed, LeaseError>;
    /// Makes the lease as small as possible, so that only memory that its processes still use is counted.
    fn shrink(&mut self) -> Result<(), LeaseError>;
    /// Tries to release the memory. With `for_good`, memory that cannot be shown to be free is left to later checks of
    /// the ledger.
    fn release(&mut self, for_good: bool) -> Result<Released, LeaseError>;
    /// Cancels the request.
    fn cancel(&mut self) -> Result<(), LeaseError>;
}

/// The result of a request.
pub(super) enum Granting {
    Granted(Granted),
    /// The request is queued, for this reason.
    Waits(String),
}

/// A granted lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Granted {
    pub(super) lease: String,
    pub parts: Vec<GrantedPart>,
}

/// Memory on one device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GrantedPart {
    pub(super) device: DeviceId,
    pub(super) bytes: ByteCount,
    /// The UUID of a GPU; `None` for other devices.
    pub(super) uuid: Option<String>,
}

/// The result of a heartbeat.
#[derive(Debug, Default)]
pub(super) struct Renewed {
    /// The revocation, if there is one.
    pub(super) revoked: Option<RevokeNotice>,
    /// Whether the lease is lost, so that its processes must end.
    pub(super) lost: bool,
}

/// The revocation of a lease.
#[derive(Clone, Debug)]
pub(super) struct RevokeNotice {
    /// The rest of the grace: at zero it is over.
    pub(super) remaining: Duration,
    pub(super) wanted_by: String,
}

/// The result of a release.
pub(super) enum Released {
    /// The memory is free.
    Free,
    /// The memory may still be in use, so it stays counted until it is known to be free. The text has the reason.
    Counted(String),
}

impl Granted {
    /// The value of `CUDA_VISIBLE_DEVICES`: the GPUs by UUID, which no renumbering changes; empty when there are none.
    pub(super) fn visible(&self) -> String {
        let gpus: Vec<&str> = self.parts.iter().filter_map(|part| part.uuid.as_deref()).collect();
        gpus.join(",")
    }

    /// The devices and sizes, human-readable.
    pub(super) fn describe(&self) -> String {
        let parts: Vec<String> = self.parts.iter().map(|part| format!("{} on {}", part.bytes, part.device)).collect();
        parts.join(" and ")
    }
}

/// The holders whose leases were revoked, as the end of a sentence.
pub(super) fn asked<'a>(asked: impl Iterator<Item = (&'a str, Duration)>) -> String {
    let asked: Vec<String> = asked.map(|(label, left)| format!("{label} has {} s", left.as_secs())).collect();
    if asked.is_empty() { String::new() } else { format!("; asked: {}", asked.join(", ")) }
}
