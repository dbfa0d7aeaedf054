//! What a store can do: hold one document, and swap it for the next one.

use std::fmt;

use model_boss_lease::StoreTime;

use crate::StoreError;

/// A linearizable register that holds one host's ledger, and a clock. Nothing more: the rules run in its users.
pub trait LedgerStore: Send {
    /// The document as it is now, and the store's time.
    fn load(&mut self) -> Result<Snapshot, StoreError>;

    /// Puts `document` in place if nobody else did since `loaded` was read and that was not too long ago.
    fn compare_and_swap(&mut self, loaded: &Snapshot, document: &str) -> Result<Swap, StoreError>;

    /// What and where it is, for people.
    fn describe(&self) -> String;
}

/// What a store held at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The ledger as JSON; `None` when this boot has none yet.
    pub document: Option<String>,
    /// Names this state of the register.
    pub etag: Etag,
    /// The store's time of reading.
    pub now: StoreTime,
}

/// Names one state of a register. Random, so that no state after a loss of data is mistaken for one before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Etag(pub u128);

impl fmt::Debug for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etag({:032x})", self.0)
    }
}

/// What came of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The document is in place.
    Done,
    /// Somebody else was faster: load again.
    Conflict,
    /// Too much time passed since the document was read: what was decided on it may be wrong. Load again.
    Stale,
}
