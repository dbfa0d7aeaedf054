//! Small documents that coordinators of one lease store share.

use std::pin::Pin;

use model_boss_lease_store::{Document, StoreError, Swap};

/// The future of an answer from a store that may block.
pub type DocumentAnswer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Documents beside the lease ledger, one for each name, shared by every coordinator of that ledger.
pub trait DocumentStore: Send + Sync {
    /// The current document. One that was never written has no content.
    fn load(&self, name: &'static str) -> DocumentAnswer<'_, Document>;

    /// Writes `content` if the document has not changed since it was loaded.
    fn swap(&self, name: &'static str, loaded: Document, content: String) -> DocumentAnswer<'_, Swap>;
}
