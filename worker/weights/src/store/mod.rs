//! Stores that streamed layers are read from: files read past the page cache ([`DirectStore`]), mapped files
//! ([`MappedStore`]), and memory filled from another store ([`MemoryStore`]). None of them leaves a second copy in the
//! page cache. Stores do not interpret the ranges that they read.

mod buffer;
mod direct;
mod error;
mod mapped;
mod memory;
mod open;
mod read;
mod runs;
mod system;
#[cfg(test)]
mod tests;

pub use buffer::{HostBuffer, HostMemory, PAGE, prefer_large_pages};
pub use direct::DirectStore;
pub use error::WeightStoreError;
pub use mapped::MappedStore;
pub use memory::{MemoryStore, evenly_within};
pub use open::{WeightStoreChoice, open};
pub use read::{WeightStore, read_all};
pub use runs::{Extent, Reads, Run};
