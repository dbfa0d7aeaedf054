//! The division of keys along a sequence: into blocks, and blocks into segments. Both are counted from its beginning.

use model_boss_engine::BLOCK_TOKENS;

/// Keys that are scored together.
pub(super) const BLOCK: usize = 64;

/// Keys that are mixed before they are merged with those before them.
pub(super) const SEGMENT: usize = 256;

/// Keys that lie together in memory, with their values.
pub(super) const PAGE: usize = BLOCK_TOKENS;

// A page never crosses the border of a block: sums do not depend on where pages lie.
const _: () = assert!(BLOCK.is_multiple_of(PAGE) && SEGMENT.is_multiple_of(BLOCK));
