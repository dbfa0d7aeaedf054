//! What a store can do: hold one ledger, and a few small documents beside it, and swap each for the next one.

use std::fmt;

use model_boss_lease::StoreTime;

use crate::StoreError;

/// A linearizable register that holds one host's ledger, and a clock. Nothing more: the rules run in its users.
pub trait LedgerStore: Send {
    /// The document as it is now, and the store's time.
    fn load(&mut self) -> Result<Snapshot, StoreError>;

    /// Puts `document` in place, to be named `next`, if nobody else did since `loaded` was read and that was not too long
    /// ago. After an error it may be in place or not.
    fn compare_and_swap(&mut self, loaded: &Snapshot, next: Etag, document: &str) -> Result<Swap, StoreError>;

    /// What and where it is, for people.
    fn describe(&self) -> String;
}

/// Small documents that everybody who uses the store shares: runtime configuration, learned footprints.
pub trait DocumentStore: Send {
    /// The document of this name as it is now.
    fn load_document(&mut self, name: &str) -> Result<Document, StoreError>;

    /// Puts `content` in place if nobody else did since `loaded` was read.
    fn swap_document(&mut self, name: &str, loaded: &Document, content: &str) -> Result<Swap, StoreError>;
}

/// A store that does both.
pub trait Store: LedgerStore + DocumentStore {}

impl<S: LedgerStore + DocumentStore> Store for S {}

/// What a store held at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The ledger as JSON; `None` when this boot has none.
    pub document: Option<String>,
    /// Names this state of the register.
    pub etag: Etag,
    /// The store's time of reading.
    pub now: StoreTime,
    /// The store's process, where another one may know less. `None`: nothing that was acknowledged is ever lost.
    pub run_id: Option<String>,
}

/// What a document held at one moment.
#[derive(Clone, Debug)]
pub struct Document {
    /// `None` when nobody has written it yet.
    pub content: Option<String>,
    /// Names this state of it.
    pub etag: Etag,
}

/// Names one state of a register; 0 where there is nothing. Random, so that no state after a loss of data is mistaken
/// for one before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Etag(pub u128);

impl Etag {
    /// 128 random bits, never 0.
    pub fn random() -> Result<Self, StoreError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| StoreError::Host("random numbers"))?;
        Ok(Self(u128::from_ne_bytes(bytes).max(1)))
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etag({self})")
    }
}

/// What came of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The document is in place.
    Done,
    /// Somebody else was faster: load again.
    Conflict,
    /// Too much time passed since the document was read, or the store is another process now: what was decided on it
    /// may be wrong. Load again.
    Stale,
}
