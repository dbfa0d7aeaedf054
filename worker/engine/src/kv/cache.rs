//! The blocks of sequences: their tables, and the prefixes that they share.
//!
//! A sequence that begins as an earlier one did uses the earlier one's blocks, and a copy of the block in which they
//! part. Blocks that a sequence has filled are never written again, so any number of sequences may use them.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::decoder::BlockId;

use super::pool::{BlockPool, Contents};
use super::prefix::{CacheSalt, FoundBlock, Parent, PrefixIndex};
use super::size::{BLOCK_TOKENS, blocks_for};

/// The blocks of one sequence, in the order of its tokens.
#[derive(Debug)]
pub(crate) struct BlockTable {
    blocks: Vec<BlockId>,
    /// Tokens whose keys and values are there.
    len: usize,
    /// Blocks that are in the index, from the first on.
    indexed: usize,
    /// The place of the block behind those; none for a sequence that shares nothing.
    next: Option<Parent>,
    /// Tokens that an earlier sequence began with too.
    shared: usize,
}

impl BlockTable {
    /// Its blocks; there may be more than its tokens need.
    pub(crate) fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Tokens whose keys and values are there.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Tokens that an earlier sequence began with too, whether or not this one could go on behind them.
    pub(crate) fn shared(&self) -> usize {
        self.shared
    }
}

/// The most of the first tokens in some blocks that a sequence can go on behind.
pub(crate) type Resumable<'a> = &'a dyn Fn(&[BlockId], usize) -> usize;

/// A sequence that was let in.
#[derive(Debug)]
pub(crate) struct AdmittedSequence {
    /// Room for all of its tokens. Those that were found are there, once the copy is made.
    pub(crate) table: BlockTable,
    /// The block to be copied first, and the place to copy it to.
    pub(crate) copy: Option<(BlockId, BlockId)>,
}

/// A block that the index has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexedBlock {
    pub(crate) block: BlockId,
    /// Its place.
    pub(crate) parent: Parent,
    /// Its tokens.
    pub(crate) tokens: Box<[u32]>,
    /// The number of its contents, which blocks behind it name.
    pub(crate) contents: u64,
}

/// The use of the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KvUse {
    /// Blocks of sequences in the batch.
    pub(crate) used: usize,
    /// Blocks that no sequence uses now, kept for later ones.
    pub(crate) cached: usize,
    /// The most blocks at the same time.
    pub(crate) limit: usize,
}

/// All blocks of a decoder: a budget, and the index of what they hold.
#[derive(Debug)]
pub(crate) struct KvCache {
    pool: BlockPool,
    index: PrefixIndex,
    /// Blocks whose memory may be given back.
    freed: BTreeSet<BlockId>,
    /// Blocks that hold the first tokens of another, which is used in their place.
    merged: Vec<(BlockId, BlockId)>,
}

impl KvCache {
    /// Blocks of which at most `limit` hold anything.
    pub(crate) fn new(limit: usize) -> Self {
        Self { pool: BlockPool::new(limit), index: PrefixIndex::default(), freed: BTreeSet::new(), merged: Vec::new() }
    }

    /// Lets a sequence in, with room for all its tokens, if as many as `spare` blocks stay available beside it. What
    /// earlier sequences of the same salt left is used again, but for the last token: its logits have to be computed.
    pub(crate) fn admit(&mut self, salt: Option<&CacheSalt>, tokens: &[u32], spare: usize) -> Option<AdmittedSequence> {
        self.admit_behind(salt, tokens, spare, &|_, tokens| tokens)
    }

    /// The same for a decoder that does not go on behind every token.
    pub(crate) fn admit_behind(
        &mut self,
        salt: Option<&CacheSalt>,
        tokens: &[u32],
        spare: usize,
        resumable: Resumable<'_>,
    ) -> Option<AdmittedSequence> {
        let (mut table, partial) = self.match_prefix(salt, tokens, resumable);
        let needed = blocks_for(tokens.len()).saturating_sub(table.blocks.len());
        // The block to copy from must not be dropped for the copy's own place.
        let mut source = partial.inspect(|found| self.pool.share(found.block));
        let wanted = needed.saturating_add(spare);
        if self.pool.available() < wanted {
            source.take().into_iter().for_each(|found| self.give_back(found.block));
        }
        if self.pool.available() < wanted || !self.grow(&mut table, tokens.len()) {
            source.take().into_iter().for_each(|found| self.give_back(found.block));
            self.forget(&mut table);
            return None;
        }
        let copy = source.and_then(|found| Some((found, *table.blocks.get(table.indexed)?)));
        table.len = table.indexed * BLOCK_TOKENS + copy.map_or(0, |(found, _)| found.tokens);
        Some(AdmittedSequence { table, copy: copy.map(|(found, to)| (found.block, to)) })
    }

    /// The copy of an admission was made, or will not be: its source may be dropped again.
    pub(crate) fn copied(&mut self, from: BlockId) {
        self.give_back(from);
    }

    /// The copy failed: none of the tokens in a table's partly filled block are there.
    pub(crate) fn copy_failed(table: &mut BlockTable) {
        table.len = table.indexed * BLOCK_TOKENS;
    }

    /// Makes room for as many tokens in all. False when there is none; then the table has some of it.
    pub(crate) fn grow(&mut self, table: &mut BlockTable, tokens: usize) -> bool {
        while table.blocks.len() < blocks_for(tokens) {
            let Some(block) = self.take() else { return false };
            table.blocks.push(block);
        }
        true
    }

    /// Keys and values of the first `len` of `tokens` are there. Blocks that are full can be found from now on.
    pub(crate) fn advance(&mut self, table: &mut BlockTable, tokens: &[u32], len: usize) {
        table.len = len;
        while let Some(parent) = &table.next
            && (table.indexed + 1) * BLOCK_TOKENS <= len
        {
            let (at, first) = (table.indexed, table.indexed * BLOCK_TOKENS);
            let (own, filled) = (table.blocks[at], &tokens[first..first + BLOCK_TOKENS]);
            let (block, contents) = self.index.insert(parent, filled, own);
            if block != own {
                // Another sequence computed the same in the meantime: one copy is enough.
                self.pool.share(block);
                self.index.remove(own);
                table.blocks[at] = block;
                self.merged.push((own, block));
                self.give_back(own);
            }
            table.indexed += 1;
            table.next = Some(Parent::Behind(contents));
        }
    }

    /// Makes the tokens of the last, partly filled block findable too.
    pub(crate) fn index_rest(&mut self, table: &BlockTable, tokens: &[u32]) {
        let (Some(parent), Some(&block)) = (&table.next, table.blocks.get(table.indexed)) else { return };
        let rest = &tokens[table.indexed * BLOCK_TOKENS..table.len];
        if rest.is_empty() {
            return;
        }
        if let Some(holder) = self.index.holder(parent, rest) {
            if holder != block {
                self.merged.push((block, holder));
            }
            return;
        }
        // The same with fewer tokens is worth nothing beside it.
        let shorter = self.index.beginning(parent, rest).filter(|shorter| self.pool.is_idle(*shorter));
        self.index.insert(parent, rest, block);
        if let Some(shorter) = shorter {
            self.merged.push((shorter, block));
            self.drop_idle(shorter);
        }
    }

    /// Ends a sequence. Its tokens can be found until their blocks are needed.
    pub(crate) fn release(&mut self, mut table: BlockTable, tokens: &[u32]) {
        self.index_rest(&table, tokens);
        self.forget(&mut table);
    }

    /// Takes an admission back: nothing was computed in its blocks.
    pub(crate) fn withdraw(&mut self, mut table: BlockTable) {
        self.forget(&mut table);
    }

    /// Drops tokens behind the first `len` of a sequence that shares nothing.
    pub(crate) fn truncate(&mut self, table: &mut BlockTable, len: usize) {
        table.len = table.len.min(len);
        while table.blocks.len() > blocks_for(table.len) {
            table.blocks.pop().into_iter().for_each(|block| self.give_back(block));
        }
    }

    /// Drops all that no sequence uses. Returns whether there was anything.
    pub(crate) fn drop_cached(&mut self) -> bool {
        let before = self.pool.idle();
        while let Some(block) = self.pool.oldest_idle() {
            self.drop_idle(block);
        }
        before > 0
    }

    /// Blocks that hold nothing any more since the last call, and whose memory may be given back.
    pub(crate) fn take_freed(&mut self) -> Vec<BlockId> {
        let freed = std::mem::take(&mut self.freed);
        // Some may be in use again.
        freed.into_iter().filter(|block| self.pool.is_free(*block)).collect()
    }

    /// Blocks that were found to hold the first tokens of another since the last call, each with that other one.
    pub(crate) fn take_merged(&mut self) -> Vec<(BlockId, BlockId)> {
        std::mem::take(&mut self.merged)
    }

    /// All blocks of the index in the reverse of the order in which they would be dropped: those in use first, then
    /// those that were used last. Every block comes after the one that it is behind.
    pub(crate) fn hottest(&self) -> Vec<IndexedBlock> {
        let entries = self.index.entries().map(|(block, parent, tokens, contents)| {
            let indexed = IndexedBlock { block, parent: parent.clone(), tokens: tokens.into(), contents };
            (self.pool.idle_since(block).map(Reverse), indexed)
        });
        let mut all: Vec<_> = entries.collect();
        // None is the least: blocks in use, of which later ones have larger numbers.
        all.sort_unstable_by_key(|(since, indexed)| (*since, indexed.contents));
        all.into_iter().map(|(_, indexed)| indexed).collect()
    }

    /// A block for contents that come from elsewhere; none if another would have to be dropped for it.
    pub(crate) fn take_free(&mut self) -> Option<BlockId> {
        let block = self.pool.take()?;
        self.merged.retain(|(from, to)| *from != block && *to != block);
        Some(block)
    }

    /// Gives a block back that got no contents.
    pub(crate) fn put_back(&mut self, block: BlockId) {
        self.give_back(block);
    }

    /// Makes a block findable whose contents came from elsewhere. Returns the block that holds these tokens at that
    /// place from now on, which is in use until [`Self::settle`], and the number of its contents.
    pub(crate) fn adopt(&mut self, parent: &Parent, tokens: &[u32], own: BlockId) -> (BlockId, u64) {
        let (block, contents) = self.index.insert(parent, tokens, own);
        if block != own {
            self.pool.share(block);
            self.give_back(own);
        }
        (block, contents)
    }

    /// No sequence uses these blocks any more. The first one counts as used last.
    pub(crate) fn settle(&mut self, blocks: Vec<BlockId>) {
        blocks.into_iter().rev().for_each(|block| self.give_back(block));
    }

    /// The use of the blocks.
    pub(crate) fn usage(&self) -> KvUse {
        KvUse { used: self.pool.used(), cached: self.pool.idle(), limit: self.pool.limit() }
    }

    /// Shares the blocks that hold the first of these tokens, as far as a sequence can go on behind them. The block in
    /// which they part is not shared yet.
    fn match_prefix(
        &mut self,
        salt: Option<&CacheSalt>,
        tokens: &[u32],
        resumable: Resumable<'_>,
    ) -> (BlockTable, Option<FoundBlock>) {
        let next = salt.map(|salt| Parent::Root(salt.clone()));
        let mut table = BlockTable { blocks: Vec::new(), len: 0, indexed: 0, next, shared: 0 };
        let mut parents = Vec::new();
        let partial = self.match_blocks(&mut table, tokens, &mut parents);
        let mut found: Vec<BlockId> = table.blocks.clone();
        found.extend(partial.map(|partial| partial.block));
        table.shared = table.indexed * BLOCK_TOKENS + partial.map_or(0, |partial| partial.tokens);
        let usable = if table.shared > 0 { resumable(&found, table.shared) } else { 0 };
        if usable >= table.shared {
            return (table, partial);
        }
        let (whole, tokens) = (usable / BLOCK_TOKENS, usable % BLOCK_TOKENS);
        while table.blocks.len() > whole {
            table.blocks.pop().into_iter().for_each(|block| self.give_back(block));
            table.next = parents.pop();
        }
        table.indexed = whole;
        let partial = found.get(whole).filter(|_| tokens > 0);
        (table, partial.map(|block| FoundBlock { block: *block, contents: 0, tokens }))
    }

    /// Shares the blocks that hold the first of these tokens, and notes the place of each.
    fn match_blocks(
        &mut self,
        table: &mut BlockTable,
        tokens: &[u32],
        parents: &mut Vec<Parent>,
    ) -> Option<FoundBlock> {
        let findable = &tokens[..tokens.len().saturating_sub(1)];
        while let Some(parent) = &table.next {
            let rest = &findable[table.indexed * BLOCK_TOKENS..];
            let rest = &rest[..rest.len().min(BLOCK_TOKENS)];
            match self.index.longest(parent, rest) {
                Some(found) if found.tokens == BLOCK_TOKENS => {
                    self.pool.share(found.block);
                    table.blocks.push(found.block);
                    table.indexed += 1;
                    parents.extend(table.next.replace(Parent::Behind(found.contents)));
                }
                found => return found,
            }
        }
        None
    }

    /// A block for new contents: a free one, or the one that was idle for the longest time.
    fn take(&mut self) -> Option<BlockId> {
        let block = match self.pool.take() {
            Some(block) => block,
            None => {
                let oldest = self.pool.oldest_idle().filter(|_| self.pool.available() > 0)?;
                self.drop_idle(oldest);
                self.pool.take()?
            }
        };
        // Its former contents are of no use to any other block from now on.
        self.merged.retain(|(from, to)| *from != block && *to != block);
        Some(block)
    }

    /// Takes back a table's references, the last block first: it is then dropped before those it is behind.
    fn forget(&mut self, table: &mut BlockTable) {
        while let Some(block) = table.blocks.pop() {
            self.give_back(block);
        }
    }

    fn give_back(&mut self, block: BlockId) {
        let contents = if self.index.contains(block) { Contents::Kept } else { Contents::Dropped };
        self.pool.release(block, contents);
        if self.pool.is_free(block) {
            self.freed.insert(block);
        }
    }

    fn drop_idle(&mut self, block: BlockId) {
        self.index.remove(block);
        self.pool.drop_idle(block);
        self.freed.insert(block);
    }

    /// Checks what always holds; `tables` are all that exist.
    #[cfg(test)]
    pub(super) fn check(&self, tables: &[&BlockTable]) {
        use std::collections::HashMap;

        self.index.check();
        let mut references: HashMap<BlockId, u32> = HashMap::new();
        for table in tables {
            assert!(table.blocks.len() >= blocks_for(table.len));
            for (at, block) in table.blocks.iter().enumerate() {
                *references.entry(*block).or_default() += 1;
                assert!(!self.pool.is_free(*block) && !self.pool.is_idle(*block));
                // A block that is still written belongs to one sequence.
                let shared = tables.iter().flat_map(|table| &table.blocks).filter(|other| *other == block).count();
                assert!(at < table.indexed || shared == 1, "a block that is not full is shared");
            }
        }
        for (block, count) in &references {
            assert_eq!(self.pool.references(*block), *count);
        }
        assert_eq!(self.pool.used(), references.len());
        assert!(self.index.blocks().all(|block| references.contains_key(&block) || self.pool.is_idle(block)));
        assert_eq!(self.index.blocks().filter(|block| self.pool.is_idle(*block)).count(), self.pool.idle());
    }
}
