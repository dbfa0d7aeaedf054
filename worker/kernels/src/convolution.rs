//! Convolutions along time. Rows are moments, and lie one behind the other, so the inputs of a result are parts of some
//! rows: they are multiplied where they lie, and nothing is copied together.

use std::ops::Range;

use rayon::prelude::*;

use crate::attention::{Product, multiply};
use crate::cores::{WORTH_SHARING, cores};
use crate::lanes::{Instructions, LANES};
use crate::panels::{DEPTH, PanelMatrix, padded, place};

/// The most moments that a core computes at a time: their inputs stay in its cache.
const MOST_ROWS: usize = 384;

/// The sizes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionShape {
    /// The numbers of a result.
    pub outs: usize,
    /// The moments that a result is made of.
    pub taps: usize,
    /// The numbers of a moment.
    pub ins: usize,
    /// The distance between two of these moments.
    pub dilation: usize,
}

/// A convolution with its weights.
pub struct Convolution {
    weight: PanelMatrix,
    bias: Option<Vec<f32>>,
    shape: ConvolutionShape,
}

impl ConvolutionShape {
    /// The moments that the input has more than the result.
    pub fn more(&self) -> usize {
        (self.taps - 1) * self.dilation
    }
}

impl Convolution {
    /// A convolution of weights `[outs, taps, ins]` and a bias `[outs]`. No size may be zero.
    pub fn new(weight: &[f32], bias: Option<Vec<f32>>, shape: ConvolutionShape) -> Self {
        Self { weight: PanelMatrix::of_floats(weight, [shape.outs, shape.taps * shape.ins]), bias, shape }
    }

    /// The sizes.
    pub fn shape(&self) -> ConvolutionShape {
        self.shape
    }

    /// `[rows + more, ins]` → `[rows, outs]`. Each result is one sum in the order of the weights, whatever the number
    /// of rows.
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let ConvolutionShape { outs, taps, ins, .. } = self.shape;
        let rows = (x.len() / ins).saturating_sub(self.shape.more());
        let mut y = match &self.bias {
            Some(bias) => bias.repeat(rows),
            None => vec![0.0; rows * outs],
        };
        let instructions = Instructions::current();
        let threads = cores();
        if threads == 1 || rows * outs * taps * ins < WORTH_SHARING {
            for (at, y) in y.chunks_mut(MOST_ROWS * outs).enumerate() {
                self.part(instructions, x, at * MOST_ROWS, y);
            }
            return y;
        }
        // Rows enough for each core, in parts that are equal.
        let part = rows.div_ceil(threads).div_ceil(rows.div_ceil(threads).div_ceil(MOST_ROWS)).next_multiple_of(6);
        y.par_chunks_mut(part * outs).enumerate().for_each(|(at, y)| self.part(instructions, x, at * part, y));
        y
    }

    /// The results from a moment on, by one core.
    fn part(&self, instructions: Instructions, x: &[f32], first: usize, y: &mut [f32]) {
        let stride = self.shape.outs;
        for outs in self.weight.panels() {
            if outs.len().is_multiple_of(LANES) {
                self.add(instructions, (x, first), &outs, &mut y[outs.start..], stride);
                continue;
            }
            let (rows, width) = (y.len() / stride, padded(outs.len()));
            let mut wide = vec![0.0; rows * width];
            for (wide, y) in wide.chunks_exact_mut(width).zip(y.chunks_exact(stride)) {
                wide[..outs.len()].copy_from_slice(&y[outs.clone()]);
            }
            self.add(instructions, (x, first), &outs, &mut wide, width);
            let narrow: Vec<f32> = wide.chunks_exact(width).flat_map(|row| &row[..outs.len()]).copied().collect();
            place(&narrow, &outs, y, stride);
        }
    }

    /// Adds the results of one panel to `y`, whose rows have this stride.
    fn add(
        &self,
        instructions: Instructions,
        (x, first): (&[f32], usize),
        outs: &Range<usize>,
        y: &mut [f32],
        stride: usize,
    ) {
        let ConvolutionShape { taps, ins, dilation, .. } = self.shape;
        let width = padded(outs.len());
        let rows = (y.len() + stride - width) / stride;
        // Moments that follow each other are one long row.
        let (runs, run) = if dilation == 1 { (1, taps * ins) } else { (taps, ins) };
        for at in 0..runs {
            for column in (0..run).step_by(DEPTH) {
                let columns = at * run + column..at * run + run.min(column + DEPTH);
                let product = Product {
                    rows,
                    depth: columns.len(),
                    width,
                    a: &x[(first + at * dilation) * ins + column..],
                    a_stride: ins,
                    b: self.weight.panel(outs, columns),
                    b_stride: width,
                    c: &mut *y,
                    c_stride: stride,
                };
                multiply(instructions, product);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, salt: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 37 + salt) % 101) as f32 / 64.0 - 0.75).collect()
    }

    fn plainly(shape: ConvolutionShape, weight: &[f32], bias: &[f32], x: &[f32], rows: usize) -> Vec<f64> {
        let ConvolutionShape { outs, taps, ins, dilation } = shape;
        let mut y = Vec::new();
        for row in 0..rows {
            for out in 0..outs {
                let mut sum = f64::from(bias[out]);
                for tap in 0..taps {
                    for column in 0..ins {
                        let w = weight[(out * taps + tap) * ins + column];
                        sum += f64::from(w) * f64::from(x[(row + tap * dilation) * ins + column]);
                    }
                }
                y.push(sum);
            }
        }
        y
    }

    #[test]
    fn rc_28_each_result_is_the_sum_of_its_moments_the_same_to_the_bit_whoever_is_beside() {
        for (outs, taps, ins, dilation) in
            [(1, 7, 32, 1), (64, 3, 64, 1), (32, 11, 32, 5), (100, 5, 24, 2), (384, 5, 192, 1), (16, 1, 600, 1)]
        {
            let shape = ConvolutionShape { outs, taps, ins, dilation };
            let (weight, bias) = (numbers(outs * taps * ins, 1), numbers(outs, 5));
            let convolution = Convolution::new(&weight, Some(bias.clone()), shape);
            for rows in [0, 1, 5, 500] {
                let x = numbers((rows + shape.more()) * ins, 3);
                let all = convolution.forward(&x);
                assert_eq!(all.len(), rows * outs);
                for (ours, exact) in all.iter().zip(plainly(shape, &weight, &bias, &x, rows)) {
                    assert!((f64::from(*ours) - exact).abs() < 2e-3, "{shape:?}: {ours} {exact}");
                }
                if rows == 500 {
                    let (first, count) = (123, 77);
                    let some = convolution.forward(&x[first * ins..(first + count + shape.more()) * ins]);
                    assert_eq!(some, all[first * outs..(first + count) * outs], "{shape:?}");
                }
            }
        }
    }
}
