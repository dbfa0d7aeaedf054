//! The size of blocks, in tokens.

/// Tokens of a block. Half the keys that attention scores together on the CPU (`cpu_attention::BLOCK`), so a block
/// never crosses their borders. It is small enough that a sequence of 320 tokens wastes less than a tenth.
pub const BLOCK_TOKENS: usize = 32;

/// Blocks that hold this many tokens.
pub(crate) const fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS)
}
