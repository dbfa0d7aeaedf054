//! Rows of floats beside each other: some rows' elements of one step, then those of the next.
//!
//! Rows of many models are 4 KiB long or a multiple of it, and then their elements of one column compete for the same
//! few places of the first cache. Beside each other they do not.

use std::ops::Range;

use super::kinds::FloatKind;
use super::rows::{groups, padded};
use crate::lanes::{LANES, Lanes};

/// Elements of some rows, `[steps, rows][16]`, ending with zeros.
pub(super) type PackedSteps<'a> = &'a [[f32; LANES]];

/// Rows of activations in strips, each as [`PackedSteps`].
pub(super) struct PackedRows {
    values: Vec<[f32; LANES]>,
    rows: usize,
    steps: usize,
    /// Rows of a whole strip.
    height: usize,
}

impl PackedRows {
    /// Packs `x`, `[rows, depth]`.
    pub(super) fn new(x: &[f32], rows: usize, depth: usize, height: usize) -> Self {
        let steps = depth.div_ceil(LANES);
        let mut values = vec![[0.0; LANES]; rows * steps];
        for (strip, x) in values.chunks_mut(height * steps).zip(x.chunks(height * depth)) {
            let here = strip.len() / steps;
            for (row, x) in x.chunks_exact(depth).enumerate() {
                for (step, x) in x.chunks(LANES).enumerate() {
                    strip[step * here + row][..x.len()].copy_from_slice(x);
                }
            }
        }
        Self { values, rows, steps, height }
    }

    /// Rows of all strips.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// PackedSteps of a row.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// The strips of a range of rows, each with its first row. The range begins with a strip.
    pub(super) fn strips(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, RowStrip<'_>)> {
        rows.clone().step_by(self.height).map(move |first| {
            let end = rows.end.min(first + self.height);
            (first, RowStrip { steps: &self.values[first * self.steps..end * self.steps], rows: end - first })
        })
    }
}

/// A few rows of activations.
#[derive(Clone, Copy)]
pub(super) struct RowStrip<'a> {
    pub(super) steps: PackedSteps<'a>,
    pub(super) rows: usize,
}

/// Packs some rows of a matrix, which lie one after another, as f32.
#[inline(always)]
pub(super) fn pack<L: Lanes, K: FloatKind, const OUTS: usize>(
    lanes: L,
    w: &[u8],
    row_bytes: usize,
    into: &mut [[f32; LANES]],
) {
    for (out, row) in w.chunks_exact(row_bytes).enumerate() {
        let (whole, rest) = groups::<K>(row);
        for (group, steps) in whole.iter().zip(into.chunks_mut(K::STEPS * OUTS)) {
            for (number, step) in steps.chunks_exact_mut(OUTS).enumerate() {
                lanes.store(K::load(lanes, group, number), &mut step[out]);
            }
        }
        if !rest.is_empty() {
            lanes.store(K::load(lanes, &padded::<K>(rest), 0), &mut into[whole.len() * OUTS + out]);
        }
    }
}
