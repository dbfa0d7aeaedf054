//! Reading weights from a model's files: in which order, past the page cache or through it, and into which memory.

mod arena;
pub(crate) mod direct;
pub(crate) mod page_cache;
pub(crate) mod read_ahead;
pub(crate) mod reader;
