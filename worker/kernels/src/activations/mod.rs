//! Rows of activations, rounded to 8 bits for products.

mod strips;

use rayon::prelude::*;

use crate::lanes::{Instructions, Lanes, WithLanes};

pub(super) use strips::Strips;

/// Groups of a chunk.
pub(super) const GROUPS: usize = 8;

/// Elements of a group. They share a scale.
pub(super) const GROUP: usize = 32;

/// Elements of a chunk.
const CHUNK: usize = GROUPS * GROUP;

/// 32-bit words of a group, each with four quants.
const WORDS: usize = GROUP / 4;

/// The least number of elements for which other threads are used: waking them costs more than rounding fewer.
const WORTH_SHARING: usize = 1 << 16;

/// Rows of activations in 8 bits.
pub(crate) struct Activations {
    rounded: Rounded,
    rows: usize,
    depth: usize,
}

enum Rounded {
    /// Few rows, each by itself.
    Rows(Vec<Chunk8>),
    /// Many rows, some of them beside each other.
    Strips(Strips),
}

/// A chunk of 256 activations. Element `i` of group `g` is `scales[g] · quant(g, i)`.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Chunk8 {
    /// Quants between −127 and 127, four to a word in the machine's order.
    pub(super) words: [[i32; WORDS]; GROUPS],
    pub(super) scales: [f32; GROUPS],
    /// −32 times the sums of 16 quants each. A product that uses the weights' quants (−32 to 31) plus 32, so that they
    /// are unsigned, adds these values as a correction.
    pub(super) offsets: [i32; 2 * GROUPS],
    /// The sums of 16 quants each, as floating-point numbers.
    pub(super) half_sums: [f32; 2 * GROUPS],
    /// Sums of whole groups, as floating-point numbers.
    pub(super) group_sums: [f32; GROUPS],
}

impl Chunk8 {
    pub(super) const ZERO: Self = Self {
        words: [[0; WORDS]; GROUPS],
        scales: [0.0; GROUPS],
        offsets: [0; 2 * GROUPS],
        half_sums: [0.0; 2 * GROUPS],
        group_sums: [0.0; GROUPS],
    };
}

impl Activations {
    /// Rounds activations `[rows, depth]`, where `depth` is a multiple of 32.
    pub(crate) fn quantise(x: &[f32], rows: usize, depth: usize) -> Self {
        Self::quantise_by(Instructions::current(), x, rows, depth)
    }

    /// As [`Self::quantise`], for products of this instruction set.
    pub(crate) fn quantise_by(instructions: Instructions, x: &[f32], rows: usize, depth: usize) -> Self {
        let form = instructions.run(FormOfRows);
        let rounded = if rows >= form.worth_strips {
            Rounded::Strips(Strips::quantise(instructions, x, [rows, depth], form.height))
        } else {
            Rounded::Rows(quantised_rows(instructions, x, rows, depth))
        };
        Self { rounded, rows, depth }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// A row of few, padded with zeros to whole chunks. Many rows have none.
    pub(super) fn row(&self, row: usize) -> &[Chunk8] {
        let per_row = chunks_of(self.depth);
        match &self.rounded {
            Rounded::Rows(chunks) => chunks.get(row * per_row..(row + 1) * per_row).unwrap_or_default(),
            Rounded::Strips(_) => &[],
        }
    }

    /// The strips of many rows.
    pub(super) fn strips(&self) -> Option<&Strips> {
        match &self.rounded {
            Rounded::Rows(_) => None,
            Rounded::Strips(strips) => Some(strips),
        }
    }

    /// Elements of a row.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }
}

/// Chunks of a row.
fn chunks_of(depth: usize) -> usize {
    depth.div_ceil(CHUNK)
}

fn quantised_rows(instructions: Instructions, x: &[f32], rows: usize, depth: usize) -> Vec<Chunk8> {
    let per_row = chunks_of(depth);
    let mut chunks = vec![Chunk8::ZERO; rows * per_row];
    let run = |(chunks, x): (&mut [Chunk8], &[f32])| {
        instructions.run_plain(QuantiseRow { x, chunks });
    };
    if x.len() < WORTH_SHARING {
        chunks.chunks_mut(per_row).zip(x.chunks(depth)).for_each(run);
    } else {
        chunks.par_chunks_mut(per_row).zip(x.par_chunks(depth)).for_each(run);
    }
    chunks
}

/// The form in which an instruction set multiplies many rows.
struct FormOfRows;

struct RowsForm {
    /// Rows from which on strips are made.
    worth_strips: usize,
    /// Rows of a strip.
    height: usize,
}

impl WithLanes for FormOfRows {
    type Output = RowsForm;

    fn call<L: Lanes>(self, _: L) -> RowsForm {
        RowsForm { worth_strips: L::WORTH_UNPACKING, height: L::STRIP }
    }
}

struct QuantiseRow<'a> {
    x: &'a [f32],
    chunks: &'a mut [Chunk8],
}

impl pulp::NullaryFnOnce for QuantiseRow<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (x, chunk) in self.x.chunks(CHUNK).zip(self.chunks) {
            for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                quantise_group(x, chunk, g);
            }
        }
    }
}

#[inline(always)]
fn quantise_group(x: &[f32; GROUP], chunk: &mut Chunk8, g: usize) {
    // The bits are compared as integers. Infinity and NaN are then larger than all numbers, and reach the scale and
    // with it every result.
    let largest = f32::from_bits(x.iter().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff)));
    let scale = largest / 127.0;
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    // The loops are simple and separate, so that each is compiled to vector instructions. Adding 1.5 · 2^23 rounds to
    // the nearest whole number, with ties to even, and leaves it in the low bits. Infinity and NaN leave arbitrary
    // bits, which the scale makes irrelevant.
    const ROUND: f32 = 12_582_912.0;
    let mut quants = [0_i8; GROUP];
    for (x, quant) in x.iter().zip(&mut quants) {
        *quant = (x * inverse + ROUND).to_bits() as i8;
    }
    let [first, second] = pulp::cast::<_, [[i8; GROUP / 2]; 2]>(quants);
    let sum = |quants: [i8; GROUP / 2]| quants.into_iter().fold(0, |sum, quant| sum + i32::from(quant));
    let sums = [sum(first), sum(second)];
    chunk.words[g] = pulp::cast(quants);
    chunk.scales[g] = scale;
    chunk.offsets[2 * g] = -32 * sums[0];
    chunk.offsets[2 * g + 1] = -32 * sums[1];
    chunk.half_sums[2 * g] = scale * sums[0] as f32;
    chunk.half_sums[2 * g + 1] = scale * sums[1] as f32;
    chunk.group_sums[g] = scale * (sums[0] + sums[1]) as f32;
}
