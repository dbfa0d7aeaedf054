//! Errors of the stores, in words that include the remedy.

use std::io;
use std::path::PathBuf;

use model_boss_lease_store::StoreError;

/// A store of records failed.
#[derive(Debug, thiserror::Error)]
pub enum JobStoreError {
    /// A later release wrote the store.
    #[error(
        "the jobs in {store} were written by a later release (form {found}, this one knows {known}); start that release, or \
         move them away"
    )]
    Newer {
        /// The store.
        store: String,
        /// The form of its records.
        found: u64,
        /// The last form that this release knows.
        known: u64,
    },
    /// Another process has taken the store over.
    #[error("another coordinator has taken over the jobs in {store}; this one keeps none any more")]
    TakenOver {
        /// The store.
        store: String,
    },
    /// The store's file could not be used.
    #[error("cannot {act} {path}")]
    Io {
        /// The failed act.
        act: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The database failed.
    #[error("the jobs in {path} cannot be kept now")]
    Database {
        /// The file.
        path: PathBuf,
        /// The database's error.
        #[source]
        source: Box<redb::Error>,
    },
    /// The file's content is no database of this program.
    #[error("the jobs in {path} cannot be understood: {detail}; move the file away and start again")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The fault.
        detail: String,
    },
    /// Redis cannot be reached.
    #[error(transparent)]
    Redis(#[from] StoreError),
    /// Redis gave another answer than the script has.
    #[error("the store at {store} gave an answer that was not expected: {detail}")]
    BadAnswer {
        /// The store.
        store: String,
        /// The answer.
        detail: String,
    },
}

impl JobStoreError {
    /// Whether the disk is full.
    pub fn is_full_disk(&self) -> bool {
        let source = match self {
            Self::Io { source, .. } => source,
            Self::Database { source, .. } => match source.as_ref() {
                redb::Error::Io(source) => source,
                // A failed write closes the database until it is opened again, and a full disk is how that happens.
                redb::Error::PreviousIo => return true,
                _ => return false,
            },
            _ => return false,
        };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Whether the fault stays until somebody acts.
    pub const fn is_lasting(&self) -> bool {
        matches!(self, Self::Newer { .. } | Self::TakenOver { .. } | Self::Corrupt { .. })
    }
}
