//! The state of the ledger's thread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use model_boss_core::{LedgerState, SlotKey};
use model_boss_host::probe::Probes;
use model_boss_lease_store::{DeviceDeclaration, Holder, OtherLeases};
use model_boss_protocol::{ByteCount, DeviceId, ModelId};

use super::held::{Held, QueuePlace, Ranks};
use super::leaks::Leaks;
use super::status::{DeviceTable, StoreWatch};
use crate::scheduling::News;

/// The state that the ledger's thread owns.
pub(super) struct LedgerOwner {
    pub(super) holder: Holder,
    pub(super) probes: Probes,
    pub(super) news: News,
    pub(super) table: DeviceTable,
    pub(super) watch: StoreWatch,
    pub(super) state: LedgerState,
    /// A random text that makes request ids unique across restarts.
    pub(super) run: String,
    pub(super) held: HashMap<SlotKey, Held>,
    /// Models with a place in the ledger's queue.
    pub(super) places: BTreeMap<ModelId, QueuePlace>,
    /// Cancelled requests that are not yet deleted in the store.
    pub(super) cancelling: Vec<String>,
    /// The number of requests so far, so that none is mistaken for an earlier one.
    pub(super) asked: u64,
    /// The foreign leases and requests that were last reported to the scheduler.
    pub(super) others: OtherLeases,
    /// Revoked leases of this coordinator's workers.
    pub(super) revoked: BTreeSet<SlotKey>,
    /// The priorities of this coordinator's leases, as the scheduler stated last.
    pub(super) ranks: Ranks,
    pub(super) releasing: Vec<(SlotKey, Instant)>,
    /// The longest wait for the memory of ended workers.
    pub(super) return_patience: Duration,
    /// Ended workers whose memory was not released in that time.
    pub(super) leaks: Leaks,
    pub(super) declared: BTreeMap<DeviceId, DeviceDeclaration>,
    /// Devices whose driver does not tell processes apart, with the evidence for it.
    pub(super) blind: BTreeMap<DeviceId, Blindness>,
    /// The memory of programs without a lease on each such device, as the operator states it.
    pub(super) foreign: ByteCount,
    /// Whether the accounting of a device was uncertain at the last sample, so that the next must follow soon.
    pub(super) in_doubt: bool,
    /// Whether some lease may have lost its holder, so that all of them are checked after each sample.
    pub(super) unsettled: bool,
    /// The time of the last sample.
    pub(super) looked: Instant,
    /// The last warning, so that it is not repeated after every sample.
    pub(super) complaint: String,
}

/// The evidence that a driver does not tell processes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blindness {
    /// The driver refuses the query, or names processes without their memory.
    Refused,
    /// The driver lists processes, but not those of this coordinator's workers.
    Inferred,
}

impl fmt::Display for Blindness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "it refuses to",
            Self::Inferred => "its list lacks our worker, as it does in a container",
        })
    }
}
