//! The lease rules: who was promised which bytes on which device, and when a promise ends. Pure.
//!
//! Knows no clock, no randomness, no store, no processes: [`apply`] takes the ledger of one host, the store's time and
//! one operation, changes the ledger and says what came of it. Every store runs these same rules over one document.
//!
//! What always holds, whatever the order of operations (the property tests check it):
//! no grant takes a device over its capacity, counting what the ledger and the newest observation know (I1); tokens
//! only grow (I2); a request id has one lease (I3); all parts of a lease are granted or none (I4); a stale token
//! changes nothing (I5); bytes leave only by release with evidence, by proof of death, or by dropping a promise that
//! no process was ever attached to (I6).

mod ledger;
mod op;
mod rules;

pub use ledger::{
    Device, DeviceKey, Lease, LeaseId, LeaseState, Ledger, Owner, OwnerKind, Part, Process, SCHEMA, StoreTime, Terms,
    Token,
};
pub use op::{Evidence, Grant, NeverFits, Op, Outcome, ProcessUse, Refusal, WaitReason};
pub use rules::apply;
