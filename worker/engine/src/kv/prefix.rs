//! The index of blocks by their contents: the tokens of a block behind the tokens of the blocks before it. Whole tokens
//! are compared, no hashes, so two prefixes are never mistaken for each other. Memory and references are not known
//! here.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use crate::decoder::BlockId;

/// Sequences share blocks only with sequences of the same salt: one caller never measures the prompts of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheSalt {
    text: Arc<str>,
    /// The number of the adapter; 0 for the model alone. No text can stand for it.
    adapter: u64,
}

impl CacheSalt {
    /// The salt of a caller, by any text that no other caller has.
    pub fn new(text: &str) -> Self {
        Self { text: text.into(), adapter: 0 }
    }

    /// This salt among those of one caller.
    pub fn of_caller(&self, caller: &str) -> Self {
        // The length keeps two texts apart from two others that are the same behind one another.
        Self { text: format!("{}:{caller}{}", caller.len(), self.text).into(), ..*self }
    }

    /// This salt among sequences that are computed with the adapter of this number. Each adapter has other keys for the
    /// same tokens.
    pub(crate) fn of_adapter(&self, id: u64) -> Self {
        Self { adapter: id, ..self.clone() }
    }

    /// The text, and the number of the adapter.
    pub(crate) fn parts(&self) -> (&str, u64) {
        (&self.text, self.adapter)
    }

    /// The salt of these parts.
    pub(crate) fn of_parts(text: &str, adapter: u64) -> Self {
        Self { text: text.into(), adapter }
    }

    /// This salt among sequences whose lengths have this class. Those of other classes have other keys for the same
    /// tokens.
    pub(crate) fn of_length_class(&self, class: usize) -> Self {
        if class == 0 { self.clone() } else { Self { text: format!("{class}/{}", self.text).into(), ..*self } }
    }
}

/// The place of a block: the first of its salt's, or behind another. Numbers of contents are never used again, so a
/// block whose predecessor was dropped is not found behind another one in the same memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Parent {
    Root(CacheSalt),
    Behind(u64),
}

/// A block's place and its tokens: at most [`super::size::BLOCK_TOKENS`], and as many where another block may be
/// behind it.
type BlockKey = (Parent, Box<[u32]>);

/// A block that shares tokens with a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundBlock {
    pub(super) block: BlockId,
    /// The number of its contents.
    pub(super) contents: u64,
    /// How many of its first tokens are the prompt's too.
    pub(super) tokens: usize,
}

/// Finds blocks by their contents. Operations are O(log n) in the number of blocks.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    by_tokens: BTreeMap<BlockKey, (BlockId, u64)>,
    keys: HashMap<BlockId, BlockKey>,
    next: u64,
}

impl PrefixIndex {
    /// The block at this place that shares the most first tokens with `tokens`; none that shares no token.
    pub(super) fn longest(&self, parent: &Parent, tokens: &[u32]) -> Option<FoundBlock> {
        let key: BlockKey = (parent.clone(), tokens.into());
        // In the order of their tokens, those that share the most are the neighbours.
        let before = self.by_tokens.range((Bound::Unbounded, Bound::Included(&key))).next_back();
        let after = self.by_tokens.range((Bound::Excluded(&key), Bound::Unbounded)).next();
        let found = |((at, held), (block, contents)): (&BlockKey, &(BlockId, u64))| {
            let tokens = if at == parent { shared(held, tokens) } else { 0 };
            FoundBlock { block: *block, contents: *contents, tokens }
        };
        let (before, after) = (before.map(found), after.map(found));
        let best = match (before, after) {
            (Some(before), Some(after)) if after.tokens > before.tokens => Some(after),
            (before, after) => before.or(after),
        };
        best.filter(|found| found.tokens > 0)
    }

    /// Adds a block, or gives the one that has this place and these tokens already. A block that was added with fewer
    /// tokens at the same place has these from now on.
    pub(super) fn insert(&mut self, parent: &Parent, tokens: &[u32], block: BlockId) -> (BlockId, u64) {
        let key: BlockKey = (parent.clone(), tokens.into());
        if let Some(held) = self.by_tokens.get(&key) {
            return *held;
        }
        self.remove(block);
        let contents = self.next;
        self.next += 1;
        self.by_tokens.insert(key.clone(), (block, contents));
        self.keys.insert(block, key);
        (block, contents)
    }

    /// Forgets a block's contents.
    pub(super) fn remove(&mut self, block: BlockId) {
        if let Some(key) = self.keys.remove(&block) {
            self.by_tokens.remove(&key);
        }
    }

    /// Every block with its place, its tokens and the number of its contents, in no order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (BlockId, &Parent, &[u32], u64)> {
        let entries = self.by_tokens.iter();
        entries.map(|((parent, tokens), (block, contents))| (*block, parent, &tokens[..], *contents))
    }

    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.keys.contains_key(&block)
    }

    /// The block at this place that holds these tokens and maybe more.
    pub(super) fn holder(&self, parent: &Parent, tokens: &[u32]) -> Option<BlockId> {
        self.longest(parent, tokens).filter(|found| found.tokens == tokens.len()).map(|found| found.block)
    }

    /// The block at this place that holds the first of these tokens and nothing else.
    pub(super) fn beginning(&self, parent: &Parent, tokens: &[u32]) -> Option<BlockId> {
        let key: BlockKey = (parent.clone(), tokens.into());
        let ((at, held), (block, _)) = self.by_tokens.range((Bound::Unbounded, Bound::Excluded(&key))).next_back()?;
        (at == parent && tokens.starts_with(held)).then_some(*block)
    }

    /// Checks that each block is behind a block that is in the index too, and that both maps agree.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.by_tokens.len(), self.keys.len());
        let whole: std::collections::HashSet<u64> = self
            .by_tokens
            .iter()
            .filter(|((_, tokens), _)| tokens.len() == super::size::BLOCK_TOKENS)
            .map(|(_, (_, contents))| *contents)
            .collect();
        for (key, (block, _)) in &self.by_tokens {
            assert_eq!(self.keys.get(block), Some(key));
            assert!(!key.1.is_empty() && key.1.len() <= super::size::BLOCK_TOKENS);
            if let Parent::Behind(contents) = &key.0 {
                assert!(whole.contains(contents), "a block is behind one that was dropped");
            }
        }
    }

    /// Blocks in the index.
    #[cfg(test)]
    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.keys.keys().copied()
    }
}

/// First tokens that both have.
fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
