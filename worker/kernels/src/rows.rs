//! Operations on rows of numbers between products: a bias, a norm. Knows slices.

use pulp::NullaryFnOnce;
use rayon::prelude::*;

use crate::cores::{WORTH_SHARING, cores};
use crate::lanes::{Instructions, LANES};

/// Numbers of a row that are worth a thread of their own: an operation on each takes less than one of a product.
const PIECE: usize = WORTH_SHARING / 16;

/// Runs plain code compiled for the instructions that are in use.
pub fn vectorized<F: NullaryFnOnce>(work: F) -> F::Output {
    Instructions::current().run_plain(work)
}

/// Adds a bias to each of the rows, which lie one behind the other.
pub fn add_to_rows(rows: &mut [f32], bias: &[f32]) {
    in_pieces(rows, bias.len(), |rows| vectorized(AddBias { rows, bias }));
}

/// The LayerNorm of each row of a sum (Ba et al., 2016, arXiv 1607.06450): the rows' mean is taken away, and they are
/// divided by the root of their variance and epsilon.
#[derive(Clone, Copy, Debug)]
pub struct SumNorm<'a> {
    /// The rows that are added first, of the same shape.
    pub added: Option<&'a [f32]>,
    /// The factor on each column.
    pub weight: &'a [f32],
    /// The number that is added to each column.
    pub bias: &'a [f32],
    /// Epsilon.
    pub eps: f32,
}

impl SumNorm<'_> {
    /// The norm of the rows.
    pub fn of(&self, rows: &[f32]) -> Vec<f32> {
        let mut out = rows.to_vec();
        self.in_place(&mut out);
        out
    }

    /// Puts the norm of the rows in their place.
    pub fn in_place(&self, out: &mut [f32]) {
        let width = self.weight.len();
        match self.added {
            None => in_pieces(out, width, |rows| vectorized(NormPiece { rows, added: None, of: *self })),
            Some(added) if out.len() <= PIECE || cores() == 1 => {
                vectorized(NormPiece { rows: out, added: Some(added), of: *self });
            }
            Some(added) => {
                let piece = piece_of(width);
                let norm = |(rows, added)| vectorized(NormPiece { rows, added: Some(added), of: *self });
                out.par_chunks_mut(piece).zip(added.par_chunks(piece)).for_each(norm);
            }
        }
    }
}

/// Whole rows of about [`PIECE`] numbers.
fn piece_of(width: usize) -> usize {
    (PIECE / width.max(1)).max(1) * width.max(1)
}

fn in_pieces(rows: &mut [f32], width: usize, work: impl Fn(&mut [f32]) + Send + Sync) {
    if rows.len() <= PIECE || cores() == 1 {
        work(rows);
    } else {
        rows.par_chunks_mut(piece_of(width)).for_each(work);
    }
}

struct AddBias<'a> {
    rows: &'a mut [f32],
    bias: &'a [f32],
}

impl NullaryFnOnce for AddBias<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for row in self.rows.chunks_exact_mut(self.bias.len().max(1)) {
            for (number, bias) in row.iter_mut().zip(self.bias) {
                *number += bias;
            }
        }
    }
}

struct NormPiece<'a> {
    rows: &'a mut [f32],
    added: Option<&'a [f32]>,
    of: SumNorm<'a>,
}

impl NullaryFnOnce for NormPiece<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { rows, added, of: SumNorm { weight, bias, eps, .. } } = self;
        let width = weight.len().max(1);
        if let Some(added) = added {
            for (number, added) in rows.iter_mut().zip(added) {
                *number += added;
            }
        }
        for row in rows.chunks_exact_mut(width) {
            let mean = sum_of(row, 0.0, |number| number) / width as f32;
            let variance = sum_of(row, mean, |away| away * away) / width as f32;
            let factor = 1.0 / (variance + eps).sqrt();
            for ((number, weight), bias) in row.iter_mut().zip(weight).zip(bias) {
                *number = (*number - mean) * factor * weight + bias;
            }
        }
    }
}

/// The sum of a function of what each number is away from another one: sixteen running sums, added in one order.
#[inline(always)]
fn sum_of(row: &[f32], from: f32, of: impl Fn(f32) -> f32) -> f32 {
    let (whole, rest) = row.as_chunks::<LANES>();
    let mut lanes = [0.0_f32; LANES];
    for numbers in whole {
        for (sum, number) in lanes.iter_mut().zip(numbers) {
            *sum += of(number - from);
        }
    }
    for (sum, number) in lanes.iter_mut().zip(rest) {
        *sum += of(number - from);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, step: f32) -> Vec<f32> {
        (0..count).map(|at| ((at as f32 * step) % 13.0) - 6.0).collect()
    }

    #[test]
    fn rows_have_their_bias_and_their_norm_in_any_number_of_pieces() {
        for (count, width) in [(1, 5), (3, 16), (900, 100)] {
            let (x, added) = (numbers(count * width, 0.37), numbers(count * width, 0.91));
            let (weight, bias) = (numbers(width, 1.7), numbers(width, 2.3));
            let mut biased = x.clone();
            add_to_rows(&mut biased, &bias);
            assert!(biased.iter().zip(&x).enumerate().all(|(at, (y, x))| *y == x + bias[at % width]));
            for with in [None, Some(&added[..])] {
                let normed = SumNorm { added: with, weight: &weight, bias: &bias, eps: 1e-5 }.of(&x);
                for (row, normed) in normed.chunks(width).enumerate() {
                    let sum = |at: usize| f64::from(x[at]) + with.map_or(0.0, |added| f64::from(added[at]));
                    let exact: Vec<f64> = (row * width..(row + 1) * width).map(sum).collect();
                    let mean = exact.iter().sum::<f64>() / width as f64;
                    let variance = exact.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                    for ((x, y), (weight, bias)) in exact.iter().zip(normed).zip(weight.iter().zip(&bias)) {
                        let wanted = (x - mean) / (variance + 1e-5).sqrt() * f64::from(*weight) + f64::from(*bias);
                        assert!((wanted - f64::from(*y)).abs() < 2e-5, "{wanted} {y}");
                    }
                }
            }
        }
    }
}
