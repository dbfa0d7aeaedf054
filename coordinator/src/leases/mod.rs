//! The coordinator's side of the lease ledger: one OS thread owns the holder and the probes, because both may block. It
//! grants nothing itself; it asks the ledger, tells the driver, renews on time whatever else happens, and gives bytes back
//! only when the process is seen to be gone. While the store is out of reach nothing is forgotten and nothing new begins.

mod command;
mod documents;
mod guests;
mod handle;
mod held;
mod keeper;
mod leaks;
mod ledger;
mod leftovers;
mod look;
mod opening;
mod refused;
mod setup;
mod status;
mod workers;

pub(crate) use documents::LedgerDocuments;
pub(crate) use guests::Answer;
pub(crate) use handle::Leases;
pub(crate) use opening::StoreChoice;
pub(crate) use setup::{LeaseSetup, LeaseStart, LeaseStartError};
pub(crate) use status::{DeviceTable, StoreStatus, StoreWatch};
