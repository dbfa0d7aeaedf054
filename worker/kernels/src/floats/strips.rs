//! The inner loops of products of floats: a few rows of a matrix with a few rows of activations.
//!
//! Each result is the sum of sixteen running sums along the depth, element `i` in sum `i % 16`, which are added in one
//! order at the end. It does not depend on the number of rows, on the type that the elements are stored in, or on the
//! instruction set.

use std::marker::PhantomData;

use pulp::NullaryFnOnce;

use super::kinds::FloatKind;
use super::packed::{PackedRows, PackedSteps, RowStrip, pack};
use super::rows::{groups, padded};
use crate::lanes::{LANES, Lanes, WithLanes};
use crate::ran::ran;

/// Rows of the matrix that are packed together.
const PACKED_OUTS: usize = 24;

/// Bytes of activations that the matrix's rows are packed once for: the second cache's, and a little of the third's.
const ROWS_BYTES: usize = 1 << 20;

/// The distance in bytes by which memory is prefetched. The processor prefetches too, but stops at the end of each
/// page.
const BYTES_AHEAD: usize = 16 << 10;

/// The number of activations' rows that are multiplied together by this set.
pub(super) struct StripHeight;

impl WithLanes for StripHeight {
    type Output = usize;

    fn call<L: Lanes>(self, _: L) -> usize {
        if L::SUMS >= 24 { 6 } else { 2 }
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
            _ if L::SUMS >= 24 => work.stored::<L, 4>(lanes),
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
                    multiply(lanes, StoredOuts::<K, OUTS>::new(outs), x, &mut ByOut { y, rows, first });
                } else {
                    for (w, y) in w.chunks_exact(bytes).zip(y.chunks_exact_mut(rows)) {
                        multiply(lanes, StoredOuts::<K, 1>::new([w]), x, &mut ByOut { y, rows, first });
                    }
                }
            }
        }
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
        if L::SUMS >= 24 { work.packed::<L, 4>(lanes) } else { work.packed::<L, 3>(lanes) }
    }
}

impl<K: FloatKind> ManyFloatRows<'_, K> {
    #[inline(always)]
    fn packed<L: Lanes, const OUTS: usize>(self, lanes: L) {
        let Self { x, w, y, outs, depth, .. } = self;
        let (rows, steps, bytes) = (x.rows(), x.steps(), K::row_bytes(depth));
        let together = (ROWS_BYTES / (4 * depth)).next_multiple_of(12);
        let mut tiles = vec![[0.0_f32; LANES]; PACKED_OUTS * steps];
        for first in (0..rows).step_by(together) {
            for (group, w) in w.chunks(PACKED_OUTS * bytes).enumerate() {
                for (tile, w) in tiles.chunks_exact_mut(OUTS * steps).zip(w.chunks(OUTS * bytes)) {
                    pack::<L, K, OUTS>(lanes, w, bytes, tile);
                }
                let columns = group * PACKED_OUTS..outs.min((group + 1) * PACKED_OUTS);
                for (row, x) in x.strips(first..rows.min(first + together)) {
                    let y = &mut y[row * outs..];
                    for (tile, column) in tiles.chunks_exact(OUTS * steps).zip(columns.clone().step_by(OUTS)) {
                        multiply(lanes, PackedOuts::<OUTS>(tile), x, &mut ByRow { y, outs, column });
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

/// Some rows of a matrix, from which sixteen elements at a time are loaded.
trait MatrixRows<L: Lanes, const OUTS: usize>: Copy {
    fn load(self, lanes: L, step: usize, out: usize, ahead: bool) -> L::Floats;
    /// The elements behind the last whole step, if there are any, with zeros behind them.
    fn last(self, lanes: L, out: usize) -> L::Floats;
    /// PackedSteps without the last elements.
    fn whole_steps(self) -> usize;
}

/// Rows as they are stored.
#[derive(Clone, Copy)]
struct StoredOuts<'a, K: FloatKind, const OUTS: usize> {
    rows: [&'a [K::Group]; OUTS],
    rest: [&'a [u8]; OUTS],
}

impl<'a, K: FloatKind, const OUTS: usize> StoredOuts<'a, K, OUTS> {
    #[inline(always)]
    fn new(rows: [&'a [u8]; OUTS]) -> Self {
        let mut stored = Self { rows: [&[]; OUTS], rest: [&[]; OUTS] };
        for (out, row) in rows.into_iter().enumerate() {
            (stored.rows[out], stored.rest[out]) = groups::<K>(row);
        }
        stored
    }
}

impl<L: Lanes, K: FloatKind, const OUTS: usize> MatrixRows<L, OUTS> for StoredOuts<'_, K, OUTS> {
    #[inline(always)]
    fn load(self, lanes: L, step: usize, out: usize, ahead: bool) -> L::Floats {
        let group = &self.rows[out][step / K::STEPS];
        if ahead {
            lanes.prefetch((&raw const *group).cast::<u8>().wrapping_add(BYTES_AHEAD));
        }
        K::load(lanes, group, step % K::STEPS)
    }

    #[inline(always)]
    fn last(self, lanes: L, out: usize) -> L::Floats {
        K::load(lanes, &padded::<K>(self.rest[out]), 0)
    }

    #[inline(always)]
    fn whole_steps(self) -> usize {
        self.rows[0].len() * K::STEPS
    }
}

/// Rows beside each other.
#[derive(Clone, Copy)]
struct PackedOuts<'a, const OUTS: usize>(PackedSteps<'a>);

impl<L: Lanes, const OUTS: usize> MatrixRows<L, OUTS> for PackedOuts<'_, OUTS> {
    #[inline(always)]
    fn load(self, lanes: L, step: usize, out: usize, _: bool) -> L::Floats {
        lanes.load_floats(&self.0[step * OUTS + out])
    }

    #[inline(always)]
    fn last(self, lanes: L, _: usize) -> L::Floats {
        lanes.splat_float(0.0)
    }

    #[inline(always)]
    fn whole_steps(self) -> usize {
        self.0.len() / OUTS
    }
}

/// Multiplies rows of the matrix by a strip.
#[inline(always)]
fn multiply<L: Lanes, W: MatrixRows<L, OUTS>, const OUTS: usize>(
    lanes: L,
    w: W,
    x: RowStrip<'_>,
    y: &mut impl StripResults,
) {
    ran(|| format!("{} {OUTS}×{}", L::NAME, x.rows));
    match x.rows {
        1 => y.put(sums::<L, W, OUTS, 1>(lanes, w, x.steps)),
        2 => y.put(sums::<L, W, OUTS, 2>(lanes, w, x.steps)),
        3 if L::SUMS >= 24 => y.put(sums::<L, W, OUTS, 3>(lanes, w, x.steps)),
        4 if L::SUMS >= 24 => y.put(sums::<L, W, OUTS, 4>(lanes, w, x.steps)),
        5 if L::SUMS >= 24 => y.put(sums::<L, W, OUTS, 5>(lanes, w, x.steps)),
        6 if L::SUMS >= 24 => y.put(sums::<L, W, OUTS, 6>(lanes, w, x.steps)),
        _ => {}
    }
}

/// All products of `OUTS` rows with `R` rows of activations.
///
/// The loops are plain, because a closure given to `array::map` is compiled without the instructions of `L`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
fn sums<L: Lanes, W: MatrixRows<L, OUTS>, const OUTS: usize, const R: usize>(
    lanes: L,
    w: W,
    x: PackedSteps<'_>,
) -> [[f32; R]; OUTS] {
    let zero = lanes.splat_float(0.0);
    let mut sums = [[zero; R]; OUTS];
    let mut column = [zero; R];
    let (steps, rest) = x.as_chunks::<R>();
    debug_assert!(rest.is_empty());
    let whole = w.whole_steps().min(steps.len());
    for step in 0..whole {
        for r in 0..R {
            column[r] = lanes.load_floats(&steps[step][r]);
        }
        for out in 0..OUTS {
            // With more rows of activations, the processor's own prefetches are early enough.
            let w = w.load(lanes, step, out, R <= 2);
            for r in 0..R {
                sums[out][r] = lanes.mul_add(w, column[r], sums[out][r]);
            }
        }
    }
    if let Some(step) = steps.get(whole) {
        for r in 0..R {
            column[r] = lanes.load_floats(&step[r]);
        }
        for out in 0..OUTS {
            let w = w.last(lanes, out);
            for r in 0..R {
                sums[out][r] = lanes.mul_add(w, column[r], sums[out][r]);
            }
        }
    }
    let mut results = [[0.0; R]; OUTS];
    let flat = results.as_flattened_mut();
    for first in (0..OUTS * R).step_by(4) {
        let mut four = [zero; 4];
        for at in 0..4.min(OUTS * R - first) {
            four[at] = sums[(first + at) / R][(first + at) % R];
        }
        for (result, sum) in flat[first..].iter_mut().zip(lanes.four_sums(four)) {
            *result = sum;
        }
    }
    results
}
