//! Beginnings of the thread of the ledger: its setup, and what is known once it runs.

use std::path::PathBuf;
use std::time::Duration;

use model_boss_host::probe::Probe;
use model_boss_lease_store::{StoreError, Terms};
use model_boss_protocol::ByteCount;
use tokio_util::sync::CancellationToken;

use crate::leases::{DeviceTable, Leases, StoreChoice, StoreWatch};
use crate::scheduling::News;

/// What the ledger's thread needs to begin.
pub(crate) struct LeaseSetup {
    /// Where the ledger is.
    pub(crate) store: StoreChoice,
    /// Where it is said who counts this host's devices, if not where everybody finds it.
    pub(crate) runtime_dir: Option<PathBuf>,
    /// How long leases last.
    pub(crate) terms: Terms,
    /// What programs without a lease use on a device whose driver does not tell processes apart.
    pub(crate) foreign: ByteCount,
    /// How long the memory of an ended worker is waited for before its device is said to be leaking.
    pub(crate) return_patience: Duration,
    /// The eyes on the devices.
    pub(crate) probes: Vec<Box<dyn Probe>>,
    /// Where reports go.
    pub(crate) news: News,
}

/// What is known once the ledger is open, or its store is known to be out of reach.
pub(crate) struct LeaseStart {
    /// The handle.
    pub(crate) leases: Leases,
    /// What the devices show, kept up to date.
    pub(crate) devices: DeviceTable,
    /// How the store is, kept up to date.
    pub(crate) store: StoreWatch,
    /// Set when the thread has ended, which it must not.
    pub(crate) ended: CancellationToken,
}

/// The ledger could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseStartError {
    /// The ledger itself.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No thread.
    #[error("cannot start the thread that keeps the lease ledger")]
    Thread(#[source] std::io::Error),
    /// The thread went away without a word.
    #[error("the thread that keeps the lease ledger ended while it started")]
    Ended,
}
