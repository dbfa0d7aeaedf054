//! The inner loops of products of floats: a few rows of a matrix with a few rows of activations.
//!
//! Each result is the sum of sixteen running sums along the depth, element `i` in sum `i % 16`, which are added in one
//! order at the end. It does not depend on the number of rows, on the type that the elements are stored in, or on the
//! instruction set.
//!
//! A vector of sixteen sums takes several registers in most sets. More rows are multiplied together where each register
//! has a pass along the depth of its own: a load then serves more products.

use super::kinds::FloatKind;
use super::outs::{MatrixRows, StoredOuts};
use crate::lanes::{LANES, Lanes};

/// All products of `OUTS` stored rows with `R` rows of activations, one or two: the matrix is read once.
///
/// The loops are plain, because a closure given to `array::map` is compiled without the instructions of `L`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
pub(super) fn read_once<L: Lanes, K: FloatKind, const OUTS: usize, const R: usize>(
    lanes: L,
    w: &StoredOuts<'_, K, OUTS>,
    x: &[f32],
) -> [[f32; R]; OUTS] {
    let zero = lanes.splat_float(0.0);
    let mut sums = [[zero; R]; OUTS];
    let mut column = [zero; R];
    let (steps, rest) = x.as_chunks::<LANES>().0.as_chunks::<R>();
    debug_assert!(rest.is_empty());
    let whole = w.steps().min(steps.len());
    for step in 0..whole {
        for r in 0..R {
            column[r] = lanes.load_floats(&steps[step][r]);
        }
        for out in 0..OUTS {
            let w = w.load(lanes, step, out);
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
    added(lanes, &sums)
}

/// All products of `OUTS` rows with `R` rows of activations, a pass for each part.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
pub(super) fn by_parts<L: Lanes, W: MatrixRows<L, OUTS>, const OUTS: usize, const R: usize>(
    lanes: L,
    w: &W,
    x: &[f32],
) -> [[f32; R]; OUTS] {
    let mut wide = [[[0.0; LANES]; R]; OUTS];
    pass::<L, W, OUTS, R, 0>(lanes, w, x, &mut wide);
    if L::PARTS >= 2 {
        pass::<L, W, OUTS, R, 1>(lanes, w, x, &mut wide);
    }
    if L::PARTS >= 4 {
        pass::<L, W, OUTS, R, 2>(lanes, w, x, &mut wide);
        pass::<L, W, OUTS, R, 3>(lanes, w, x, &mut wide);
    }
    let mut sums = [[lanes.splat_float(0.0); R]; OUTS];
    for out in 0..OUTS {
        for r in 0..R {
            sums[out][r] = lanes.load_floats(&wide[out][r]);
        }
    }
    added(lanes, &sums)
}

/// The running sums of one part.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
fn pass<L: Lanes, W: MatrixRows<L, OUTS>, const OUTS: usize, const R: usize, const PART: usize>(
    lanes: L,
    w: &W,
    x: &[f32],
    wide: &mut [[[f32; LANES]; R]; OUTS],
) {
    if PART >= L::PARTS {
        return;
    }
    let width = LANES / L::PARTS;
    let zero = lanes.part(lanes.splat_float(0.0), 0);
    let mut sums = [[zero; R]; OUTS];
    let mut column = [zero; R];
    let steps = x.len() / (R * LANES);
    let x = &x[PART * steps * R * width..][..steps * R * width];
    let whole = w.whole_steps().min(steps);
    for (step, x) in x.chunks_exact(R * width).take(whole).enumerate() {
        for r in 0..R {
            column[r] = lanes.load_part(&x[r * width..]);
        }
        for out in 0..OUTS {
            let w = w.load_part::<PART>(lanes, step, out);
            for r in 0..R {
                sums[out][r] = lanes.mul_add_part(w, column[r], sums[out][r]);
            }
        }
    }
    if let Some(x) = x.chunks_exact(R * width).nth(whole) {
        for r in 0..R {
            column[r] = lanes.load_part(&x[r * width..]);
        }
        for out in 0..OUTS {
            let w = w.last_part::<PART>(lanes, out);
            for r in 0..R {
                sums[out][r] = lanes.mul_add_part(w, column[r], sums[out][r]);
            }
        }
    }
    for out in 0..OUTS {
        for r in 0..R {
            lanes.store_part(sums[out][r], &mut wide[out][r][PART * width..]);
        }
    }
}

/// The sums of all lanes of each vector.
#[inline(always)]
fn added<L: Lanes, const OUTS: usize, const R: usize>(lanes: L, sums: &[[L::Floats; R]; OUTS]) -> [[f32; R]; OUTS] {
    let mut results = [[0.0; R]; OUTS];
    let flat = results.as_flattened_mut();
    for first in (0..OUTS * R).step_by(4) {
        let mut four = [lanes.splat_float(0.0); 4];
        for at in 0..4.min(OUTS * R - first) {
            four[at] = sums[(first + at) / R][(first + at) % R];
        }
        for (result, sum) in flat[first..].iter_mut().zip(lanes.four_sums(four)) {
            *result = sum;
        }
    }
    results
}
