//! The stores of the lease ledger, and the holder through which a process uses one.
//!
//! A store is a register that swaps whole documents ([`LedgerStore`]); the rules are in `model-boss-lease` and do not
//! depend on the store. There are two: embedded in the coordinator, and Redis for all processes of a host. All calls
//! block: make them from a thread of its own, never while a request is handled.

mod caller;
mod capability;
mod claim;
mod contract;
mod embedded;
mod error;
mod guest_name;
mod holder;
mod host;
mod lock;
mod mark;
mod node;
mod place;
mod race;
mod redis_store;
mod stat;
mod state_file;
mod store;
mod tree;
mod view;

pub use caller::Caller;
pub use capability::{Capability, Proof};
pub use contract::{
    AcquireRequest, Acquired, DeviceDeclaration, LeaseHandle, LeaseWish, Leftover, Observation, RenewOutcome, Revoked,
    RevokedForUs,
};
pub use embedded::EmbeddedStore;
pub use error::{NotNamed, StoreError, Unreachable};
pub use holder::{GuestAcquired, GuestHandle, GuestLease, GuestRecord, GuestReleased, Holder, OtherLeases};
pub use host::{boot_id, process, this_process};
pub use model_boss_lease::{
    Accounting, DeviceKey, Evidence, LeaseDurations, LeaseId, LeaseState, Mode, OpRefusal, Owner, OwnerKind, Process,
    StoreTime, Token, Yielding,
};
pub use redis_store::{RedisFacts, RedisLink, RedisStore, redis_server};
pub use stat::GUARD_NAME;
pub use state_file::{StateFileUse, check_state_file, open_state_file, replace_state_file};
pub use store::{Document, Etag, LedgerStore, Snapshot, Store, StoredDocuments, Swap};
pub use tree::{Below, GUARDS_VARIABLE, ProcessLook, ProcessTree, guard_mark, is_gone};
pub use view::{ForcedView, LeaseView, PartView, RevokeView, WaiterView};
