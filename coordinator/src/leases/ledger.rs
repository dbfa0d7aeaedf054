//! The state of the thread of the ledger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use model_boss_core::LedgerState;
use model_boss_host::probe::Probes;
use model_boss_lease_store::{DeviceDeclaration, Holder, Others};
use model_boss_protocol::{ByteCount, DeviceId, ModelId};

use super::held::{Filling, Held, Place, Ranks};
use super::leaks::Leaks;
use super::status::{DeviceTable, StoreWatch};
use crate::scheduling::News;

/// What the thread owns.
pub(super) struct Ledger {
    pub(super) holder: Holder,
    pub(super) probes: Probes,
    pub(super) news: News,
    pub(super) table: DeviceTable,
    pub(super) watch: StoreWatch,
    pub(super) state: LedgerState,
    /// Makes request ids unique across restarts.
    pub(super) run: String,
    pub(super) held: HashMap<Filling, Held>,
    /// Models with a place in the ledger's queue.
    pub(super) places: BTreeMap<ModelId, Place>,
    /// Requests that the store did not hear were taken back.
    pub(super) cancelling: Vec<String>,
    /// Counts requests, so that none is mistaken for an earlier one.
    pub(super) asked: u64,
    /// What the scheduler was last told of others.
    pub(super) others: Others,
    /// Leases of ours that are asked back.
    pub(super) revoked: BTreeSet<Filling>,
    /// How important our leases are, as the scheduler said last.
    pub(super) ranks: Ranks,
    pub(super) releasing: Vec<(Filling, Instant)>,
    /// How long their memory is waited for,
    pub(super) return_patience: Duration,
    /// and those that did not give it back.
    pub(super) leaks: Leaks,
    pub(super) declared: BTreeMap<DeviceId, DeviceDeclaration>,
    /// Devices whose driver does not tell processes apart, as it says or as its lists show,
    pub(super) blind: BTreeMap<DeviceId, Blindness>,
    /// and what programs without a lease use on each of them, as the operator says.
    pub(super) foreign: ByteCount,
    /// Whether the last look left in doubt how a device is counted: the next comes soon.
    pub(super) in_doubt: bool,
    /// Some lease may have nobody who holds it any more: they are looked through at each look.
    pub(super) unsettled: bool,
    /// When the devices were last looked at.
    pub(super) looked: Instant,
    /// What was last said to be wrong, so that it is not said at every look.
    pub(super) complaint: String,
}

/// How it is known that a driver does not tell processes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blindness {
    /// It refuses the question, or names processes without their memory.
    Refused,
    /// It lists processes, and ours are not among them.
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
