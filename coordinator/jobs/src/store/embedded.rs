//! Records in a file of the state folder, written by one process at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use model_boss_lease_store::{StateFileUse, open_state_file};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::error::JobStoreError;
use super::traits::{RecordChange, RecordStore, SCHEMA};

/// The records by name.
const RECORDS: TableDefinition<'_, &str, &str> = TableDefinition::new("records");
/// Numbers about the store: its form, and how often it was taken over.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");

const FORM: &str = "form";
const TAKEN: &str = "taken";

/// Records in a redb file.
///
/// After a failed write the file is closed, and opened again by the next change.
pub struct RedbRecords {
    path: PathBuf,
    open: Option<Database>,
    /// The number of this process's take-over.
    taken: u64,
}

impl RedbRecords {
    /// The name of the file in the state folder.
    pub const FILE: &'static str = "jobs.redb";

    /// The store in this state folder. The file is opened when it is taken over.
    pub fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(Self::FILE), open: None, taken: 0 }
    }

    /// Runs one transaction. After an error the file is closed, so that no cached state is trusted.
    fn ask<T>(&mut self, question: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, JobStoreError> {
        let database = match self.open.take() {
            Some(database) => database,
            None => self.open_file()?,
        };
        // The database panics on some kinds of damage instead of reporting them.
        match catch_unwind(AssertUnwindSafe(|| question(&database))) {
            Ok(Ok(answer)) => {
                self.open = Some(database);
                Ok(answer)
            }
            Ok(Err(error)) => {
                let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
                Err(self.failed(error))
            }
            Err(_) => Err(self.contradicts()),
        }
    }

    fn open_file(&self) -> Result<Database, JobStoreError> {
        let io = |source| JobStoreError::Io { act: "open", path: self.path.clone(), source };
        let file = open_state_file(&self.path, StateFileUse::Update).map_err(io)?;
        let opened = catch_unwind(AssertUnwindSafe(|| Database::builder().create_file(file)));
        opened.map_err(|_| self.contradicts())?.map_err(|error| match error {
            redb::DatabaseError::Storage(redb::StorageError::Io(source))
                if source.kind() != std::io::ErrorKind::InvalidData
                    && source.kind() != std::io::ErrorKind::UnexpectedEof =>
            {
                io(source)
            }
            error => JobStoreError::Corrupt { path: self.path.clone(), detail: error.to_string() },
        })
    }

    fn failed(&self, error: redb::Error) -> JobStoreError {
        match error {
            redb::Error::Corrupted(detail) => JobStoreError::Corrupt { path: self.path.clone(), detail },
            redb::Error::TableTypeMismatch { .. } | redb::Error::TypeDefinitionChanged { .. } => {
                JobStoreError::Corrupt { path: self.path.clone(), detail: error.to_string() }
            }
            source => JobStoreError::Database { path: self.path.clone(), source: Box::new(source) },
        }
    }

    fn contradicts(&self) -> JobStoreError {
        JobStoreError::Corrupt { path: self.path.clone(), detail: "its pages contradict each other".to_owned() }
    }
}

/// The result of a transaction.
enum TransactionEnd<T> {
    Done(T),
    Newer(u64),
    TakenOver,
}

impl RecordStore for RedbRecords {
    fn take_over(&mut self) -> Result<Vec<(String, String)>, JobStoreError> {
        self.open = None;
        let outcome = self.ask(|database| {
            // A store of a later release is only read.
            let form = match database.begin_read()?.open_table(NUMBERS) {
                Ok(numbers) => numbers.get(FORM)?.map_or(SCHEMA, |form| form.value()),
                Err(redb::TableError::TableDoesNotExist(_)) => SCHEMA,
                Err(error) => return Err(error.into()),
            };
            if form > SCHEMA {
                return Ok(TransactionEnd::Newer(form));
            }
            let transaction = database.begin_write()?;
            let (taken, records);
            {
                let mut numbers = transaction.open_table(NUMBERS)?;
                taken = numbers.get(TAKEN)?.map_or(0, |taken| taken.value()).saturating_add(1);
                numbers.insert(FORM, SCHEMA)?;
                numbers.insert(TAKEN, taken)?;
                // Creates the table, so that it can be read.
                transaction.open_table(RECORDS)?;
            }
            transaction.commit()?;
            let table = database.begin_read()?.open_table(RECORDS)?;
            let row = |row: Result<(redb::AccessGuard<'_, &str>, redb::AccessGuard<'_, &str>), redb::StorageError>| {
                row.map(|(name, text)| (name.value().to_owned(), text.value().to_owned()))
            };
            records = table.iter()?.map(row).collect::<Result<Vec<_>, _>>()?;
            Ok(TransactionEnd::Done((taken, records)))
        })?;
        match outcome {
            TransactionEnd::Done((taken, records)) => {
                self.taken = taken;
                Ok(records)
            }
            TransactionEnd::Newer(found) => {
                self.open = None;
                Err(JobStoreError::Newer { store: self.describe(), found, known: SCHEMA })
            }
            TransactionEnd::TakenOver => Err(JobStoreError::TakenOver { store: self.describe() }),
        }
    }

    fn commit(&mut self, changes: &[RecordChange]) -> Result<(), JobStoreError> {
        let mine = self.taken;
        let outcome = self.ask(|database| {
            let transaction = database.begin_write()?;
            {
                let taken = transaction.open_table(NUMBERS)?.get(TAKEN)?.map_or(0, |taken| taken.value());
                if taken != mine {
                    return Ok(TransactionEnd::TakenOver);
                }
                let mut records = transaction.open_table(RECORDS)?;
                for change in changes {
                    match change {
                        RecordChange::Put { name, text } => _ = records.insert(name.as_str(), text.as_str())?,
                        RecordChange::Delete { name } => _ = records.remove(name.as_str())?,
                    }
                }
            }
            transaction.commit()?;
            Ok(TransactionEnd::Done(()))
        })?;
        match outcome {
            TransactionEnd::Done(()) => Ok(()),
            TransactionEnd::TakenOver | TransactionEnd::Newer(_) => {
                Err(JobStoreError::TakenOver { store: self.describe() })
            }
        }
    }

    fn describe(&self) -> String {
        format!("embedded store, {}", self.path.display())
    }
}
