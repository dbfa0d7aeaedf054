//! The embedded store: one database file in the coordinator's state folder. Other processes use it over HTTP.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model_boss_lease::{Ledger, Token};
use model_boss_protocol::{Later, chain};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::lock::{LockFile, private_folder};
use crate::state_file::{FileId, StateFileUse, open_state_file};
use crate::store::{Document, Etag, LedgerStore, Snapshot, StoredDocuments, Swap};
use crate::{StoreError, host};

/// The ledgers by boot id, each as an etag and JSON. The table has at most one row: opening drops the rows of other
/// boots.
const LEDGERS: TableDefinition<'_, &str, (u128, &str)> = TableDefinition::new("ledgers");

/// The largest token of earlier boots' ledgers, so that tokens grow across boots too.
const FENCE: TableDefinition<'_, (), u64> = TableDefinition::new("fence");

/// The small documents by name, each as an etag and its content.
const DOCUMENTS: TableDefinition<'_, &str, (u128, &str)> = TableDefinition::new("documents");

/// A document that was read longer ago than this is read again before a decision.
const READ_IS_OLD: Duration = Duration::from_secs(1);

/// Reserves as much room in the file as a ledger may need, and frees it: a full disk is noticed when the file is
/// opened.
const ROOM: TableDefinition<'_, (), &[u8]> = TableDefinition::new("room");

/// The size of a ledger with some hundred leases.
const USUAL_SIZE: usize = 64 << 10;

/// The pause before a file that could not be opened is opened again.
const OPEN_AGAIN: Duration = Duration::from_millis(250);

/// The lease ledger in a file of the state folder, used by one process at a time.
///
/// After a disk failure the file is closed, and opened again by a later operation: until that succeeds every
/// operation fails with an outage. A file that was removed or replaced is noticed at the next operation and opened as
/// it is.
#[derive(Debug)]
pub struct EmbeddedStore {
    state_dir: PathBuf,
    path: PathBuf,
    boot_id: String,
    open: Option<OpenFile>,
    /// The time before which the file is not opened again, and why it is closed.
    resting: Option<(Instant, String)>,
    /// The size of the largest document so far.
    room: usize,
    lock: LockFile,
}

/// The open database, with the identity of its file.
#[derive(Debug)]
struct OpenFile {
    database: Database,
    id: FileId,
}

impl EmbeddedStore {
    /// The name of the file in the state folder.
    pub const FILE: &'static str = "leases.redb";

    /// Opens or creates `leases.redb` in the state folder.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        Self::open_in_boot(state_dir, host::boot_id()?)
    }

    fn open_in_boot(state_dir: &Path, boot_id: String) -> Result<Self, StoreError> {
        let state_dir = private_folder(state_dir)?;
        let lock = LockFile::of_state_dir(&state_dir)?;
        let path = state_dir.join(Self::FILE);
        let mut store = Self { state_dir, path, boot_id, open: None, resting: None, room: USUAL_SIZE, lock };
        store.open = Some(store.open_file()?);
        Ok(store)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The largest token of any earlier boot.
    pub(crate) fn earlier_fence(&mut self) -> Result<Token, StoreError> {
        self.ask(|database| {
            let fence = database.begin_read()?.open_table(FENCE)?.get(())?;
            Ok(Token(fence.map_or(0, |fence| fence.value())))
        })
    }

    /// Runs one query. After an error the database is closed, so that no cached state is trusted.
    fn ask<T>(&mut self, question: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let database = &self.reopened()?.database;
        // The database panics on some kinds of damage instead of reporting them.
        let answer = catch_unwind(AssertUnwindSafe(|| question(database)))
            .map_err(|_| contradicts(&self.path))
            .and_then(|answer| answer.map_err(|error| database_error(&self.path, error)));
        answer.inspect_err(|error| self.rest(error))
    }

    /// The open file, opened again if it was closed or replaced.
    fn reopened(&mut self) -> Result<&OpenFile, StoreError> {
        if let Some((until, why)) = &self.resting
            && Instant::now() < *until
        {
            return Err(StoreError::Away { store: describe(&self.path), detail: why.clone() });
        }
        if self.open.as_ref().is_some_and(|open| !open.id.is_at(&self.path)) {
            self.close();
        }
        let open = match self.open.take() {
            Some(open) => open,
            None => self.open_in_place().map_err(|error| {
                self.rest(&error);
                StoreError::Away { store: describe(&self.path), detail: chain(&error) }
            })?,
        };
        self.resting = None;
        Ok(self.open.insert(open))
    }

    fn rest(&mut self, error: &StoreError) {
        self.close();
        self.resting = Some((Instant::now().later(OPEN_AGAIN), chain(error)));
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            // A failure to write the last pages is noticed at the next opening.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(open)));
        }
    }

    /// Opens the file again, even if its folder was removed meanwhile.
    fn open_in_place(&mut self) -> Result<OpenFile, StoreError> {
        private_folder(&self.state_dir)?;
        if !self.lock.is_in_place() {
            self.lock = LockFile::of_state_dir(&self.state_dir)?;
        }
        self.open_file()
    }

    fn open_file(&self) -> Result<OpenFile, StoreError> {
        let io = |source| StoreError::Io { act: "open", path: self.path.clone(), source };
        let file = open_state_file(&self.path, StateFileUse::Update).map_err(io)?;
        let id = FileId::of(&file).map_err(io)?;
        let database = open_database(&self.path, file)?;
        let prepared = catch_unwind(AssertUnwindSafe(|| self.prepare(&database)));
        prepared.map_err(|_| contradicts(&self.path))?.map_err(|error| database_error(&self.path, error))?;
        Ok(OpenFile { database, id })
    }

    /// Creates the tables and drops ledgers of other boots. A reboot empties every device, so their promises are
    /// void, but their tokens still count.
    fn prepare(&self, database: &Database) -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        {
            let mut ledgers = transaction.open_table(LEDGERS)?;
            let mut fences = transaction.open_table(FENCE)?;
            let mut reached = fences.get(())?.map_or(0, |fence| fence.value());
            for row in ledgers.iter()? {
                let (_, value) = row?;
                // An error is ignored: the boot that wrote this ledger reports that it cannot be read, and here only
                // its token is missing.
                if let Ok(ledger) = serde_json::from_str::<Ledger>(value.value().1) {
                    reached = reached.max(ledger.fence.0);
                }
            }
            ledgers.retain(|boot, _| boot == self.boot_id)?;
            fences.insert((), reached)?;
            // Creates the table, so that it can be read.
            transaction.open_table(DOCUMENTS)?;
            transaction.open_table(ROOM)?.insert((), vec![0; self.room].as_slice())?;
        }
        transaction.commit()?;
        let transaction = database.begin_write()?;
        transaction.open_table(ROOM)?.remove(())?;
        transaction.commit()?;
        Ok(())
    }

    fn swap(
        &mut self,
        table: TableDefinition<'_, &str, (u128, &str)>,
        key: &str,
        expected: Etag,
        next: Etag,
        content: &str,
    ) -> Result<Swap, StoreError> {
        // If this fails because the disk is full, the store reports an outage until there is enough space.
        self.room = self.room.max(content.len());
        self.ask(|database| {
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(table)?;
                let current = table.get(key)?.map_or(0, |row| row.value().0);
                if current != expected.0 {
                    return Ok(Swap::Conflict);
                }
                table.insert(key, (next.0, content))?;
            }
            transaction.commit()?;
            Ok(Swap::Done)
        })
    }

    fn read(
        &mut self,
        table: TableDefinition<'_, &str, (u128, &str)>,
        key: &str,
    ) -> Result<(Option<String>, Etag), StoreError> {
        self.ask(|database| {
            let row = database.begin_read()?.open_table(table)?.get(key)?;
            Ok(match row.as_ref().map(redb::AccessGuard::value) {
                Some((etag, content)) => (Some(content.to_owned()), Etag(etag)),
                None => (None, Etag(0)),
            })
        })
    }
}

impl LedgerStore for EmbeddedStore {
    fn load(&mut self) -> Result<Snapshot, StoreError> {
        let now = host::time_since_boot()?;
        let boot_id = self.boot_id.clone();
        let (document, etag) = self.read(LEDGERS, &boot_id)?;
        Ok(Snapshot { document, etag, now, run_id: None })
    }

    fn compare_and_swap(&mut self, loaded: &Snapshot, next: Etag, document: &str) -> Result<Swap, StoreError> {
        if host::time_since_boot()?.since(loaded.now) > READ_IS_OLD {
            return Ok(Swap::Stale);
        }
        let boot_id = self.boot_id.clone();
        self.swap(LEDGERS, &boot_id, loaded.etag, next, document)
    }

    fn describe(&self) -> String {
        describe(&self.path)
    }
}

fn describe(path: &Path) -> String {
    format!("embedded store, {}", path.display())
}

impl StoredDocuments for EmbeddedStore {
    fn load_document(&mut self, name: &str) -> Result<Document, StoreError> {
        let (content, etag) = self.read(DOCUMENTS, name)?;
        Ok(Document { content, etag })
    }

    fn swap_document(&mut self, name: &str, loaded: &Document, content: &str) -> Result<Swap, StoreError> {
        self.swap(DOCUMENTS, name, loaded.etag, Etag::random()?, content)
    }
}

/// Opens the file and checks every page, so that damage is found now and not during a load.
fn open_database(path: &Path, file: File) -> Result<Database, StoreError> {
    // The database panics on some kinds of damage instead of reporting them.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let mut database = Database::builder().create_file(file)?;
        // A repair here would restore an older ledger. (Opening has already repaired the effects of a kill.)
        if database.check_integrity()? {
            Ok(database)
        } else {
            Err(redb::StorageError::Corrupted("a checksum is wrong".to_owned()).into())
        }
    }));
    opened.map_err(|_| contradicts(path))?.map_err(|error| open_error(path, error))
}

fn contradicts(path: &Path) -> StoreError {
    StoreError::Corrupt { what: describe(path), detail: "its pages contradict each other".to_owned() }
}

fn open_error(path: &Path, error: redb::DatabaseError) -> StoreError {
    match error {
        redb::DatabaseError::Storage(redb::StorageError::Io(source))
            if source.kind() != std::io::ErrorKind::InvalidData
                && source.kind() != std::io::ErrorKind::UnexpectedEof =>
        {
            StoreError::Io { act: "open", path: path.to_owned(), source }
        }
        // The disk failed during the opening.
        redb::DatabaseError::Storage(redb::StorageError::PreviousIo) => database_error(path, redb::Error::PreviousIo),
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
    use model_boss_lease::LeaseDurations;

    fn store(dir: &Path, boot: &str) -> EmbeddedStore {
        EmbeddedStore::open_in_boot(dir, boot.to_owned()).unwrap()
    }

    fn etag(number: u128) -> Etag {
        Etag(number)
    }

    #[test]
    fn a_register_swaps_only_what_was_read_and_only_soon() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = store(dir.path(), "boot");
        let empty = store.load().unwrap();
        assert_eq!(empty.document, None);
        assert_eq!(store.compare_and_swap(&empty, etag(1), "one").unwrap(), Swap::Done);
        assert_eq!(store.compare_and_swap(&empty, etag(2), "two").unwrap(), Swap::Conflict);
        let mut loaded = store.load().unwrap();
        assert_eq!(loaded.document.as_deref(), Some("one"));
        loaded.now.0 -= 1_100_000;
        assert_eq!(store.compare_and_swap(&loaded, etag(2), "two").unwrap(), Swap::Stale);
        loaded.now.0 += 1_100_000;
        assert_eq!(store.compare_and_swap(&loaded, etag(2), "two").unwrap(), Swap::Done);
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
            let ledger = Ledger::new("first", Token(77), LeaseDurations::default());
            let loaded = store.load().unwrap();
            store.compare_and_swap(&loaded, etag(1), &serde_json::to_string(&ledger).unwrap()).unwrap();
        }
        for boot in ["second", "third"] {
            let mut store = store(dir.path(), boot);
            assert_eq!(store.load().unwrap().document, None);
            assert_eq!(store.earlier_fence().unwrap(), Token(77));
        }
        assert_eq!(store(dir.path(), "first").load().unwrap().document, None, "an old boot never comes back");
    }
}
