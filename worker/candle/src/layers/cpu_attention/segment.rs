//! The division of keys along a sequence: into blocks, and blocks into segments.

/// Keys that are scored together.
pub(super) const BLOCK: usize = 64;

/// Keys that are mixed before they are merged with those before them, and tokens that memory is taken for at a time.
pub(super) const SEGMENT: usize = 256;
