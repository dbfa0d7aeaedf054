//! The division of keys along a sequence: into blocks, and blocks into segments. Both are counted from its beginning.

/// Keys that are scored together.
pub(super) const BLOCK: usize = 64;

/// Keys that are mixed before they are merged with those before them.
pub(super) const SEGMENT: usize = 256;

/// Tokens whose keys lie together in memory, with their values.
pub const PAGE: usize = 32;

// A page never crosses the border of a block: sums do not depend on where pages lie.
const _: () = assert!(BLOCK.is_multiple_of(PAGE) && SEGMENT.is_multiple_of(BLOCK));
