//! The coordinator's side of the lease ledger. One OS thread owns the holder and the probes, because both may block.
//! The ledger grants leases. This side requests them, reports to the driver, and renews in time in every situation. It
//! releases memory only when the process is known to be gone. While the store is unreachable, no lease is dropped and
//! none is requested.

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
pub(crate) use guests::GuestAnswer;
pub(crate) use handle::Leases;
pub(crate) use held::LeaseAsk;
pub(crate) use opening::StoreChoice;
pub(crate) use setup::{LeaseSetup, LeaseStart, LeaseStartError};
pub(crate) use status::{DeviceTable, StoreStatus, StoreWatch};
