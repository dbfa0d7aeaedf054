//! How a process uses the ledger: each call is read, rules, swap, until the swap succeeds. Decides nothing itself.
//!
//! Blocks on the store; call it from a thread of its own, whose heartbeat then depends on nothing else. While the store
//! is away every call fails and nothing is forgotten: what is held stays held, and is stated again when it is back.

mod ask;
mod guest;
mod keep;
mod naming;
mod observe;
mod operate;
mod others;
mod settle;
mod state;
#[cfg(test)]
mod tests;

pub use guest::{GuestAcquired, GuestHandle, GuestLease, GuestRecord, GuestReleased};
pub use others::{OtherLease, OtherWaiter, Others};
pub use state::Holder;
