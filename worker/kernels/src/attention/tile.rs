//! Some queries that share keys, against the keys of one head: block by block with an online softmax, segment by
//! segment. Knows numbers and the cache's layout, no tasks.

use std::ops::Range;

use pulp::NullaryFnOnce;

use super::cache::{HostKv, KvValues};
use super::kernel::{Panel, Product, RunningSoftmax, SoftmaxBlock, merge};
use super::product::{ask_for, multiply, spread, takes_as_stored};
use super::segment::{BLOCK, PAGE, SEGMENT};
use super::widen::PanelSpread;
use crate::exp::exp;
use crate::lanes::{Instructions, LANES};

/// Queries and what they see.
pub(super) struct QueryTile {
    /// `[queries, head_dim]`, rotated and scaled.
    pub(super) queries: Vec<f32>,
    /// `[queries]`: the keys that each sees.
    pub(super) seen: Vec<Range<usize>>,
    /// The bound of scores.
    pub(super) softcap: Option<f32>,
}

/// The values that queries mixed over some keys, and their softmax so far.
pub(super) struct Mixed {
    /// `[queries, width]`: sums of values, each weighted with its key's e^(score − largest).
    values: Vec<f32>,
    running: Vec<RunningSoftmax>,
    width: usize,
}

/// The instructions in use, and buffers to work in.
pub(super) struct Scratch {
    pub(super) instructions: Instructions,
    scores: Vec<f32>,
    seen: Vec<Range<usize>>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Default for Scratch {
    fn default() -> Self {
        let instructions = Instructions::current();
        Self { instructions, scores: Vec::new(), seen: Vec::new(), keys: Vec::new(), values: Vec::new() }
    }
}

impl Mixed {
    /// The result for no keys.
    pub(super) fn nothing(queries: usize, value_dim: usize) -> Self {
        let width = value_dim.next_multiple_of(LANES);
        Self { values: vec![0.0; queries * width], running: vec![RunningSoftmax::NONE; queries], width }
    }

    /// Adds what was mixed of later keys.
    pub(super) fn merge(&mut self, later: &Self, instructions: Instructions) {
        instructions.run_plain(MergeMixed { total: self, later });
    }

    /// The attended values of some queries, `[queries, value_dim]`. `sinks` are the queries' scores for no value.
    pub(super) fn write(&self, first: usize, value_dim: usize, sinks: Option<&[f32]>, out: &mut [f32]) {
        let rows = self.values.chunks_exact(self.width).zip(&self.running).skip(first);
        for (index, (out, (values, running))) in out.chunks_exact_mut(value_dim).zip(rows).enumerate() {
            let sink = sinks.and_then(|sinks| sinks.get(index)).map_or(0.0, |sink| exp(sink - running.largest));
            let whole = (running.sum + sink).recip();
            for (out, value) in out.iter_mut().zip(values) {
                *out = value * whole;
            }
        }
    }

    fn reset(&mut self) {
        self.values.fill(0.0);
        self.running.fill(RunningSoftmax::NONE);
    }
}

/// Adds what was mixed of later keys.
struct MergeMixed<'a> {
    total: &'a mut Mixed,
    later: &'a Mixed,
}

impl NullaryFnOnce for MergeMixed<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { total, later } = self;
        let mine = total.values.chunks_exact_mut(total.width).zip(&mut total.running);
        let of_later = later.values.chunks_exact(later.width).zip(&later.running);
        for ((values, running), (later, of_later)) in mine.zip(of_later) {
            merge((values, running), (later, *of_later));
        }
    }
}

impl QueryTile {
    /// All keys that the queries see.
    pub(super) fn attend(&self, kv: &HostKv<'_>, head: usize, scratch: &mut Scratch) -> Mixed {
        let mut total = Mixed::nothing(self.seen.len(), kv.values().width());
        let mut part = Mixed::nothing(self.seen.len(), kv.values().width());
        for segment in self.segments() {
            part.reset();
            self.attend_segment(kv, head, segment, &mut part, scratch);
            total.merge(&part, scratch.instructions);
        }
        total
    }

    /// The keys of one segment, into what holds nothing yet. Its blocks begin at fixed positions of the sequence. A
    /// query therefore mixes the same values in the same order, for any tile and any past.
    pub(super) fn attend_segment(
        &self,
        kv: &HostKv<'_>,
        head: usize,
        segment: usize,
        mixed: &mut Mixed,
        scratch: &mut Scratch,
    ) {
        let Scratch { instructions, .. } = *scratch;
        let queries = self.seen.len();
        let head_dim = self.queries.len() / queries.max(1);
        let value_dim = kv.values().width();
        let (all, pages) = (self.all_seen(), BLOCK / PAGE);
        let apart = matches!(kv.values(), KvValues::Apart(_));
        let as_keys_lie = apart && takes_as_stored(queries);
        let as_values_lie = as_keys_lie && mixed.width == value_dim;
        scratch.scores.resize(queries * BLOCK, 0.0);
        for block in 0..SEGMENT / BLOCK {
            let first = segment * SEGMENT + block * BLOCK;
            let depth = all.end.saturating_sub(first).min(BLOCK);
            if depth == 0 {
                break;
            }
            if first + BLOCK <= all.start {
                continue;
            }
            scratch.seen.clear();
            let within = |key: usize| key.saturating_sub(first).min(BLOCK);
            scratch.seen.extend(self.seen.iter().map(|seen| within(seen.start)..within(seen.end)));
            // For each page its number, its first key in the block, and how many of its keys are seen.
            let seen_pages = (0..pages)
                .map(|page| (first / PAGE + page, page * PAGE, depth.saturating_sub(page * PAGE).min(PAGE)))
                .take_while(|(_, _, keys)| *keys > 0);

            scratch.scores.fill(0.0);
            let score = |b: Panel<'_>, b_stride: usize, column: usize, keys: usize, scores: &mut [f32]| {
                multiply(
                    instructions,
                    Product {
                        rows: queries,
                        depth: head_dim,
                        width: keys.next_multiple_of(LANES),
                        a: &self.queries,
                        a_stride: head_dim,
                        b,
                        b_stride,
                        c: &mut scores[column..],
                        c_stride: BLOCK,
                    },
                );
            };
            if as_keys_lie {
                for (page, column, keys) in seen_pages.clone() {
                    score(kv.page(page, head).keys, PAGE, column, keys, &mut scratch.scores);
                }
            } else {
                let behind = first + BLOCK..(first + 2 * BLOCK).min(all.end);
                ask_for(
                    instructions,
                    (behind.start / PAGE..behind.end.div_ceil(PAGE)).map(|page| kv.bytes(page, head)),
                );
                scratch.keys.resize(head_dim * BLOCK, 0.0);
                for (page, column, _) in seen_pages.clone() {
                    let (rows, wide) = (kv.page(page, head).keys, &mut scratch.keys[column..]);
                    spread(instructions, PanelSpread { rows, width: PAGE, wide, stride: BLOCK });
                }
                score(Panel::Floats(&scratch.keys), BLOCK, 0, depth, &mut scratch.scores);
            }
            instructions.run_plain(SoftmaxBlock {
                scores: &mut scratch.scores,
                seen: &scratch.seen,
                softcap: self.softcap,
                running: &mut mixed.running,
                mixed: &mut mixed.values,
                width: mixed.width,
            });
            let width = mixed.width;
            let mut mix = |b: Panel<'_>, first: usize, keys: usize| {
                multiply(
                    instructions,
                    Product {
                        rows: queries,
                        depth: keys,
                        width,
                        a: &scratch.scores[first..],
                        a_stride: BLOCK,
                        b,
                        b_stride: width,
                        c: &mut mixed.values,
                        c_stride: width,
                    },
                );
            };
            if as_values_lie {
                for (page, first, keys) in seen_pages {
                    mix(kv.page(page, head).values.first_rows(keys, value_dim), first, keys);
                }
            } else if !apart {
                scratch.values.resize(BLOCK * width, 0.0);
                for (at, value) in scratch.values.chunks_exact_mut(width).take(depth).enumerate() {
                    let elements = scratch.keys[at..].iter().step_by(BLOCK);
                    value.iter_mut().take(value_dim).zip(elements).for_each(|(value, key)| *value = *key);
                }
                mix(Panel::Floats(&scratch.values), 0, depth);
            } else {
                // Rows end with zeros where the width is larger than a head.
                scratch.values.resize(BLOCK * width, 0.0);
                for (page, first, keys) in seen_pages {
                    let rows = kv.page(page, head).values.first_rows(keys, value_dim);
                    let wide = &mut scratch.values[first * width..];
                    spread(instructions, PanelSpread { rows, width: value_dim, wide, stride: width });
                }
                mix(Panel::Floats(&scratch.values), 0, depth);
            }
        }
    }

    /// The segments with keys that any query sees.
    pub(super) fn segments(&self) -> Range<usize> {
        let all = self.all_seen();
        all.start / SEGMENT..all.end.div_ceil(SEGMENT)
    }

    /// From the first to the last key that any query sees.
    fn all_seen(&self) -> Range<usize> {
        let first = self.seen.iter().map(|seen| seen.start).min().unwrap_or(0);
        first..self.seen.iter().map(|seen| seen.end).max().unwrap_or(0)
    }
}
