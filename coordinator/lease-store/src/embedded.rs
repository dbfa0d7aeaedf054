//! The store inside the coordinator: one database file in its state folder. Other processes reach it over HTTP.

use std::path::{Path, PathBuf};
use std::time::Duration;

use model_boss_lease::{Ledger, Token};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::StoreError;
use crate::host;
use crate::lock::{LockFile, private_folder};
use crate::store::{Document, DocumentStore, Etag, LedgerStore, Snapshot, Swap};

/// Boot id → etag, and the ledger as JSON. At most one row: opening drops the rows of other boots.
const LEDGERS: TableDefinition<'_, &str, (u128, &str)> = TableDefinition::new("ledgers");

/// What the ledger of an earlier boot leaves behind: the largest token, so that tokens grow across boots too.
const FENCE: TableDefinition<'_, (), u64> = TableDefinition::new("fence");

/// Name → etag, and the content of a small document.
const DOCUMENTS: TableDefinition<'_, &str, (u128, &str)> = TableDefinition::new("documents");

/// A document read longer ago than this is read again before anything is decided on it.
const READ_IS_OLD: Duration = Duration::from_secs(1);

/// The lease ledger in a file of the state folder, used by one process at a time.
#[derive(Debug)]
pub struct EmbeddedStore {
    database: Database,
    path: PathBuf,
    boot_id: String,
    _lock: LockFile,
}

impl EmbeddedStore {
    /// The name of the file in the state folder.
    pub const FILE: &'static str = "leases.redb";

    /// Opens or makes `leases.redb` in the state folder.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        Self::open_in_boot(state_dir, host::boot_id()?)
    }

    fn open_in_boot(state_dir: &Path, boot_id: String) -> Result<Self, StoreError> {
        let state_dir = private_folder(state_dir)?;
        let lock = LockFile::of_state_dir(&state_dir)?;
        let path = state_dir.join(Self::FILE);
        let database = open_database(&path)?;
        let mut store = Self { database, path, boot_id, _lock: lock };
        store.drop_other_boots()?;
        Ok(store)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The largest token of any earlier boot.
    pub(crate) fn earlier_fence(&self) -> Result<Token, StoreError> {
        let failed = |error: redb::Error| self.failed(error);
        let transaction = self.database.begin_read().map_err(|error| failed(error.into()))?;
        let table = transaction.open_table(FENCE).map_err(|error| failed(error.into()))?;
        let fence = table.get(()).map_err(|error| failed(error.into()))?;
        Ok(Token(fence.map_or(0, |fence| fence.value())))
    }

    /// A reboot empties every device, so the promises of other boots mean nothing; their tokens still count.
    fn drop_other_boots(&mut self) -> Result<(), StoreError> {
        let failed = |error: redb::Error| self.failed(error);
        let transaction = self.database.begin_write().map_err(|error| failed(error.into()))?;
        {
            let mut ledgers = transaction.open_table(LEDGERS).map_err(|error| failed(error.into()))?;
            let mut fences = transaction.open_table(FENCE).map_err(|error| failed(error.into()))?;
            let mut reached = fences.get(()).map_err(|error| failed(error.into()))?.map_or(0, |fence| fence.value());
            for row in ledgers.iter().map_err(|error| failed(error.into()))? {
                let (_, value) = row.map_err(|error| failed(error.into()))?;
                // A ledger that cannot be read is reported when its own boot reads it; here its token is just not known.
                if let Ok(ledger) = serde_json::from_str::<Ledger>(value.value().1) {
                    reached = reached.max(ledger.fence.0);
                }
            }
            ledgers.retain(|boot, _| boot == self.boot_id).map_err(|error| failed(error.into()))?;
            fences.insert((), reached).map_err(|error| failed(error.into()))?;
            // Makes the table, so that it can be read.
            transaction.open_table(DOCUMENTS).map_err(|error| failed(error.into()))?;
        }
        transaction.commit().map_err(|error| failed(error.into()))
    }

    fn swap(
        &self,
        table: TableDefinition<'_, &str, (u128, &str)>,
        key: &str,
        expected: Etag,
        content: &str,
    ) -> Result<Swap, StoreError> {
        let failed = |error: redb::Error| self.failed(error);
        let next = Etag::random()?;
        let transaction = self.database.begin_write().map_err(|error| failed(error.into()))?;
        {
            let mut table = transaction.open_table(table).map_err(|error| failed(error.into()))?;
            let current = table.get(key).map_err(|error| failed(error.into()))?.map_or(0, |row| row.value().0);
            if current != expected.0 {
                return Ok(Swap::Conflict);
            }
            table.insert(key, (next.0, content)).map_err(|error| failed(error.into()))?;
        }
        transaction.commit().map_err(|error| failed(error.into()))?;
        Ok(Swap::Done)
    }

    fn failed(&self, error: redb::Error) -> StoreError {
        database_error(&self.path, error)
    }
}

impl LedgerStore for EmbeddedStore {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        let failed = |error: redb::Error| self.failed(error);
        let now = host::time_since_boot()?;
        let transaction = self.database.begin_read().map_err(|error| failed(error.into()))?;
        let table = transaction.open_table(LEDGERS).map_err(|error| failed(error.into()))?;
        let row = table.get(self.boot_id.as_str()).map_err(|error| failed(error.into()))?;
        Ok(match row.as_ref().map(redb::AccessGuard::value) {
            Some((etag, document)) => {
                Snapshot { document: Some(document.to_owned()), etag: Etag(etag), now, run_id: None }
            }
            None => Snapshot { document: None, etag: Etag(0), now, run_id: None },
        })
    }

    fn compare_and_swap(&mut self, loaded: &Snapshot, document: &str) -> Result<Swap, StoreError> {
        if host::time_since_boot()?.since(loaded.now) > READ_IS_OLD {
            return Ok(Swap::Stale);
        }
        self.swap(LEDGERS, &self.boot_id, loaded.etag, document)
    }

    fn describe(&self) -> String {
        describe(&self.path)
    }
}

fn describe(path: &Path) -> String {
    format!("embedded store, {}", path.display())
}

impl DocumentStore for EmbeddedStore {
    fn load_document(&mut self, name: &str) -> Result<Document, StoreError> {
        let failed = |error: redb::Error| self.failed(error);
        let transaction = self.database.begin_read().map_err(|error| failed(error.into()))?;
        let table = transaction.open_table(DOCUMENTS).map_err(|error| failed(error.into()))?;
        let row = table.get(name).map_err(|error| failed(error.into()))?;
        Ok(match row.as_ref().map(redb::AccessGuard::value) {
            Some((etag, content)) => Document { content: Some(content.to_owned()), etag: Etag(etag) },
            None => Document { content: None, etag: Etag(0) },
        })
    }

    fn swap_document(&mut self, name: &str, loaded: &Document, content: &str) -> Result<Swap, StoreError> {
        self.swap(DOCUMENTS, name, loaded.etag, content)
    }
}

/// Opens the file and checks every page, so that a damaged one is found now and not in the middle of a load.
fn open_database(path: &Path) -> Result<Database, StoreError> {
    // The database panics on some damages instead of reporting them.
    let opened = std::panic::catch_unwind(|| {
        let mut database = Database::create(path)?;
        // A repair here would bring back an older ledger. (What a kill leaves behind was repaired by opening.)
        if database.check_integrity()? {
            Ok(database)
        } else {
            Err(redb::StorageError::Corrupted("a checksum is wrong".to_owned()).into())
        }
    });
    match opened {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(error)) => Err(open_error(path, error)),
        Err(_) => {
            Err(StoreError::Corrupt { what: describe(path), detail: "its pages contradict each other".to_owned() })
        }
    }
}

fn open_error(path: &Path, error: redb::DatabaseError) -> StoreError {
    match error {
        redb::DatabaseError::Storage(redb::StorageError::Io(source))
            if source.kind() != std::io::ErrorKind::InvalidData
                && source.kind() != std::io::ErrorKind::UnexpectedEof =>
        {
            StoreError::Io { act: "open", path: path.to_owned(), source }
        }
        other => StoreError::Corrupt { what: describe(path), detail: other.to_string() },
    }
}

fn database_error(path: &Path, error: redb::Error) -> StoreError {
    match error {
        redb::Error::Corrupted(detail) => StoreError::Corrupt { what: describe(path), detail },
        redb::Error::TableTypeMismatch { .. } => {
            StoreError::Corrupt { what: describe(path), detail: "it holds something else".to_owned() }
        }
        other => StoreError::Database { path: path.to_owned(), source: Box::new(other) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_boss_lease::Terms;

    fn store(dir: &Path, boot: &str) -> EmbeddedStore {
        EmbeddedStore::open_in_boot(dir, boot.to_owned()).unwrap()
    }

    #[test]
    fn a_register_swaps_only_what_was_read_and_only_soon() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = store(dir.path(), "boot");
        let empty = store.load().unwrap();
        assert_eq!(empty.document, None);
        assert_eq!(store.compare_and_swap(&empty, "one").unwrap(), Swap::Done);
        assert_eq!(store.compare_and_swap(&empty, "two").unwrap(), Swap::Conflict);
        let mut loaded = store.load().unwrap();
        assert_eq!(loaded.document.as_deref(), Some("one"));
        loaded.now.0 -= 1_100_000;
        assert_eq!(store.compare_and_swap(&loaded, "two").unwrap(), Swap::Stale);
        loaded.now.0 += 1_100_000;
        assert_eq!(store.compare_and_swap(&loaded, "two").unwrap(), Swap::Done);
        assert_eq!(store.load().unwrap().document.as_deref(), Some("two"));
    }

    #[test]
    fn small_documents_survive_a_reopen_and_other_boots() {
        let dir = tempfile::tempdir().unwrap();
        {
            let mut store = store(dir.path(), "first");
            let empty = store.load_document("settings").unwrap();
            assert_eq!(empty.content, None);
            assert_eq!(store.swap_document("settings", &empty, "one").unwrap(), Swap::Done);
            assert_eq!(store.swap_document("settings", &empty, "two").unwrap(), Swap::Conflict);
        }
        let mut store = store(dir.path(), "second");
        let loaded = store.load_document("settings").unwrap();
        assert_eq!(loaded.content.as_deref(), Some("one"));
        assert_eq!(store.swap_document("settings", &loaded, "two").unwrap(), Swap::Done);
        assert_eq!(store.load_document("other").unwrap().content, None);
    }

    #[test]
    fn another_boot_begins_empty_and_its_tokens_go_on() {
        let dir = tempfile::tempdir().unwrap();
        {
            let mut store = store(dir.path(), "first");
            let ledger = Ledger::new("first", Token(77), Terms::default());
            let loaded = store.load().unwrap();
            store.compare_and_swap(&loaded, &serde_json::to_string(&ledger).unwrap()).unwrap();
        }
        for boot in ["second", "third"] {
            let mut store = store(dir.path(), boot);
            assert_eq!(store.load().unwrap().document, None);
            assert_eq!(store.earlier_fence().unwrap(), Token(77));
        }
        assert_eq!(store(dir.path(), "first").load().unwrap().document, None, "an old boot never comes back");
    }
}
