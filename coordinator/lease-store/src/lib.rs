//! Where the lease ledger is kept, and the holder through which a process uses it.
//!
//! A store is a register that swaps whole documents ([`LedgerStore`]); the rules are in `model-boss-lease` and know no
//! store. Everything here blocks: call it from a thread of its own, never on the way of a request.

mod embedded;
mod error;
mod holder;
mod host;
mod lock;
mod store;
mod view;

pub use embedded::EmbeddedStore;
pub use error::StoreError;
pub use holder::{AcquireRequest, Acquired, DeviceDeclaration, Holder, LeaseHandle, Leftover, Observation};
pub use host::{boot_id, is_gone, process, this_process};
pub use model_boss_lease::{DeviceKey, Evidence, LeaseId, LeaseState, Owner, OwnerKind, Process, StoreTime, Terms};
pub use store::{Etag, LedgerStore, Snapshot, Swap};
pub use view::{LeaseView, PartView};
