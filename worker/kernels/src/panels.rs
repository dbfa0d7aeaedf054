//! Matrices of floats in panels: some of their rows beside each other, column by column.
//!
//! Products of many rows of activations need no sum across lanes then, as those of rows do: a lane is a result. Each
//! result is one sum along the depth, in its order, whatever the number of rows. An embedding model's matrices are few
//! and multiplied by many rows, so they are turned over once, when the model is loaded.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use rayon::prelude::*;

use crate::attention::{Panel, Product, multiply};
use crate::cores::{WORTH_SHARING, cores};
use crate::floats::product::LEAST_SHARE;
use crate::kernel::{MatrixKernel, ProductInput, StoredFloats};
use crate::lanes::{Instructions, LANES};

/// Rows of the matrix in a panel: the columns of results that are computed together.
const WIDTH: usize = 4 * LANES;

/// Columns of the matrix that are multiplied at a time: a panel of them, and rows of activations, stay in the second
/// cache.
pub(crate) const DEPTH: usize = 512;

/// The elements of all panels, one panel behind the other.
enum PanelValues {
    Floats(Vec<f32>),
    /// f16 as bits.
    Halves(Vec<u16>),
    /// bf16 as bits.
    Brains(Vec<u16>),
}

/// A matrix `[outs, depth]` in panels.
pub(crate) struct PanelMatrix {
    values: PanelValues,
    outs: usize,
    depth: usize,
}

/// The same matrix in panels, if it is one of floats.
pub fn in_panels(matrix: &dyn MatrixKernel) -> Option<Arc<dyn MatrixKernel>> {
    let shape @ [outs, depth] = [matrix.outs(), matrix.depth()];
    let values = match matrix.floats()? {
        StoredFloats::F32(bytes) => PanelValues::Floats(turned(&numbers(bytes, f32::from_le_bytes), shape)),
        StoredFloats::F16(bytes) => PanelValues::Halves(turned(&numbers(bytes, u16::from_le_bytes), shape)),
        StoredFloats::Bf16(bytes) => PanelValues::Brains(turned(&numbers(bytes, u16::from_le_bytes), shape)),
    };
    Some(Arc::new(PanelMatrix { values, outs, depth }))
}

/// Numbers of `N` bytes each.
fn numbers<T, const N: usize>(bytes: &[u8], of: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|number| of(*number)).collect()
}

/// A matrix `[outs, depth]` of f32, which lie row by row, in panels.
pub fn panels_of(values: &[f32], shape: [usize; 2]) -> Arc<dyn MatrixKernel> {
    Arc::new(PanelMatrix::of_floats(values, shape))
}

impl PanelMatrix {
    /// A matrix `[outs, depth]` of f32, which lie row by row.
    pub(crate) fn of_floats(values: &[f32], shape @ [outs, depth]: [usize; 2]) -> Self {
        Self { values: PanelValues::Floats(turned(values, shape)), outs, depth }
    }

    /// The rows of the matrix in each panel.
    pub(crate) fn panels(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.outs).step_by(WIDTH).map(|first| first..self.outs.min(first + WIDTH))
    }

    /// Some columns of a panel.
    pub(crate) fn panel(&self, outs: &Range<usize>, columns: Range<usize>) -> Panel<'_> {
        // All panels before it are whole.
        let (first, width) = (outs.start * self.depth, padded(outs.len()));
        let part = first + columns.start * width..first + columns.end * width;
        match &self.values {
            PanelValues::Floats(values) => Panel::Floats(&values[part]),
            PanelValues::Halves(values) => Panel::Halves(&values[part]),
            PanelValues::Brains(values) => Panel::Brains(&values[part]),
        }
    }

    /// Adds the products of rows with a panel to `y`, from its column on.
    fn add(&self, instructions: Instructions, x: &[f32], outs: &Range<usize>, y: &mut [f32], stride: usize) {
        let width = padded(outs.len());
        for first in (0..self.depth).step_by(DEPTH) {
            let columns = first..self.depth.min(first + DEPTH);
            let product = Product {
                rows: x.len() / self.depth,
                depth: columns.len(),
                width,
                a: &x[first..],
                a_stride: self.depth,
                b: self.panel(outs, columns),
                b_stride: width,
                c: &mut *y,
                c_stride: stride,
            };
            multiply(instructions, product);
        }
    }

    /// The product of rows with one panel on its part of a bias, `[rows, outs]`.
    fn apart(&self, instructions: Instructions, x: &[f32], outs: &Range<usize>, bias: Option<&[f32]>) -> Vec<f32> {
        let (rows, width) = (x.len() / self.depth, padded(outs.len()));
        let mut first = vec![0.0; width];
        if let Some(bias) = bias {
            first[..outs.len()].copy_from_slice(&bias[outs.clone()]);
        }
        let mut wide = first.repeat(rows);
        self.add(instructions, x, outs, &mut wide, width);
        if width == outs.len() {
            return wide;
        }
        wide.chunks_exact(width).flat_map(|row| &row[..outs.len()]).copied().collect()
    }

    /// Adds the product of rows with all panels to `y`, which begins with the bias, by one core.
    fn all(&self, instructions: Instructions, x: &[f32], y: &mut [f32], bias: Option<&[f32]>) {
        for outs in self.panels() {
            if outs.len().is_multiple_of(LANES) {
                self.add(instructions, x, &outs, &mut y[outs.start..], self.outs);
            } else {
                let part = self.apart(instructions, x, &outs, bias);
                place(&part, &outs, y, self.outs);
            }
        }
    }

    /// The product on a bias, which is where each sum begins.
    fn product_on(&self, x: &ProductInput<'_>, bias: Option<&[f32]>) -> Vec<f32> {
        let (instructions, rows, x) = (Instructions::current(), x.rows, x.values);
        let mut y = bias.map_or_else(|| vec![0.0; rows * self.outs], |bias| bias.repeat(rows));
        if y.is_empty() || self.depth == 0 {
            return y;
        }
        let threads = cores();
        let share = rows.div_ceil(threads).next_multiple_of(6);
        if threads == 1 || rows * self.outs * self.depth < WORTH_SHARING {
            self.all(instructions, x, &mut y, bias);
        } else if share >= LEAST_SHARE {
            let part = |(x, y): (&[f32], &mut [f32])| self.all(instructions, x, y, bias);
            x.par_chunks(share * self.depth).zip(y.par_chunks_mut(share * self.outs)).for_each(part);
        } else {
            // Panels, and of rows as many parts as give each core something to do.
            let wanted = (2 * threads).div_ceil(self.outs.div_ceil(WIDTH));
            let rows = rows.div_ceil(wanted).next_multiple_of(6);
            let part = |(first, outs): &(usize, Range<usize>)| {
                let end = x.len().min((first + rows) * self.depth);
                self.apart(instructions, &x[first * self.depth..end], outs, bias)
            };
            let firsts = (0..x.len() / self.depth).step_by(rows);
            let tasks: Vec<(usize, Range<usize>)> =
                firsts.flat_map(|first| self.panels().map(move |outs| (first, outs))).collect();
            let parts: Vec<Vec<f32>> = tasks.par_iter().map(part).collect();
            for ((first, outs), part) in tasks.iter().zip(parts) {
                place(&part, outs, &mut y[first * self.outs..], self.outs);
            }
        }
        y
    }
}

/// Puts the columns of one panel into results `[rows, stride]`.
pub(crate) fn place(part: &[f32], outs: &Range<usize>, y: &mut [f32], stride: usize) {
    for (row, y) in part.chunks_exact(outs.len()).zip(y.chunks_exact_mut(stride)) {
        y[outs.clone()].copy_from_slice(row);
    }
}

/// The columns of a panel with so many rows of the matrix.
pub(crate) fn padded(outs: usize) -> usize {
    outs.next_multiple_of(LANES)
}

/// The elements of a matrix `[outs, depth]` in panels; the last one ends with zeros.
fn turned<T: Copy + Default + Send + Sync>(values: &[T], [outs, depth]: [usize; 2]) -> Vec<T> {
    let mut panels = vec![T::default(); padded(outs) * depth];
    let turn = |(panel, rows): (&mut [T], &[T])| {
        let width = panel.len() / depth;
        for (out, row) in rows.chunks_exact(depth).enumerate() {
            for (cell, value) in panel[out..].iter_mut().step_by(width).zip(row) {
                *cell = *value;
            }
        }
    };
    if depth > 0 {
        panels.par_chunks_mut(WIDTH * depth).zip(values.par_chunks(WIDTH * depth)).for_each(turn);
    }
    panels
}

impl MatrixKernel for PanelMatrix {
    fn outs(&self) -> usize {
        self.outs
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn bytes(&self) -> u64 {
        let of_panels = match &self.values {
            PanelValues::Floats(values) => size_of_val(&values[..]),
            PanelValues::Halves(values) | PanelValues::Brains(values) => size_of_val(&values[..]),
        };
        of_panels as u64
    }

    fn multiply(&self, x: &ProductInput<'_>) -> Vec<f32> {
        self.product_on(x, None)
    }

    fn multiply_onto(&self, x: &ProductInput<'_>, bias: &[f32]) -> Vec<f32> {
        self.product_on(x, Some(bias))
    }

    fn rows(&self, rows: &[u32]) -> Vec<f32> {
        let mut wide = Vec::with_capacity(rows.len() * self.depth);
        for row in rows {
            let (row, first) = (*row as usize, *row as usize / WIDTH * WIDTH);
            let width = padded(self.outs.min(first + WIDTH) - first);
            let cells = (0..self.depth).map(|column| first * self.depth + column * width + row - first);
            match &self.values {
                PanelValues::Floats(values) => wide.extend(cells.map(|cell| values[cell])),
                PanelValues::Halves(values) => wide.extend(cells.map(|cell| f16::from_bits(values[cell]).to_f32())),
                PanelValues::Brains(values) => wide.extend(cells.map(|cell| bf16::from_bits(values[cell]).to_f32())),
            }
        }
        wide
    }
}

#[cfg(test)]
mod tests {
    use model_boss_weights::gguf::TensorType;

    use super::*;
    use crate::layout::MatrixLayout;

    /// Numbers that are the same in all types.
    fn some_numbers(count: usize, salt: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 37 + salt) % 101) as f32 / 64.0 - 0.75).collect()
    }

    #[test]
    fn em_5_panels_multiply_as_rows_do_and_the_same_to_the_bit_whoever_is_beside() {
        for [outs, depth] in [[5, 3], [64, 70], [192, 600], [83, 16]] {
            let w = some_numbers(outs * depth, 1);
            let stored: [(TensorType, Vec<u8>); 3] = [
                (TensorType::F32, w.iter().flat_map(|number| number.to_le_bytes()).collect()),
                (TensorType::F16, w.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect()),
                (TensorType::BF16, w.iter().flat_map(|number| bf16::from_f32(*number).to_le_bytes()).collect()),
            ];
            for (kind, bytes) in stored {
                let rows = MatrixLayout { kind, shape: [outs, depth] }.kernel(bytes.into()).unwrap();
                let panels = in_panels(rows.as_ref()).unwrap();
                assert_eq!((panels.outs(), panels.depth()), (outs, depth));
                let numbered: Vec<u32> = (0..outs as u32).rev().collect();
                assert_eq!(panels.rows(&numbered), rows.rows(&numbered), "{kind:?}");
                let x = some_numbers(150 * depth, 7);
                let all = panels.product(&x, 150);
                for (ours, exact) in all.iter().zip(rows.product(&x, 150)) {
                    assert!((ours - exact).abs() < 1e-3, "{kind:?} {outs} x {depth}: {ours} {exact}");
                }
                let bias = some_numbers(outs, 5);
                let input = |x, count| ProductInput::new(x, count, false);
                let biased = panels.multiply_onto(&input(&x, 150), &bias);
                for (at, (ours, plain)) in biased.iter().zip(&all).enumerate() {
                    assert!((ours - plain - bias[at % outs]).abs() < 1e-3, "{kind:?} {outs} x {depth}: {ours} {plain}");
                }
                for (first, count) in [(0, 1), (3, 2), (7, 13), (20, 97)] {
                    let rows = &x[first * depth..(first + count) * depth];
                    let some = panels.multiply_onto(&input(rows, count), &bias);
                    assert_eq!(
                        some,
                        biased[first * outs..(first + count) * outs],
                        "{kind:?} {outs} x {depth}, {count}"
                    );
                    let some = panels.product(&x[first * depth..(first + count) * depth], count);
                    assert_eq!(some, all[first * outs..(first + count) * outs], "{kind:?} {outs} x {depth}, {count}");
                }
            }
        }
    }
}
