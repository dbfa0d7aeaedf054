//! The interface of a store: it holds one ledger and a few small documents, and swaps each for its next version.

use std::fmt;

use model_boss_lease::StoreTime;

use crate::StoreError;

/// A linearizable register that holds one host's ledger, and a clock. The rules run in its users.
pub trait LedgerStore: Send {
    /// The present document, and the store's time.
    fn load(&mut self) -> Result<Snapshot, StoreError>;

    /// Stores `document` with the etag `next`, if no other process did since `loaded` was read and that was not too
    /// long ago. After an error it may be stored or not.
    fn compare_and_swap(&mut self, loaded: &Snapshot, next: Etag, document: &str) -> Result<Swap, StoreError>;

    /// The kind and address of the store, human-readable.
    fn describe(&self) -> String;
}

/// Small documents that all users of the store share: runtime configuration, learned footprints.
pub trait StoredDocuments: Send {
    /// The present document of this name.
    fn load_document(&mut self, name: &str) -> Result<Document, StoreError>;

    /// Stores `content` if no other process did since `loaded` was read.
    fn swap_document(&mut self, name: &str, loaded: &Document, content: &str) -> Result<Swap, StoreError>;
}

/// A store of ledger and documents.
pub trait Store: LedgerStore + StoredDocuments {}

impl<S: LedgerStore + StoredDocuments> Store for S {}

/// The content of a store at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The ledger as JSON; `None` when this boot has none.
    pub document: Option<String>,
    /// The etag of this state of the register.
    pub etag: Etag,
    /// The store's time of reading.
    pub now: StoreTime,
    /// The run of the store's process, since a new one may have lost writes. `None` if the store loses no acknowledged
    /// write.
    pub run_id: Option<String>,
}

/// The content of a document at one moment.
#[derive(Clone, Debug)]
pub struct Document {
    /// The document's text; `None` if it was never written.
    pub content: Option<String>,
    /// The etag of this state of the document.
    pub etag: Etag,
}

/// The etag of one state of a register; 0 where it is empty. The etag is random, so that no state after a loss of data
/// is mistaken for an earlier one.
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

/// The result of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The document is stored.
    Done,
    /// Another process changed the document first: load it again.
    Conflict,
    /// Too much time passed since the document was read, or the store's process changed, so the decision may be wrong.
    /// Load the document again.
    Stale,
}
