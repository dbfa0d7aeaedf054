//! Keys and values in blocks: which block belongs to which tokens, who uses it, and which may be reused. Pure: it knows
//! numbers of blocks and tokens, no device and no memory.
//!
//! | part | owns |
//! |---|---|
//! | `pool` | the blocks of a budget: free, in use by sequences, or idle with contents that may be used again |
//! | `prefix` | the index from tokens behind tokens to the block that holds them |
//! | `cache` | both together: tables of blocks for sequences, shared prefixes, copies on write |
//! | `size` | the size of blocks |
//! | `sequences` | a decoder with sequences that share nothing, for programs without a batching engine |

mod cache;
mod pool;
mod prefix;
mod sequences;
mod size;

#[cfg(test)]
mod tests;

pub(crate) use cache::{BlockTable, IndexedBlock, KvCache, KvUse};
pub use prefix::CacheSalt;
pub(crate) use prefix::Parent;
pub use sequences::{KvSlot, SequenceStep, Sequences};
pub use size::BLOCK_TOKENS;
pub(crate) use size::blocks_for;
