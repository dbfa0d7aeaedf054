//! The use of the ledger by one process. Each call reads the document, applies the rules and swaps it, until the swap
//! succeeds. The decisions are those of the rules.
//!
//! Calls block on the store: make them from a thread of its own, so that the heartbeat depends on no other work.
//! While the store cannot be reached every call fails. Held leases stay held, and are reported again when it is back.

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
pub use others::OtherLeases;
pub use state::Holder;
