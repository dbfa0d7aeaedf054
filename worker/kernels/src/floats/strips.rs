//! Products of floats: rows of a matrix with strips of a few rows of activations.

use std::marker::PhantomData;

use pulp::NullaryFnOnce;

use super::kinds::FloatKind;
use super::outs::{MatrixRows, PackedOuts, StoredOuts};
use super::packed::{PackedRows, RowStrip, StripShape, pack};
use super::sums::{by_parts, read_once};
use crate::lanes::{LANES, Lanes, WithLanes};
use crate::ran::ran;

/// Rows of the matrix that are multiplied together by several rows of activations.
const OUTS: usize = 4;

/// Rows of the matrix that are packed together.
const PACKED_OUTS: usize = 24;

/// Bytes of activations that the matrix's rows are packed once for: the second cache's, and a little of the third's.
const ROWS_BYTES: usize = 1 << 20;

/// Rows of activations from which on the matrix's rows become f32 before they are multiplied.
pub(super) const WORTH_PACKING: usize = 13;

/// Most rows of a strip that is multiplied by whole vectors of the matrix.
const MOST_READ_ONCE: usize = 2;

/// Whether stored rows of the matrix are multiplied part by part. For one or two rows memory is the limit. A set whose
/// vectors have several registers would widen the elements anew for each part.
fn has_parts_of_stored<L: Lanes>(rows: usize) -> bool {
    L::PARTS == 1 && L::SUMS >= 24 && rows > MOST_READ_ONCE
}

/// The strips for a number of rows of activations.
pub(super) struct StripFor {
    pub(super) rows: usize,
}

impl WithLanes for StripFor {
    type Output = StripShape;

    fn call<L: Lanes>(self, _: L) -> StripShape {
        let (rows, most) = (self.rows, L::PART_SUMS / OUTS);
        if rows < WORTH_PACKING && !has_parts_of_stored::<L>(rows) {
            return StripShape { height: MOST_READ_ONCE, parts: 1 };
        }
        // The last of few strips is not left with a single row.
        let height = if rows > 2 * most { most } else { rows.div_ceil(rows.div_ceil(most)) };
        StripShape { height, parts: L::PARTS }
    }
}

/// The product of some rows of the matrix with a few rows of activations. The matrix's elements become f32 in
/// registers.
pub(super) struct FewFloatRows<'a, K> {
    pub(super) x: &'a PackedRows,
    /// Rows of the matrix, `[outs, depth]`.
    pub(super) w: &'a [u8],
    /// Results `[outs, rows]`.
    pub(super) y: &'a mut [f32],
    pub(super) depth: usize,
    pub(super) kind: PhantomData<K>,
}

impl<K: FloatKind> WithLanes for FewFloatRows<'_, K> {
    type Output = ();

    fn call<L: Lanes>(self, lanes: L) {
        lanes.vectorize(FewFloatsVectorized { lanes, work: self });
    }
}

struct FewFloatsVectorized<'a, L, K> {
    lanes: L,
    work: FewFloatRows<'a, K>,
}

impl<L: Lanes, K: FloatKind> NullaryFnOnce for FewFloatsVectorized<'_, L, K> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { lanes, work } = self;
        match work.x.rows() {
            1 | 2 if L::SUMS >= 24 => work.stored::<L, 8>(lanes),
            1 => work.stored::<L, 4>(lanes),
            _ if L::SUMS >= 24 => work.stored::<L, OUTS>(lanes),
            _ => work.stored::<L, 2>(lanes),
        }
    }
}

impl<K: FloatKind> FewFloatRows<'_, K> {
    #[inline(always)]
    fn stored<L: Lanes, const OUTS: usize>(self, lanes: L) {
        let Self { x, w, y, depth, .. } = self;
        let (rows, bytes) = (x.rows(), K::row_bytes(depth));
        for (w, y) in w.chunks(OUTS * bytes).zip(y.chunks_mut(OUTS * rows)) {
            for (first, x) in x.strips(0..rows) {
                if w.len() == OUTS * bytes {
                    let mut outs: [&[u8]; OUTS] = [&[]; OUTS];
                    for (out, row) in outs.iter_mut().zip(w.chunks_exact(bytes)) {
                        *out = row;
                    }
                    few(lanes, &StoredOuts::<K, OUTS>::new(outs), x, &mut ByOut { y, rows, first });
                } else {
                    for (w, y) in w.chunks_exact(bytes).zip(y.chunks_exact_mut(rows)) {
                        few(lanes, &StoredOuts::<K, 1>::new([w]), x, &mut ByOut { y, rows, first });
                    }
                }
            }
        }
    }
}

/// Multiplies stored rows by a strip of a few rows of activations.
#[inline(always)]
fn few<L: Lanes, K: FloatKind, const OUTS: usize>(
    lanes: L,
    w: &StoredOuts<'_, K, OUTS>,
    x: RowStrip<'_>,
    y: &mut ByOut<'_>,
) {
    if has_parts_of_stored::<L>(y.rows) {
        return multiply(lanes, w, x, y);
    }
    ran(|| format!("{} {OUTS}×{}", L::NAME, x.rows));
    match x.rows {
        1 => y.put(read_once::<L, K, OUTS, 1>(lanes, w, x.values)),
        _ => y.put(read_once::<L, K, OUTS, 2>(lanes, w, x.values)),
    }
}

/// The product of some rows of the matrix with many rows of activations: some rows of the matrix at a time become f32
/// and are packed.
pub(super) struct ManyFloatRows<'a, K> {
    pub(super) x: &'a PackedRows,
    /// Rows of the matrix, `[outs, depth]`.
    pub(super) w: &'a [u8],
    /// Results `[rows, outs]`.
    pub(super) y: &'a mut [f32],
    pub(super) outs: usize,
    pub(super) depth: usize,
    pub(super) kind: PhantomData<K>,
}

impl<K: FloatKind> WithLanes for ManyFloatRows<'_, K> {
    type Output = ();

    fn call<L: Lanes>(self, lanes: L) {
        lanes.vectorize(ManyFloatsVectorized { lanes, work: self });
    }
}

struct ManyFloatsVectorized<'a, L, K> {
    lanes: L,
    work: ManyFloatRows<'a, K>,
}

impl<L: Lanes, K: FloatKind> NullaryFnOnce for ManyFloatsVectorized<'_, L, K> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { lanes, work } = self;
        work.packed(lanes);
    }
}

impl<K: FloatKind> ManyFloatRows<'_, K> {
    #[inline(always)]
    fn packed<L: Lanes>(self, lanes: L) {
        let Self { x, w, y, outs, depth, .. } = self;
        let (rows, steps, bytes) = (x.rows(), x.steps(), K::row_bytes(depth));
        let together = (ROWS_BYTES / (4 * depth)).next_multiple_of(12);
        let mut tiles = vec![0.0_f32; PACKED_OUTS * steps * LANES];
        for first in (0..rows).step_by(together) {
            for (group, w) in w.chunks(PACKED_OUTS * bytes).enumerate() {
                for (tile, w) in tiles.chunks_exact_mut(OUTS * steps * LANES).zip(w.chunks(OUTS * bytes)) {
                    pack::<L, K, OUTS>(lanes, w, bytes, tile);
                }
                let columns = group * PACKED_OUTS..outs.min((group + 1) * PACKED_OUTS);
                for (row, x) in x.strips(first..rows.min(first + together)) {
                    let y = &mut y[row * outs..];
                    for (tile, column) in tiles.chunks_exact(OUTS * steps * LANES).zip(columns.clone().step_by(OUTS)) {
                        multiply(lanes, &PackedOuts::<OUTS>(tile), x, &mut ByRow { y, outs, column });
                    }
                }
            }
        }
    }
}

/// Results of a few rows of the matrix and a strip of activations.
trait StripResults {
    /// Takes the results in; of the last rows of a matrix there are fewer.
    fn put<const OUTS: usize, const R: usize>(&mut self, sums: [[f32; R]; OUTS]);
}

/// Results `[outs, rows]` from the row `first` on.
struct ByOut<'a> {
    y: &'a mut [f32],
    rows: usize,
    first: usize,
}

impl StripResults for ByOut<'_> {
    #[inline(always)]
    fn put<const OUTS: usize, const R: usize>(&mut self, sums: [[f32; R]; OUTS]) {
        for (sums, y) in sums.iter().zip(self.y.chunks_exact_mut(self.rows)) {
            y[self.first..self.first + R].copy_from_slice(sums);
        }
    }
}

/// Results `[rows, outs]` from the column on, beginning with the strip's first row.
struct ByRow<'a> {
    y: &'a mut [f32],
    outs: usize,
    column: usize,
}

impl StripResults for ByRow<'_> {
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the index is that of a column of an array of arrays")]
    fn put<const OUTS: usize, const R: usize>(&mut self, sums: [[f32; R]; OUTS]) {
        let here = OUTS.min(self.outs - self.column);
        for (row, y) in self.y.chunks_mut(self.outs).take(R).enumerate() {
            let y = &mut y[self.column..self.column + here];
            for (out, y) in y.iter_mut().enumerate() {
                *y = sums[out][row];
            }
        }
    }
}

/// Multiplies rows of the matrix by a strip in parts.
#[inline(always)]
fn multiply<L: Lanes, W: MatrixRows<L, OUTS>, const OUTS: usize>(
    lanes: L,
    w: &W,
    x: RowStrip<'_>,
    y: &mut impl StripResults,
) {
    ran(|| format!("{} {OUTS}×{}", L::NAME, x.rows));
    match x.rows {
        1 => y.put(by_parts::<L, W, OUTS, 1>(lanes, w, x.values)),
        2 => y.put(by_parts::<L, W, OUTS, 2>(lanes, w, x.values)),
        3 => y.put(by_parts::<L, W, OUTS, 3>(lanes, w, x.values)),
        4 if L::PART_SUMS >= 24 => y.put(by_parts::<L, W, OUTS, 4>(lanes, w, x.values)),
        5 if L::PART_SUMS >= 24 => y.put(by_parts::<L, W, OUTS, 5>(lanes, w, x.values)),
        6 if L::PART_SUMS >= 24 => y.put(by_parts::<L, W, OUTS, 6>(lanes, w, x.values)),
        _ => {}
    }
}
