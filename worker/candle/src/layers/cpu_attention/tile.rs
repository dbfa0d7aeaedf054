//! Some queries that share keys, against the keys of one head: block by block with an online softmax, segment by
//! segment. Knows numbers and the cache's layout, no tasks.

use super::cache::{HeadSegment, HostKv};
use super::instructions::Instructions;
use super::kernel::{LANES, Panel, Product, RunningSoftmax, SoftmaxBlock, merge};
use super::segment::{BLOCK, SEGMENT};

/// Queries and what they see.
pub(super) struct QueryTile {
    /// `[queries, head_dim]`, rotated and scaled.
    pub(super) queries: Vec<f32>,
    /// `[queries]`: how many keys, from the first, each sees.
    pub(super) seen: Vec<usize>,
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
    seen: Vec<usize>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Default for Scratch {
    fn default() -> Self {
        let instructions = Instructions::detect();
        Self { instructions, scores: Vec::new(), seen: Vec::new(), keys: Vec::new(), values: Vec::new() }
    }
}

impl Mixed {
    /// The result for no keys.
    pub(super) fn nothing(queries: usize, head_dim: usize) -> Self {
        let width = head_dim.next_multiple_of(LANES);
        Self { values: vec![0.0; queries * width], running: vec![RunningSoftmax::NONE; queries], width }
    }

    /// Adds what was mixed of later keys.
    pub(super) fn merge(&mut self, later: &Self) {
        let mine = self.values.chunks_exact_mut(self.width).zip(&mut self.running);
        let of_later = later.values.chunks_exact(self.width).zip(&later.running);
        for ((values, running), (later, of_later)) in mine.zip(of_later) {
            merge((values, running), (later, *of_later));
        }
    }

    /// The attended values of some queries, `[queries, head_dim]`.
    pub(super) fn write(&self, first: usize, head_dim: usize, out: &mut [f32]) {
        let rows = self.values.chunks_exact(self.width).zip(&self.running).skip(first);
        for (out, (values, running)) in out.chunks_exact_mut(head_dim).zip(rows) {
            let whole = running.sum.recip();
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

impl QueryTile {
    /// All keys that the queries see.
    pub(super) fn attend(&self, kv: &HostKv, head: usize, head_dim: usize, scratch: &mut Scratch) -> Mixed {
        let mut total = Mixed::nothing(self.seen.len(), head_dim);
        let mut part = Mixed::nothing(self.seen.len(), head_dim);
        for segment in 0..self.segments() {
            part.reset();
            self.attend_segment(kv, head, segment, &mut part, scratch);
            total.merge(&part);
        }
        total
    }

    /// The keys of one segment, into what holds nothing yet. Its blocks begin at fixed positions of the sequence. A
    /// query therefore mixes the same values in the same order, for any tile and any past.
    pub(super) fn attend_segment(
        &self,
        kv: &HostKv,
        head: usize,
        segment: usize,
        mixed: &mut Mixed,
        scratch: &mut Scratch,
    ) {
        let instructions = scratch.instructions;
        let HeadSegment { keys, values } = kv.segment(segment, head);
        let queries = self.seen.len();
        let head_dim = self.queries.len() / queries.max(1);
        scratch.scores.resize(queries * BLOCK, 0.0);
        let most = self.most_seen();
        for block in 0..SEGMENT / BLOCK {
            let first = segment * SEGMENT + block * BLOCK;
            let depth = most.saturating_sub(first).min(BLOCK);
            if depth == 0 {
                break;
            }
            scratch.seen.clear();
            scratch.seen.extend(self.seen.iter().map(|seen| seen.saturating_sub(first).min(BLOCK)));

            let keys = keys.part(block * BLOCK * head_dim, BLOCK * head_dim);
            scratch.scores.fill(0.0);
            instructions.product(Product {
                rows: queries,
                depth: head_dim,
                width: depth.next_multiple_of(LANES),
                a: &self.queries,
                a_stride: head_dim,
                b: panel(instructions, queries, keys, BLOCK, BLOCK, &mut scratch.keys),
                b_stride: BLOCK,
                c: &mut scratch.scores,
                c_stride: BLOCK,
            });
            instructions.weigh(SoftmaxBlock {
                scores: &mut scratch.scores,
                seen: &scratch.seen,
                running: &mut mixed.running,
                mixed: &mut mixed.values,
                width: mixed.width,
            });
            let values = values.part(block * BLOCK * head_dim, depth * head_dim);
            instructions.product(Product {
                rows: queries,
                depth,
                width: mixed.width,
                a: &scratch.scores,
                a_stride: BLOCK,
                b: panel(instructions, queries, values, head_dim, mixed.width, &mut scratch.values),
                b_stride: mixed.width,
                c: &mut mixed.values,
                c_stride: mixed.width,
            });
        }
    }

    /// The number of segments with keys that any query sees.
    pub(super) fn segments(&self) -> usize {
        self.most_seen().div_ceil(SEGMENT)
    }

    fn most_seen(&self) -> usize {
        self.seen.iter().copied().max().unwrap_or(0)
    }
}

/// Stored rows as a panel that a product takes: as they are, or widened to rows of `stride` with zeros at their ends.
fn panel<'a>(
    instructions: Instructions,
    queries: usize,
    stored: Panel<'a>,
    width: usize,
    stride: usize,
    room: &'a mut Vec<f32>,
) -> Panel<'a> {
    let as_it_is = match stored {
        Panel::Halves(_) => instructions.widen_as_they_go(queries),
        Panel::Floats(_) => true,
    };
    if width == stride && as_it_is {
        return stored;
    }
    let rows = stored.len() / width;
    room.resize(rows * stride, 0.0);
    for (row, room) in room.chunks_exact_mut(stride).enumerate() {
        let (used, rest) = room.split_at_mut(width);
        match stored.part(row * width, width) {
            Panel::Halves(bits) => instructions.widen(bits, used),
            Panel::Floats(floats) => used.copy_from_slice(floats),
        }
        rest.fill(0.0);
    }
    Panel::Floats(room)
}
