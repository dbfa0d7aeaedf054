//! The last state of devices and store, written by the ledger's thread only.

use std::sync::{Arc, PoisonError, RwLock};

use model_boss_core::LedgerState;
use model_boss_host::probe::DeviceSample;
use model_boss_protocol::DeviceId;
use schemars::JsonSchema;
use serde::Serialize;

/// The last samples of the devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceTable(Arc<RwLock<LastLook>>);

/// The probes' results in the last sample.
#[derive(Debug, Default)]
pub(super) struct LastLook {
    pub(super) samples: Vec<DeviceSample>,
    /// The probes' own faults.
    pub(super) problems: Vec<String>,
}

/// The last state of the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreWatch(Arc<RwLock<StoreStatus>>);

/// The state of the lease store, for operators and health probes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct StoreStatus {
    /// The store's kind and address, without credentials.
    pub(crate) store: String,
    /// Whether memory can be leased now.
    #[serde(flatten)]
    pub(crate) state: LedgerState,
    /// Whether the store was ever reached: until then no model is loaded, so no request can be served.
    pub(crate) reached: bool,
    /// Faults in how other processes of this host are seen.
    #[serde(skip)]
    pub(crate) warnings: Vec<String>,
}

impl DeviceTable {
    /// The last samples.
    pub(crate) fn samples(&self) -> Vec<DeviceSample> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).samples.clone()
    }

    /// Whether any device or probe has a fault.
    pub(crate) fn is_in_trouble(&self) -> bool {
        let look = self.0.read().unwrap_or_else(PoisonError::into_inner);
        !look.problems.is_empty() || look.samples.iter().any(|sample| sample.trouble.is_some())
    }

    /// The current faults of devices and probes, human-readable.
    pub(crate) fn problems(&self) -> Vec<String> {
        let look = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let in_trouble = look.samples.iter().filter_map(|sample| {
            let DeviceSample { device, name, uuid, trouble, .. } = sample;
            let uuid = uuid.as_deref().map(|uuid| format!(", {uuid}")).unwrap_or_default();
            trouble.as_ref().map(|trouble| format!("{device} ({name}{uuid}): {trouble}"))
        });
        in_trouble.chain(look.problems.iter().cloned()).collect()
    }

    /// The UUID of a GPU.
    pub(crate) fn uuid_of(&self, device: &DeviceId) -> Option<String> {
        let look = self.0.read().unwrap_or_else(PoisonError::into_inner);
        look.samples.iter().find(|sample| sample.device == *device)?.uuid.clone()
    }

    pub(super) fn set(&self, samples: Vec<DeviceSample>, problems: Vec<String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = LastLook { samples, problems };
    }
}

impl StoreWatch {
    pub(super) fn new(store: String) -> Self {
        let state = LedgerState::Away { detail: "it was not asked yet".to_owned() };
        Self(Arc::new(RwLock::new(StoreStatus { store, state, reached: false, warnings: Vec::new() })))
    }

    /// The store's current state.
    pub(crate) fn status(&self) -> StoreStatus {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut StoreStatus)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}
