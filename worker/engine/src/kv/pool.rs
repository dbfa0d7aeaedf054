//! The blocks of a budget. Each is free, in use by one or more sequences, or idle: unused, with contents that a later
//! sequence may use again. Contents are not known here.

use std::collections::{BTreeMap, BTreeSet};

use crate::decoder::BlockId;

/// Counts references to blocks, and orders idle blocks by the time since when they are idle. Every operation is
/// O(log n) in the number of blocks.
#[derive(Debug)]
pub(super) struct BlockPool {
    /// The most blocks that hold contents at the same time.
    limit: usize,
    /// By their numbers; blocks that were never used have no entry.
    blocks: Vec<Block>,
    /// The lowest numbers are used first, so that a device's memory stays dense.
    free: BTreeSet<BlockId>,
    /// The blocks that became idle first come first.
    idle: BTreeMap<u64, BlockId>,
    /// Counts the blocks that became idle.
    clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    references: u32,
    /// Its place among the idle ones.
    idle_since: Option<u64>,
}

/// The contents of a block that no sequence uses any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// They may be used again.
    Kept,
    /// They are forgotten.
    Dropped,
}

impl BlockPool {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, blocks: Vec::new(), free: BTreeSet::new(), idle: BTreeMap::new(), clock: 0 }
    }

    /// A free block with one reference; none when the budget is used up. Idle blocks have to be dropped first.
    pub(super) fn take(&mut self) -> Option<BlockId> {
        if self.used() + self.idle() >= self.limit {
            return None;
        }
        let block = match self.free.pop_first() {
            Some(block) => block,
            None => {
                let block = BlockId(u32::try_from(self.blocks.len()).ok()?);
                self.blocks.push(Block::default());
                block
            }
        };
        self.state(block).references = 1;
        Some(block)
    }

    /// Adds a reference to a block that is in use or idle.
    pub(super) fn share(&mut self, block: BlockId) {
        let state = self.state(block);
        state.references += 1;
        if let Some(since) = state.idle_since.take() {
            self.idle.remove(&since);
        }
    }

    /// Takes a reference back. `contents` say what becomes of a block without any.
    pub(super) fn release(&mut self, block: BlockId, contents: Contents) {
        let since = self.clock;
        let state = self.state(block);
        state.references = state.references.saturating_sub(1);
        if state.references > 0 {
            return;
        }
        match contents {
            Contents::Kept => {
                state.idle_since = Some(since);
                self.idle.insert(since, block);
                self.clock += 1;
            }
            Contents::Dropped => {
                self.free.insert(block);
            }
        }
    }

    /// Makes an idle block free. Blocks in use are left alone.
    pub(super) fn drop_idle(&mut self, block: BlockId) {
        if let Some(since) = self.state(block).idle_since.take() {
            self.idle.remove(&since);
            self.free.insert(block);
        }
    }

    /// The block that has been idle for the longest time.
    pub(super) fn oldest_idle(&self) -> Option<BlockId> {
        self.idle.first_key_value().map(|(_, block)| *block)
    }

    /// Whether no sequence uses it, and it still holds what one left.
    pub(super) fn is_idle(&self, block: BlockId) -> bool {
        self.blocks.get(block.0 as usize).is_some_and(|state| state.idle_since.is_some())
    }

    /// When it became idle, as a count of such moments; none for a block in use or a free one.
    pub(super) fn idle_since(&self, block: BlockId) -> Option<u64> {
        self.blocks.get(block.0 as usize)?.idle_since
    }

    pub(super) fn is_free(&self, block: BlockId) -> bool {
        self.free.contains(&block)
    }

    /// Blocks in use by sequences.
    pub(super) fn used(&self) -> usize {
        self.blocks.len() - self.free.len() - self.idle.len()
    }

    /// Idle blocks.
    pub(super) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Blocks that sequences could get: free or idle ones.
    pub(super) fn available(&self) -> usize {
        self.limit.saturating_sub(self.used())
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// References to a block.
    #[cfg(test)]
    pub(super) fn references(&self, block: BlockId) -> u32 {
        self.blocks[block.0 as usize].references
    }

    fn state(&mut self, block: BlockId) -> &mut Block {
        let index = block.0 as usize;
        if index >= self.blocks.len() {
            self.blocks.resize(index + 1, Block::default());
        }
        &mut self.blocks[index]
    }
}
