//! The lease rules: who was promised which bytes on which device, and when a promise ends. Pure.
//!
//! Knows no clock, no randomness, no store, no processes: [`apply`] takes the ledger of one host, the store's time and
//! one operation, changes the ledger and says what came of it. Every store runs these same rules over one document.
//! Where a store can lose what it acknowledged, [`read_from`] and [`after_loss`] open the recovery window first.
//!
//! What always holds, whatever the order of operations (`tests/` checks it over random histories, with a model checker,
//! and by showing that each of a list of seeded bugs is caught):
//! no grant takes a device over its capacity, counting what the ledger and the newest observation know (I1); tokens
//! only grow (I2); a request id has one lease (I3); all parts of a lease are granted or none (I4); a stale token
//! changes nothing (I5); bytes leave only by release with evidence, by proof of death, by dropping a promise that
//! no process was ever attached to, or by an operator's force, which the ledger keeps (I6); no grant passes an earlier waiter of equal or higher importance (I7); those
//! who are asked to yield are a minimal set and less important (I8); what a dead holder held can be granted as soon as
//! its device shows it free (I9); a feasible request with cooperative holders is granted (I10).

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
pub use ledger::{Forced, Ledger, SCHEMA, Terms};
pub use op::{Evidence, Op, Record, Renewal};
pub use outcome::{Grant, NeverFits, Outcome, Refusal, Revocation, Victim, Wait};
pub use process::Process;
pub use reason::{Share, WaitReason};
pub use rules::{after_loss, apply, nominations, read_from};
pub use time::StoreTime;
pub use unknown::UnknownValue;
pub use waiter::{Mode, Request, Waiter, Want};
