//! Documents of the lease store, read and written by the thread that owns it.

use model_boss_lease_store::{Document, Swap};
use model_boss_settings::{DocumentAnswer, DocumentStore};

use super::handle::Leases;

/// Access to the documents beside the ledger, but not to the ledger. The handle is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LedgerDocuments(Leases);

impl LedgerDocuments {
    /// A handle to the ledger's documents.
    pub(crate) fn new(leases: Leases) -> Self {
        Self(leases)
    }
}

impl DocumentStore for LedgerDocuments {
    fn load(&self, name: &'static str) -> DocumentAnswer<'_, Document> {
        Box::pin(self.0.on_thread(move |ledger| {
            let document = ledger.holder.load_document(name);
            ledger.done(&document);
            document
        }))
    }

    fn swap(&self, name: &'static str, loaded: Document, content: String) -> DocumentAnswer<'_, Swap> {
        Box::pin(self.0.on_thread(move |ledger| {
            let swapped = ledger.holder.swap_document(name, &loaded, &content);
            ledger.done(&swapped);
            swapped
        }))
    }
}
