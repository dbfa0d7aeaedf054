//! The lease rules: promises of bytes on devices to holders, and the end of promises.
//!
//! The crate is pure: it has no clock, randomness, store or processes. [`apply`] takes the ledger of one host, the
//! store's time and one operation, changes the ledger and returns the outcome. Every store runs these same rules over
//! one document. Where a store can lose an acknowledged write, [`read_from`] and [`after_loss`] open the recovery
//! window first.
//!
//! These invariants hold for every order of operations:
//!
//! - No grant takes a device over its capacity, counting what the ledger and the newest observation know (I1).
//! - Tokens only grow (I2).
//! - A request id has one lease (I3).
//! - All parts of a lease are granted or none (I4).
//! - A stale token changes nothing (I5).
//! - Bytes leave only by release with evidence, proof of death, an operator's force (which the ledger keeps), or
//!   dropping a promise without a process (I6).
//! - No grant passes an earlier waiter of equal or higher importance (I7).
//! - Revoked leases are a minimal set, and less important than the request (I8).
//! - The bytes of a dead holder can be granted as soon as its device shows them free (I9).
//! - A feasible request with cooperative holders is granted (I10).
//!
//! `tests/` checks them over random histories and with a model checker. It also shows that the checks catch each of a
//! list of seeded bugs.

mod device;
mod lease;
mod ledger;
mod op;
mod outcome;
mod process;
mod reason;
mod rules;
mod time;
mod unknown;
mod waiter;

pub use device::{Accounting, Device, DeviceKey, ProcessUse};
pub use lease::{Lease, LeaseId, LeaseState, Owner, OwnerKind, Part, Token, Yielding};
pub use ledger::{Forced, LeaseDurations, Ledger, SCHEMA};
pub use op::{Evidence, Op, Record, Renewal};
pub use outcome::{Grant, NeverFits, OpRefusal, Outcome, Revocation, RevokedLease, Wait};
pub use process::Process;
pub use reason::{LeaseWaitReason, Share};
pub use rules::{after_loss, apply, nominations, read_from};
pub use time::StoreTime;
pub use unknown::UnknownValue;
pub use waiter::{Mode, Request, Waiter, Want};
