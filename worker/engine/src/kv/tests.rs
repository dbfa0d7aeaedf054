//! The cache against a model of it: what every block holds, and whose it is.

use std::collections::HashMap;

use proptest::prelude::*;

use super::cache::{AdmittedSequence, BlockTable, KvCache};
use super::prefix::CacheSalt;
use super::size::{BLOCK_TOKENS, blocks_for};
use crate::decoder::BlockId;

/// Blocks with contents, as a decoder has them.
#[derive(Default)]
struct Memory(HashMap<BlockId, Vec<u32>>);

impl Memory {
    fn write(&mut self, table: &BlockTable, tokens: &[u32], from: usize, to: usize) {
        for (at, token) in tokens.iter().enumerate().take(to).skip(from) {
            let held = self.0.entry(table.blocks()[at / BLOCK_TOKENS]).or_default();
            held.truncate(at % BLOCK_TOKENS);
            held.push(*token);
        }
    }

    /// The tokens that a table's blocks hold.
    fn read(&self, table: &BlockTable) -> Vec<u32> {
        let blocks = &table.blocks()[..blocks_for(table.len())];
        let mut tokens: Vec<u32> = blocks.iter().flat_map(|block| self.0[block].clone()).collect();
        tokens.truncate(table.len());
        tokens
    }
}

struct Sequence {
    table: BlockTable,
    tokens: Vec<u32>,
}

struct World {
    cache: KvCache,
    memory: Memory,
    open: Vec<Sequence>,
}

impl World {
    fn new(limit: usize) -> Self {
        Self { cache: KvCache::new(limit), memory: Memory::default(), open: Vec::new() }
    }

    /// Lets a sequence in and gives the number of tokens that were found.
    fn admit(&mut self, salt: Option<&CacheSalt>, tokens: Vec<u32>) -> Option<usize> {
        let admission = self.cache.admit(salt, &tokens, 0)?;
        if let Some((from, to)) = admission.copy {
            let held = self.memory.0[&from].clone();
            self.memory.0.insert(to, held);
            self.cache.copied(from);
        }
        let found = admission.table.len();
        self.open.push(Sequence { table: admission.table, tokens });
        Some(found)
    }

    /// Computes some of a sequence's tokens.
    fn compute(&mut self, at: usize, tokens: usize) {
        let Sequence { table, tokens: all } = &mut self.open[at];
        let (from, to) = (table.len(), all.len().min(table.len() + tokens));
        self.memory.write(table, all, from, to);
        self.cache.advance(table, all, to);
        if to == all.len() {
            self.cache.index_rest(table, all);
        }
    }

    /// A further token of an answer whose tokens so far are all evaluated.
    fn answer(&mut self, at: usize, kind: u32) {
        let open = &self.open[at];
        if open.table.len() == open.tokens.len() && self.sample(at, kind) {
            self.compute(at, 1);
        }
    }

    /// Samples a token; false when there is no block for it.
    fn sample(&mut self, at: usize, token: u32) -> bool {
        let Sequence { table, tokens } = &mut self.open[at];
        tokens.push(token);
        let grown = self.cache.grow(table, tokens.len());
        if !grown {
            tokens.pop();
        }
        grown
    }

    fn release(&mut self, at: usize) {
        let Sequence { table, tokens } = self.open.swap_remove(at);
        self.cache.release(table, &tokens);
    }

    fn check(&mut self) {
        self.cache.check(&self.open.iter().map(|sequence| &sequence.table).collect::<Vec<_>>());
        for Sequence { table, tokens } in &self.open {
            assert_eq!(self.memory.read(table), tokens[..table.len()], "a block holds something else");
        }
        let usage = self.cache.usage();
        assert!(usage.used + usage.cached <= usage.limit, "{usage:?}");
        for block in self.cache.take_freed() {
            self.memory.0.remove(&block);
        }
        assert_eq!(self.memory.0.len().min(usage.used + usage.cached), self.memory.0.len(), "memory came back");
    }
}

fn salt(text: &str) -> CacheSalt {
    CacheSalt::new(text)
}

/// A text that repeats nothing.
fn text(first: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| first * 10_000 + at).collect()
}

#[test]
fn en_1_a_prefix_is_found_to_the_token_and_only_by_its_own_caller() {
    let mut world = World::new(100);
    let (mine, other) = (salt("me"), salt("you"));
    let first = text(1, 150);
    assert_eq!(world.admit(Some(&mine), first.clone()), Some(0));
    world.compute(0, 150);
    world.release(0);
    world.check();
    // The same again: all but the last token, whose logits are wanted.
    assert_eq!(world.admit(Some(&mine), first.clone()), Some(149));
    // The next turn goes on behind it.
    let next = [first.clone(), text(2, 20)].concat();
    assert_eq!(world.admit(Some(&mine), next), Some(150));
    // Another question behind the same beginning parts from it within a block.
    let parts = [&first[..77], &text(3, 50)].concat();
    assert_eq!(world.admit(Some(&mine), parts.clone()), Some(77));
    assert_eq!(world.admit(Some(&other), parts.clone()), Some(0), "another caller finds nothing");
    assert_eq!(world.admit(None, parts), Some(0), "a sequence that shares nothing finds nothing");
    world.check();
    let shared = world.cache.usage().used;
    assert_eq!(shared, 4 + 1 + 2 + 2 + 4 + 4, "full blocks are there once");
}

#[test]
fn fa_1_a_prefix_is_shared_up_to_a_token_that_a_sequence_can_go_on_behind() {
    let mut world = World::new(100);
    let (mine, tokens) = (salt("me"), text(1, 150));
    world.admit(Some(&mine), tokens.clone());
    world.compute(0, 150);
    world.release(0);
    // Behind whole blocks, inside of a block, at the very end of what is known, and nowhere.
    for usable in [96, 70, 33, 149, 0] {
        let admitted = world.cache.admit_behind(Some(&mine), &tokens, 0, &|blocks, found| {
            assert_eq!((blocks.len(), found), (5, 149));
            usable
        });
        let AdmittedSequence { table, copy } = admitted.unwrap();
        assert_eq!((table.len(), table.shared(), table.blocks().len()), (usable, 149, 5));
        assert_eq!(copy.is_some(), usable % BLOCK_TOKENS > 0);
        if let Some((from, to)) = copy {
            assert_eq!(to, table.blocks()[usable / BLOCK_TOKENS]);
            let held = world.memory.0[&from].clone();
            world.memory.0.insert(to, held);
            world.cache.copied(from);
        }
        world.open.push(Sequence { table, tokens: tokens.clone() });
        world.check();
        // A block that was computed again is there once, and its states belong to the block that stays.
        world.compute(0, 150);
        let merged = world.cache.take_merged();
        let again = (usable / BLOCK_TOKENS..4).count();
        assert!(merged.len() >= again, "{merged:?}");
        world.check();
        world.release(0);
        world.check();
        assert_eq!(world.cache.usage().cached, 5);
    }
}

#[test]
fn en_1_a_sequence_that_shares_nothing_leaves_nothing() {
    let mut world = World::new(10);
    world.admit(None, text(1, 100));
    world.compute(0, 100);
    world.release(0);
    world.check();
    assert_eq!((world.cache.usage().used, world.cache.usage().cached, world.memory.0.len()), (0, 0, 0));
}

#[test]
fn en_1_the_same_computed_twice_is_kept_once() {
    let mut world = World::new(10);
    let mine = salt("me");
    for _ in 0..2 {
        assert_eq!(world.admit(Some(&mine), text(1, 70)), Some(0));
    }
    world.compute(0, 70);
    world.compute(1, 70);
    world.check();
    assert_eq!(world.cache.usage().used, 4, "two full blocks, and a last one each");
    world.release(0);
    world.release(0);
    world.check();
    assert_eq!((world.cache.usage().cached, world.memory.0.len()), (3, 3));
}

#[test]
fn en_1_what_was_used_least_recently_leaves_first_and_the_end_before_the_beginning() {
    let mut world = World::new(7);
    let mine = salt("me");
    for first in [1, 2, 3] {
        world.admit(Some(&mine), text(first, 64));
        world.compute(0, 64);
        world.release(0);
    }
    assert_eq!(world.cache.usage().cached, 6);
    assert_eq!(world.admit(Some(&mine), text(1, 64)), Some(63));
    world.compute(0, 64);
    world.release(0);
    // A block more than are free: the end of the second, which was used least recently, is dropped for it.
    assert_eq!(world.admit(Some(&mine), text(4, 40)), Some(0));
    world.compute(0, 40);
    world.release(0);
    world.check();
    assert_eq!(world.admit(Some(&mine), text(2, 64)), Some(32));
    world.check();
}

#[test]
fn en_2_nothing_is_given_beyond_the_budget() {
    let mut world = World::new(4);
    assert_eq!(world.admit(None, text(1, 65)), Some(0));
    assert_eq!(world.admit(None, text(2, 33)), None, "three of four blocks are in use");
    assert_eq!(world.admit(None, text(2, 31)), Some(0));
    world.compute(0, 65);
    world.compute(1, 31);
    world.check();
    assert!(world.sample(1, 9), "there is room in its block");
    world.compute(1, 1);
    assert!(!world.sample(1, 9));
    world.release(0);
    assert!(world.sample(0, 9));
    world.check();
    // Blocks that have to stay available beside it count too.
    assert!(world.cache.admit(None, &text(3, 32), 2).is_none());
    assert!(world.cache.admit(None, &text(3, 32), 1).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Blocks hold the tokens of their sequences after any operations, and never more than the budget allows are held.
    #[test]
    fn en_1_blocks_hold_what_their_sequences_are_made_of(
        limit in 4_usize..24,
        steps in proptest::collection::vec((0_u8..6, 0_usize..8, 1_usize..80, 0_u32..3), 1..120),
    ) {
        let mut world = World::new(limit);
        for (act, which, size, kind) in steps {
            let at = which % world.open.len().max(1);
            match act {
                // Texts that agree for a while: each is the same run of tokens, and turns off at a place.
                0 | 1 => {
                    let turn = which * 13;
                    let tokens = (0..size * 2).map(|i| if i < turn { i as u32 } else { i as u32 + kind * 7_777 });
                    let salts = [None, Some(salt("a")), Some(salt("b"))];
                    world.admit(salts[kind as usize % 3].as_ref(), tokens.collect());
                }
                2 if !world.open.is_empty() => world.compute(at, size),
                3 if !world.open.is_empty() => world.answer(at, kind),
                4 if !world.open.is_empty() => world.release(at),
                5 if size > 75 => { world.cache.drop_cached(); }
                _ => {}
            }
            world.check();
        }
        while !world.open.is_empty() {
            world.release(0);
            world.check();
        }
        prop_assert_eq!(world.cache.usage().used, 0);
        world.cache.drop_cached();
        world.check();
        prop_assert_eq!(world.memory.0.len(), 0);
    }
}
