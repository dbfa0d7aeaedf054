//! Choosing a store, and opening it over files.

use std::path::PathBuf;
use std::sync::Arc;

use super::direct::DirectStore;
use super::error::WeightStoreError;
use super::mapped::MappedStore;
use super::read::WeightStore;

/// The kind of store to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightStoreChoice {
    /// Direct reads where the file system has them, else reads through the page cache, whose copy is dropped.
    #[default]
    Auto,
    /// Direct reads, or none.
    Direct,
    /// Mapped files.
    Map,
    /// As [`WeightStoreChoice::Auto`], with as much held in memory as there is room for. The loader knows the room and
    /// makes a [`super::MemoryStore`].
    Memory,
}

/// Opens files, whose positions are their numbers.
///
/// # Errors
/// When a file cannot be opened, or when direct reads are asked for where the file system refuses them.
pub fn open(paths: &[PathBuf], choice: WeightStoreChoice) -> Result<Arc<dyn WeightStore>, WeightStoreError> {
    Ok(match choice {
        WeightStoreChoice::Auto | WeightStoreChoice::Memory => Arc::new(DirectStore::open(paths)?),
        WeightStoreChoice::Direct => Arc::new(DirectStore::open(paths)?.or_refuse()?),
        WeightStoreChoice::Map => Arc::new(MappedStore::open(paths)?),
    })
}
