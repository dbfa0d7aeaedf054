//! Rows of floats beside each other: some rows' elements of one step, then those of the next.
//!
//! Rows of many models are 4 KiB long or a multiple of it, and then their elements of one column compete for the same
//! few places of the first cache. Beside each other they do not.

use std::ops::Range;

use super::kinds::FloatKind;
use super::rows::{groups, padded};
use crate::lanes::{LANES, Lanes};

/// The way in which rows lie beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StripShape {
    /// Rows of a whole strip.
    pub(super) height: usize,
    /// Parts of sixteen elements, each of which has an area of its own.
    pub(super) parts: usize,
}

/// Rows of activations in strips, each `[parts, steps, rows][16 / parts]`, ending with zeros.
pub(super) struct PackedRows {
    values: Vec<f32>,
    rows: usize,
    steps: usize,
    shape: StripShape,
}

impl PackedRows {
    /// Packs `x`, `[rows, depth]`.
    pub(super) fn new(x: &[f32], rows: usize, depth: usize, shape: StripShape) -> Self {
        let StripShape { height, parts } = shape;
        let (steps, width) = (depth.div_ceil(LANES), LANES / parts);
        let mut values = vec![0.0; rows * steps * LANES];
        for (strip, x) in values.chunks_mut(height * steps * LANES).zip(x.chunks(height * depth)) {
            let here = x.len() / depth;
            for (row, x) in x.chunks_exact(depth).enumerate() {
                for (at, x) in x.chunks(width).enumerate() {
                    let place = (at % parts * steps + at / parts) * here + row;
                    strip[place * width..][..x.len()].copy_from_slice(x);
                }
            }
        }
        Self { values, rows, steps, shape }
    }

    /// Rows of all strips.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Steps of sixteen elements in a row.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// The strips of a range of rows, each with its first row. The range begins with a strip.
    pub(super) fn strips(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, RowStrip<'_>)> {
        let row = self.steps * LANES;
        rows.clone().step_by(self.shape.height).map(move |first| {
            let end = rows.end.min(first + self.shape.height);
            (first, RowStrip { values: &self.values[first * row..end * row], rows: end - first })
        })
    }
}

/// A few rows of activations.
#[derive(Clone, Copy)]
pub(super) struct RowStrip<'a> {
    pub(super) values: &'a [f32],
    pub(super) rows: usize,
}

/// Packs some rows of a matrix, which lie one after another, as f32: `[parts, steps, OUTS][16 / parts]`.
#[inline(always)]
pub(super) fn pack<L: Lanes, K: FloatKind, const OUTS: usize>(lanes: L, w: &[u8], row_bytes: usize, into: &mut [f32]) {
    let (area, width) = (into.len() / L::PARTS, LANES / L::PARTS);
    let mut put = |floats: L::Floats, step: usize, out: usize| {
        for part in 0..L::PARTS {
            lanes.store_part(lanes.part(floats, part), &mut into[part * area + (step * OUTS + out) * width..]);
        }
    };
    for (out, row) in w.chunks_exact(row_bytes).enumerate() {
        let (whole, rest) = groups::<K>(row);
        for (number, group) in whole.iter().enumerate() {
            for step in 0..K::STEPS {
                put(K::load(lanes, group, step), number * K::STEPS + step, out);
            }
        }
        if !rest.is_empty() {
            put(K::load(lanes, &padded::<K>(rest), 0), whole.len() * K::STEPS, out);
        }
    }
}
