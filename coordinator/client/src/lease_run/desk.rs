//! Where a lease is asked for and kept: at the ledger in Redis, with or without a coordinator, or at a coordinator over
//! HTTP. What is done with a lease is the same either way.

use std::time::Duration;

use model_boss_lease_store::Yielding;
use model_boss_protocol::{ByteCount, DeviceId, Priority};

use super::error::LeaseError;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    /// For people: what it is for.
    pub(super) label: String,
    /// How much on each device.
    pub(super) memory: ByteCount,
    /// On these. Empty: on any `count` GPUs.
    pub(super) devices: Vec<DeviceId>,
    pub(super) count: usize,
    pub(super) priority: Priority,
    /// Ask less important holders that allow it to give memory back.
    pub(super) preempt: bool,
    pub(super) yielding: Yielding,
}

/// One request and the lease that comes of it. Blocks: it belongs to a thread of its own.
pub(super) trait Desk: Send {
    /// Where leases are kept, for people, without credentials.
    fn describe(&self) -> String;
    /// How often [`Desk::renew`] is due.
    fn heartbeat(&self) -> Duration;
    /// Asks, or asks again and keeps the place in the queue.
    fn ask(&mut self) -> Result<Answer, LeaseError>;
    /// The gate: only after this may the process touch the devices.
    fn attach(&mut self, pid: u32) -> Result<(), LeaseError>;
    /// The heartbeat.
    fn renew(&mut self) -> Result<Kept, LeaseError>;
    /// Makes the promise as small as it can be, so that no more is counted than what its processes still use.
    fn shrink(&mut self) -> Result<(), LeaseError>;
    /// Tries to give the memory back. With `for_good` what cannot be shown to be free is left to whoever looks later.
    fn release(&mut self, for_good: bool) -> Result<Released, LeaseError>;
    /// Takes the request back.
    fn cancel(&mut self) -> Result<(), LeaseError>;
}

/// What comes of asking.
pub(super) enum Answer {
    Granted(Granted),
    /// Not now, and why.
    Waits(String),
}

/// What was granted.
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
    /// What the device is, where it is a GPU.
    pub(super) uuid: Option<String>,
}

/// What a heartbeat tells.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// It is asked back.
    pub(super) revoked: Option<Revoked>,
    /// It is gone: its processes must end.
    pub(super) lost: bool,
}

/// That a lease is asked back.
#[derive(Clone, Debug)]
pub(super) struct Revoked {
    /// With nothing remaining, the grace is over.
    pub(super) remaining: Duration,
    pub(super) wanted_by: String,
}

/// What comes of giving memory back.
pub(super) enum Released {
    /// It is free.
    Free,
    /// It may still be in use, so it stays counted until it is seen to be free.
    Counted(String),
}

impl Granted {
    /// For `CUDA_VISIBLE_DEVICES`: the GPUs by UUID, which no renumbering changes; empty when there are none.
    pub(super) fn visible(&self) -> String {
        let gpus: Vec<&str> = self.parts.iter().filter_map(|part| part.uuid.as_deref()).collect();
        gpus.join(",")
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let parts: Vec<String> = self.parts.iter().map(|part| format!("{} on {}", part.bytes, part.device)).collect();
        parts.join(" and ")
    }
}

/// Who was asked to make way, as the end of a sentence.
pub(super) fn asked<'a>(asked: impl Iterator<Item = (&'a str, Duration)>) -> String {
    let asked: Vec<String> = asked.map(|(label, left)| format!("{label} has {} s", left.as_secs())).collect();
    if asked.is_empty() { String::new() } else { format!("; asked: {}", asked.join(", ")) }
}
