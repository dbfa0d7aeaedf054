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
    /// Requires direct reads, and fails without them.
    Direct,
    /// Reads mapped files.
    Map,
    /// Reads as [`WeightStoreChoice::Auto`] does, and holds as many blocks in memory as fit. The loader computes that
    /// number and makes a [`super::MemoryStore`].
    Memory,
}

/// Opens files, whose positions are their numbers.
///
/// # Errors When a file cannot be opened, or when direct reads are required and the file system refuses them.
pub fn open(paths: &[PathBuf], choice: WeightStoreChoice) -> Result<Arc<dyn WeightStore>, WeightStoreError> {
    Ok(match choice {
        WeightStoreChoice::Auto | WeightStoreChoice::Memory => Arc::new(DirectStore::open(paths)?),
        WeightStoreChoice::Direct => Arc::new(DirectStore::open(paths)?.or_refuse()?),
        WeightStoreChoice::Map => Arc::new(MappedStore::open(paths)?),
    })
}
