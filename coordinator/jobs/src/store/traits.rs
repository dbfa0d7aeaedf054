//! The contract of the stores.

use super::error::JobStoreError;

/// The version of the records' form. A store with a greater one was written by a later release, and is not touched.
/// A release that reads an older form names its number here and reads both.
pub const SCHEMA: u64 = 1;

/// A change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// The record has this text from now on.
    Put {
        /// The name of the record, such as `job/job-…`.
        name: String,
        /// Its text.
        text: String,
    },
    /// The record is gone.
    Delete {
        /// The name of the record.
        name: String,
    },
}

impl RecordChange {
    /// The name of the record.
    pub fn name(&self) -> &str {
        match self {
            Self::Put { name, .. } | Self::Delete { name } => name,
        }
    }
}

/// A store of small named texts, used by one process at a time.
pub trait RecordStore: Send {
    /// Takes the store over, and reads every record. Changes by the process that had it before are refused from now on.
    fn take_over(&mut self) -> Result<Vec<(String, String)>, JobStoreError>;

    /// Keeps all of these changes or none. They survive the end of this process, and of the machine where the store
    /// writes to a disk. After an error it is unknown whether they are kept.
    fn commit(&mut self, changes: &[RecordChange]) -> Result<(), JobStoreError>;

    /// The kind and address of the store.
    fn describe(&self) -> String;
}
