//! Leases and requests of other holders, as the scheduler remembers them.

use std::collections::BTreeMap;

use model_boss_protocol::{OtherLease, OtherRequest, Priority};

use crate::catalog::ModelIndex;
use crate::need::Parts;

/// A model's place in the ledger's queue.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::scheduler) struct LedgerPlace {
    pub(in crate::scheduler) parts: Parts,
    pub(in crate::scheduler) priority: Priority,
    /// Whether leases of other holders are revoked for the model.
    pub(in crate::scheduler) preempt: bool,
}

/// Leases and requests of other holders, and the places of this coordinator's models in the same queue.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct OtherHolders {
    pub(in crate::scheduler) leases: Vec<OtherLease>,
    /// The requests of other holders, in the order of arrival.
    pub(in crate::scheduler) requests: Vec<OtherRequest>,
    pub(in crate::scheduler) places: BTreeMap<ModelIndex, LedgerPlace>,
}
