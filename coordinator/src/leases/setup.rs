//! The setup of the ledger's thread, and the values that it returns once it runs.

use std::path::PathBuf;
use std::time::Duration;

use model_boss_host::probe::Probe;
use model_boss_lease_store::{LeaseDurations, StoreError};
use model_boss_protocol::ByteCount;
use tokio_util::sync::CancellationToken;

use crate::leases::{DeviceTable, Leases, StoreChoice, StoreWatch};
use crate::scheduling::News;

/// The parameters of the ledger's thread.
pub(crate) struct LeaseSetup {
    /// The place of the ledger.
    pub(crate) store: StoreChoice,
    /// The folder in which coordinators claim this host's devices, if not the shared one.
    pub(crate) runtime_dir: Option<PathBuf>,
    /// The terms of leases.
    pub(crate) terms: LeaseDurations,
    /// The memory of programs without a lease, set by the operator for a device whose driver does not tell processes
    /// apart.
    pub(crate) foreign: ByteCount,
    /// The longest wait for an ended worker's memory before its device is reported as leaking.
    pub(crate) return_patience: Duration,
    /// The probes of the devices.
    pub(crate) probes: Vec<Box<dyn Probe>>,
    /// The receiver of reports.
    pub(crate) news: News,
}

/// The running thread, once the ledger is open or its store is known to be unreachable.
pub(crate) struct LeaseStart {
    /// The handle of the ledger's thread.
    pub(crate) leases: Leases,
    /// The devices' last samples, kept up to date.
    pub(crate) devices: DeviceTable,
    /// The store's state, kept up to date.
    pub(crate) store: StoreWatch,
    /// The token is cancelled if the ledger's thread ends, which is a fault.
    pub(crate) ended: CancellationToken,
}

/// Why the ledger could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseStartError {
    /// The ledger itself failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread could not be started.
    #[error("cannot start the thread that keeps the lease ledger")]
    Thread(#[source] std::io::Error),
    /// The thread ended without an answer.
    #[error("the thread that keeps the lease ledger ended while it started")]
    Ended,
}
