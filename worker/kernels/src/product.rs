//! The CPU's product of activations with a stored matrix: `x Wᵀ`, with both operands stored row by row.
//!
//! candle's own product packs the whole matrix anew in every call with more than one row. A step of two sequences took
//! three times as long as a step of one, and a single row ran on one core. It also sums in another order for another
//! number of rows. Here each result is one running sum along the depth, in the same order for any batch. The other
//! sequences of a step cannot change a bit. On a core of an AVX2 machine with 1024 x 1024 weights, two rows run at 100
//! GFLOP/s in place of 5. One row runs at 40 as before, and long prompts at three quarters to all of candle's 100.

use std::array::from_fn;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::lanes::Instructions;

/// Bytes of the matrix that one core works on at a time. They stay in its cache while all rows of activations use them.
const BLOCK_BYTES: usize = 256 << 10;

/// The least number of multiplications (or moves) for which other threads are used: some 20 µs of one core. Waking
/// threads costs more than computing fewer.
pub const WORTH_SHARING: usize = 1 << 19;

/// The sizes of a product.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Rows of activations.
    pub rows: usize,
    /// Rows of the matrix.
    pub outs: usize,
    /// Elements of a row.
    pub depth: usize,
}

/// `y[r][o] = Σ_d x[r][d] w[o][d]`.
pub fn product(x: &[f32], w: &[f32], sizes: Sizes) -> Vec<f32> {
    let Sizes { rows, outs, depth } = sizes;
    let mut by_out = vec![0.0; outs * rows];
    if by_out.is_empty() || depth == 0 {
        return by_out;
    }
    let arch = Instructions::current().floats();
    let run = |(y, w): (&mut [f32], &[f32])| arch.dispatch(ProductBlock { x, w, y, rows, depth });
    if rows * outs * depth < WORTH_SHARING {
        run((&mut by_out, w));
    } else {
        let in_cache = BLOCK_BYTES / (depth * size_of::<f32>());
        let fair_share = outs.div_ceil(2 * rayon::current_num_threads());
        let block = in_cache.min(fair_share).next_multiple_of(8);
        by_out.par_chunks_mut(block * rows).zip(w.par_chunks(block * depth)).for_each(run);
    }
    if rows == 1 { by_out } else { transposed(&by_out, outs, rows) }
}

/// Multiplies activations `[rows, depth]` by a few rows `[outs, depth]` of the matrix → `[outs, rows]`, on the calling
/// thread.
pub(crate) fn block(x: &[f32], w: &[f32], y: &mut [f32], rows: usize, depth: usize) {
    Instructions::current().floats().dispatch(ProductBlock { x, w, y, rows, depth });
}

/// `[height, width]` → `[width, height]`.
pub(crate) fn transposed(values: &[f32], height: usize, width: usize) -> Vec<f32> {
    let mut turned = vec![0.0; values.len()];
    let turn = |(column, out): (usize, &mut [f32])| {
        for (cell, row) in out.iter_mut().zip(values.chunks(width)) {
            *cell = row[column];
        }
    };
    if values.len() < WORTH_SHARING {
        turned.chunks_mut(height).enumerate().for_each(turn);
    } else {
        turned.par_chunks_mut(height).enumerate().for_each(turn);
    }
    turned
}

/// The product of some rows of the matrix with all rows of activations; `y` is `[outs of the block, rows]`.
struct ProductBlock<'a> {
    x: &'a [f32],
    w: &'a [f32],
    y: &'a mut [f32],
    rows: usize,
    depth: usize,
}

impl WithSimd for ProductBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        // Eight running sums at a time hide the latency of a multiply-add and fit in the registers.
        let mut row = 0;
        while row < self.rows {
            row += match self.rows - row {
                1 => self.strip::<S, 8, 1>(simd, row),
                2 => self.strip::<S, 4, 2>(simd, row),
                3 => self.strip::<S, 2, 3>(simd, row),
                _ => self.strip::<S, 2, 4>(simd, row),
            };
        }
    }
}

impl ProductBlock<'_> {
    /// Multiplies `R` rows of activations by the block, `OUTS` of its rows at a time; returns `R`.
    #[inline(always)]
    fn strip<S: Simd, const OUTS: usize, const R: usize>(&mut self, simd: S, row: usize) -> usize {
        let x: [&[f32]; R] = from_fn(|r| &self.x[(row + r) * self.depth..][..self.depth]);
        let mut tiles = self.w.chunks_exact(OUTS * self.depth);
        let mut y = self.y.chunks_exact_mut(self.rows);
        for tile in &mut tiles {
            let w: [&[f32]; OUTS] = from_fn(|out| &tile[out * self.depth..][..self.depth]);
            for sums in sums(simd, w, x) {
                if let Some(y) = y.next() {
                    y[row..row + R].copy_from_slice(&sums);
                }
            }
        }
        for (w, y) in tiles.remainder().chunks_exact(self.depth).zip(y) {
            let [sums] = sums(simd, [w], x);
            y[row..row + R].copy_from_slice(&sums);
        }
        R
    }
}

/// All products of `OUTS` rows with `R` rows of the same length. Each sum runs along the depth in the order of its
/// lanes, independently of `OUTS` and `R`.
///
/// The loops are plain, because a closure given to `array::map` is compiled without the instructions of `S`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
fn sums<S: Simd, const OUTS: usize, const R: usize>(simd: S, w: [&[f32]; OUTS], x: [&[f32]; R]) -> [[f32; R]; OUTS] {
    let zero = simd.splat_f32s(0.0);
    let mut sums = [[zero; R]; OUTS];
    let (w, w_rest) = split::<S, OUTS>(w);
    let (x, x_rest) = split::<S, R>(x);
    let mut column = [zero; R];
    for step in 0..w[0].len() {
        for r in 0..R {
            column[r] = x[r][step];
        }
        for out in 0..OUTS {
            for r in 0..R {
                sums[out][r] = simd.mul_add_e_f32s(w[out][step], column[r], sums[out][r]);
            }
        }
    }
    if !w_rest[0].is_empty() {
        for r in 0..R {
            column[r] = simd.partial_load_f32s(x_rest[r]);
        }
        for out in 0..OUTS {
            let w = simd.partial_load_f32s(w_rest[out]);
            for r in 0..R {
                sums[out][r] = simd.mul_add_e_f32s(w, column[r], sums[out][r]);
            }
        }
    }
    let mut results = [[0.0; R]; OUTS];
    for out in 0..OUTS {
        for r in 0..R {
            results[out][r] = simd.reduce_sum_f32s(sums[out][r]);
        }
    }
    results
}

/// Splits each row into whole vectors and the remaining elements.
#[inline(always)]
fn split<S: Simd, const N: usize>(rows: [&[f32]; N]) -> ([&[S::f32s]; N], [&[f32]; N]) {
    let (mut whole, mut rest): ([&[S::f32s]; N], [&[f32]; N]) = ([&[]; N], [&[]; N]);
    let steps = S::as_simd_f32s(rows[0]).0.len();
    for n in 0..N {
        let (vectors, left) = S::as_simd_f32s(rows[n]);
        (whole[n], rest[n]) = (&vectors[..steps], left);
    }
    (whole, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(count: usize, salt: u32) -> Vec<f32> {
        let scramble = |i: u32| i.wrapping_mul(2_654_435_761).wrapping_add(salt).wrapping_mul(40_503) >> 16;
        (0..count as u32).map(|i| scramble(i) as f32 / 32_768.0 - 1.0).collect()
    }

    proptest! {
        #[test]
        fn it_is_the_product(rows in 1usize..12, outs in 1usize..40, depth in 1usize..70) {
            let (x, w) = (numbers(rows * depth, 1), numbers(outs * depth, 2));
            let y = product(&x, &w, Sizes { rows, outs, depth });
            prop_assert_eq!(y.len(), rows * outs);
            for (r, x) in x.chunks(depth).enumerate() {
                for (o, w) in w.chunks(depth).enumerate() {
                    let exact: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    prop_assert!((f64::from(y[r * outs + o]) - exact).abs() < 1e-4);
                }
            }
        }
    }

    #[test]
    fn a_row_comes_out_the_same_to_the_bit_whoever_is_beside_it() {
        let (outs, depth) = (301, 1_003);
        let w = numbers(outs * depth, 3);
        let x = numbers(9 * depth, 4);
        let together = product(&x, &w, Sizes { rows: 9, outs, depth });
        for first in 0..9 {
            for rows in 1..=9 - first {
                let part = &x[first * depth..(first + rows) * depth];
                let y = product(part, &w, Sizes { rows, outs, depth });
                assert_eq!(y, together[first * outs..(first + rows) * outs], "rows {first} to {}", first + rows);
            }
        }
    }
}
