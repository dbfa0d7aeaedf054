//! Convolutions of pictures. Pixels lie one behind the other, row by row, each with all its numbers, so the inputs of a
//! result in one row of the filter are one long row: they are multiplied where they lie, and nothing is copied
//! together.

use std::ops::Range;

use rayon::prelude::*;

use crate::attention::{Product, multiply};
use crate::cores::{WORTH_SHARING, cores};
use crate::lanes::{Instructions, LANES};
use crate::panels::{DEPTH, PanelMatrix, padded, place};

/// The sizes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneShape {
    /// The numbers of a result.
    pub outs: usize,
    /// The numbers of a pixel.
    pub ins: usize,
    /// Pixels of the filter's side.
    pub taps: usize,
    /// The distance of the pixels that results are made around.
    pub stride: usize,
}

/// A convolution with its weights.
pub struct PlaneConvolution {
    weight: PanelMatrix,
    bias: Option<Vec<f32>>,
    shape: PlaneShape,
}

/// A picture with the pixels around it that a filter reaches.
#[derive(Clone, Copy)]
struct ConvolutionInput<'a> {
    pixels: &'a [f32],
    /// Pixels of a row.
    width: usize,
    /// Results of a row.
    results: usize,
}

impl PlaneConvolution {
    /// A convolution of weights `[outs, taps, taps, ins]` and a bias `[outs]`. No size may be zero.
    pub fn new(weight: &[f32], bias: Option<Vec<f32>>, shape: PlaneShape) -> Self {
        let PlaneShape { outs, ins, taps, .. } = shape;
        Self { weight: PanelMatrix::of_floats(weight, [outs, taps * taps * ins]), bias, shape }
    }

    /// The sizes.
    pub fn shape(&self) -> PlaneShape {
        self.shape
    }

    /// Results along a side of so many pixels, those around the picture included.
    pub fn results(&self, side: usize) -> usize {
        if side < self.shape.taps { 0 } else { (side - self.shape.taps) / self.shape.stride + 1 }
    }

    /// `[height, width, ins]` → `[results, results, outs]`. Each result is one sum in the order of the weights.
    pub fn forward(&self, pixels: &[f32], [height, width]: [usize; 2]) -> Vec<f32> {
        let PlaneShape { outs, ins, taps, .. } = self.shape;
        let (rows, results) = (self.results(height), self.results(width));
        let mut y = match &self.bias {
            Some(bias) => bias.repeat(rows * results),
            None => vec![0.0; rows * results * outs],
        };
        if y.is_empty() {
            return y;
        }
        let input = ConvolutionInput { pixels, width, results };
        let instructions = Instructions::current();
        let threads = cores();
        if threads == 1 || y.len() * taps * taps * ins < WORTH_SHARING {
            self.part(instructions, input, 0, &mut y);
            return y;
        }
        let part = rows.div_ceil(threads);
        let share = part * results * outs;
        y.par_chunks_mut(share).enumerate().for_each(|(at, y)| self.part(instructions, input, at * part, y));
        y
    }

    /// The results from a row on, by one core.
    fn part(&self, instructions: Instructions, input: ConvolutionInput<'_>, first: usize, y: &mut [f32]) {
        let stride = self.shape.outs;
        for outs in self.weight.panels() {
            if outs.len().is_multiple_of(LANES) {
                self.add(instructions, (input, first), &outs, &mut y[outs.start..], stride);
                continue;
            }
            let (rows, width) = (y.len() / stride, padded(outs.len()));
            let mut wide = vec![0.0; rows * width];
            for (wide, y) in wide.chunks_exact_mut(width).zip(y.chunks_exact(stride)) {
                wide[..outs.len()].copy_from_slice(&y[outs.clone()]);
            }
            self.add(instructions, (input, first), &outs, &mut wide, width);
            let narrow: Vec<f32> = wide.chunks_exact(width).flat_map(|row| &row[..outs.len()]).copied().collect();
            place(&narrow, &outs, y, stride);
        }
    }

    /// Adds the results of one panel to `y`, whose pixels have this stride.
    fn add(
        &self,
        instructions: Instructions,
        (input, first): (ConvolutionInput<'_>, usize),
        outs: &Range<usize>,
        y: &mut [f32],
        stride: usize,
    ) {
        let PlaneShape { ins, taps, stride: step, .. } = self.shape;
        let (width, run) = (padded(outs.len()), taps * ins);
        for tap in 0..taps {
            for column in (0..run).step_by(DEPTH) {
                let columns = tap * run + column..tap * run + run.min(column + DEPTH);
                for (row, y) in y.chunks_mut(input.results * stride).enumerate() {
                    let from = ((first + row) * step + tap) * input.width * ins + column;
                    let product = Product {
                        rows: input.results,
                        depth: columns.len(),
                        width,
                        a: &input.pixels[from..],
                        a_stride: step * ins,
                        b: self.weight.panel(outs, columns.clone()),
                        b_stride: width,
                        c: y,
                        c_stride: stride,
                    };
                    multiply(instructions, product);
                }
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

    #[test]
    fn rc_25_each_result_is_the_sum_of_the_pixels_below_the_filter() {
        for (outs, ins, taps, stride, height, width) in [
            (1, 3, 3, 1, 5, 7),
            (64, 32, 3, 1, 12, 9),
            (20, 180, 3, 2, 11, 8),
            (100, 5, 1, 1, 3, 4),
            (17, 6, 3, 2, 3, 3),
            (80, 300, 3, 1, 20, 18),
        ] {
            let shape = PlaneShape { outs, ins, taps, stride };
            let (weight, bias) = (numbers(outs * taps * taps * ins, 1), numbers(outs, 5));
            let convolution = PlaneConvolution::new(&weight, Some(bias.clone()), shape);
            let x = numbers(height * width * ins, 3);
            let ours = convolution.forward(&x, [height, width]);
            let (rows, columns) = ((height - taps) / stride + 1, (width - taps) / stride + 1);
            assert_eq!(ours.len(), rows * columns * outs);
            for (at, ours) in ours.iter().enumerate() {
                let (out, column, row) = (at % outs, at / outs % columns, at / outs / columns);
                let mut sum = f64::from(bias[out]);
                for (y, x_at) in (0..taps).flat_map(|y| (0..taps).map(move |x| (y, x))) {
                    for channel in 0..ins {
                        let w = weight[((out * taps + y) * taps + x_at) * ins + channel];
                        let pixel = ((row * stride + y) * width + column * stride + x_at) * ins + channel;
                        sum += f64::from(w) * f64::from(x[pixel]);
                    }
                }
                assert!((f64::from(*ours) - sum).abs() < 2e-3, "{shape:?}: {ours} {sum}");
            }
            assert!(convolution.forward(&[], [0, 5]).is_empty());
        }
    }
}
