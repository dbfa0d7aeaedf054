//! Commands that measure or show. Each loads a model or reads a file, prints, and ends.

pub(crate) mod bench;
pub(crate) mod disk;
pub(crate) mod inspect;
pub(crate) mod prompt;
pub(crate) mod residency;
pub(crate) mod text_cost;
