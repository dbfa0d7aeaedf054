//! Rows of activations, rounded to 8 bits for products.

mod chunk;
mod strips;

use rayon::prelude::*;

use crate::lanes::{Instructions, Lanes, WithLanes};

pub(super) use chunk::{Chunk8, GROUPS};
pub(super) use strips::Strips;

use chunk::{CHUNK, QuantiseRow, WORTH_SHARING};

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
