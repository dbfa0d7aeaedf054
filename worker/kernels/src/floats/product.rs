//! The product of activations with a matrix of floats: `x Wᵀ`, with both operands stored row by row.
//!
//! candle's own product packs the whole matrix anew in every call with more than one row, runs a single row on one
//! core, and sums in another order for another number of rows. Here each result is computed in the same order for any
//! batch: the other sequences of a step cannot change a bit.

use std::marker::PhantomData;

use pulp::bytemuck::cast_slice;
use rayon::prelude::*;

use super::kinds::FloatKind;
use super::packed::PackedRows;
use super::strips::{FewFloatRows, ManyFloatRows, StripFor, WORTH_PACKING};
use crate::cores::{WORTH_SHARING, cores};
use crate::lanes::Instructions;

/// Bytes of the matrix that one core works on at a time. They stay in its cache while all rows of activations use them.
const BLOCK_BYTES: usize = 256 << 10;

/// The least rows of activations for which a core packs all of the matrix by itself.
pub(crate) const LEAST_SHARE: usize = 48;

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
    product_of::<f32>(Instructions::current(), x, cast_slice(w), [sizes.rows, sizes.outs, sizes.depth])
}

/// As [`product`], with a matrix of any floats and the sizes in the order of [`Sizes`].
pub(crate) fn product_of<K: FloatKind>(
    instructions: Instructions,
    x: &[f32],
    w: &[u8],
    [rows, outs, depth]: [usize; 3],
) -> Vec<f32> {
    if rows * outs == 0 || depth == 0 {
        return vec![0.0; outs * rows];
    }
    if rows >= WORTH_PACKING {
        return product_of_many::<K>(instructions, x, w, [rows, outs, depth]);
    }
    let mut by_out = vec![0.0; outs * rows];
    let x = &PackedRows::new(x, rows, depth, instructions.run_floats(StripFor { rows }));
    let run = |(y, w): (&mut [f32], &[u8])| {
        instructions.run_floats(FewFloatRows::<K> { x, w, y, depth, kind: PhantomData });
    };
    let row_bytes = K::row_bytes(depth);
    if rows * outs * depth < WORTH_SHARING {
        run((&mut by_out, w));
    } else {
        let block = block_of(outs, row_bytes);
        by_out.par_chunks_mut(block * rows).zip(w.par_chunks(block * row_bytes)).for_each(run);
    }
    if rows == 1 { by_out } else { transposed(&by_out, outs, rows) }
}

/// The same for many rows. Each core has some of the rows if there are enough for all, else some of the matrix's.
fn product_of_many<K: FloatKind>(
    instructions: Instructions,
    x: &[f32],
    w: &[u8],
    [rows, outs, depth]: [usize; 3],
) -> Vec<f32> {
    let shape = instructions.run_floats(StripFor { rows });
    let mut y = vec![0.0; outs * rows];
    let run = |x: &PackedRows, w: &[u8], y: &mut [f32], outs: usize| {
        instructions.run_floats(ManyFloatRows::<K> { x, w, y, outs, depth, kind: PhantomData });
    };
    let threads = cores();
    let shared = rows * outs * depth >= WORTH_SHARING;
    let share = rows.div_ceil(threads).next_multiple_of(shape.height);
    if !shared || threads == 1 || share >= LEAST_SHARE {
        let share = if shared { share } else { rows };
        let part = |(x, y): (&[f32], &mut [f32])| {
            let packed = PackedRows::new(x, x.len() / depth, depth, shape);
            run(&packed, w, y, outs);
        };
        x.par_chunks(share * depth).zip(y.par_chunks_mut(share * outs)).for_each(part);
        return y;
    }
    let packed = PackedRows::new(x, rows, depth, shape);
    let row_bytes = K::row_bytes(depth);
    let block = block_of(outs, row_bytes);
    let part = |w: &[u8]| {
        let outs = w.len() / row_bytes;
        let mut y = vec![0.0; rows * outs];
        run(&packed, w, &mut y, outs);
        y
    };
    let parts: Vec<Vec<f32>> = w.par_chunks(block * row_bytes).map(part).collect();
    for (row, y) in y.chunks_exact_mut(outs).enumerate() {
        for (part, y) in parts.iter().zip(y.chunks_mut(block)) {
            y.copy_from_slice(&part[row * y.len()..(row + 1) * y.len()]);
        }
    }
    y
}

/// Rows of the matrix that a core works on at a time.
fn block_of(outs: usize, row_bytes: usize) -> usize {
    let in_cache = BLOCK_BYTES / row_bytes;
    let fair_share = outs.div_ceil(2 * cores());
    in_cache.min(fair_share).next_multiple_of(24)
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
}
