//! Reading weights from a model's files: their order, direct reads or the page cache, and the memory for them.

mod arena;
pub(crate) mod direct;
pub(crate) mod page_cache;
pub(crate) mod read_ahead;
pub(crate) mod reader;
