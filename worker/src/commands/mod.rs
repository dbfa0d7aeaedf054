//! Commands that measure or show: each loads a model or looks at a file, prints, and ends.

pub(crate) mod bench;
pub(crate) mod disk;
pub(crate) mod inspect;
pub(crate) mod residency;
pub(crate) mod text_cost;
