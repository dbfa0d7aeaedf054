//! Matrices of 16-bit floats on the CPU, computed with as they are stored: half the memory of f32, and half the bytes to
//! read for each token. Products are those of the same weights as f32, to the bit: halves are widened some rows at a time,
//! while they are in the cache.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

use crate::matrix::MatrixKernel;
use crate::product::{WORTH_SHARING, block, transposed};

/// Rows widened together.
const WIDENED_ROWS: usize = 8;

/// A 16-bit float.
pub(crate) trait Half: Copy + Send + Sync {
    /// Two little-endian bytes.
    fn from_bytes(bytes: [u8; 2]) -> Self;
    /// Whether it is a number.
    fn is_finite(self) -> bool;
    /// Both are of the same length.
    fn widen(narrow: &[Self], wide: &mut [f32]);
}

impl Half for f16 {
    fn from_bytes(bytes: [u8; 2]) -> Self {
        Self::from_le_bytes(bytes)
    }

    fn is_finite(self) -> bool {
        Self::is_finite(self)
    }

    fn widen(narrow: &[Self], wide: &mut [f32]) {
        narrow.convert_to_f32_slice(wide);
    }
}

impl Half for bf16 {
    fn from_bytes(bytes: [u8; 2]) -> Self {
        Self::from_le_bytes(bytes)
    }

    fn is_finite(self) -> bool {
        Self::is_finite(self)
    }

    fn widen(narrow: &[Self], wide: &mut [f32]) {
        for (narrow, wide) in narrow.iter().zip(wide) {
            *wide = f32::from_bits(u32::from(narrow.to_bits()) << 16);
        }
    }
}

/// A matrix `[outs, depth]`.
pub(crate) struct Halves<H> {
    values: Box<[H]>,
    outs: usize,
    depth: usize,
}

impl<H: Half> Halves<H> {
    /// From a file's bytes. The error says what is wrong with them.
    pub(crate) fn new([outs, depth]: [usize; 2], bytes: &[u8]) -> Result<Self, String> {
        let values: Box<[H]> = bytes.as_chunks::<2>().0.iter().map(|pair| H::from_bytes(*pair)).collect();
        if outs.checked_mul(depth) != Some(values.len()) {
            return Err(format!("has {} bytes, which are no {outs} x {depth} of 16 bits", bytes.len()));
        }
        if !values.iter().all(|value| value.is_finite()) {
            return Err("holds NaN or infinity".to_owned());
        }
        Ok(Self { values, outs, depth })
    }
}

impl<H: Half> MatrixKernel for Halves<H> {
    fn outs(&self) -> usize {
        self.outs
    }

    fn bytes(&self) -> u64 {
        size_of_val(&*self.values) as u64
    }

    fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        let mut by_out = vec![0.0; self.outs * rows];
        if by_out.is_empty() || self.depth == 0 {
            return by_out;
        }
        let run = |wide: &mut Vec<f32>, (y, values): (&mut [f32], &[H])| {
            for (y, narrow) in y.chunks_mut(WIDENED_ROWS * rows).zip(values.chunks(WIDENED_ROWS * self.depth)) {
                wide.resize(narrow.len(), 0.0);
                H::widen(narrow, wide);
                block(x, wide, y, rows, self.depth);
            }
        };
        if rows * self.values.len() < WORTH_SHARING {
            run(&mut Vec::new(), (&mut by_out, &self.values));
        } else {
            let part = self.outs.div_ceil(4 * rayon::current_num_threads()).next_multiple_of(WIDENED_ROWS);
            by_out
                .par_chunks_mut(part * rows)
                .zip(self.values.par_chunks(part * self.depth))
                .for_each_init(Vec::new, run);
        }
        if rows == 1 { by_out } else { transposed(&by_out, self.outs, rows) }
    }

    fn rows(&self, rows: &[u32]) -> Vec<f32> {
        let mut wide = vec![0.0; rows.len() * self.depth];
        for (row, wide) in rows.iter().zip(wide.chunks_mut(self.depth.max(1))) {
            if let Some(narrow) = self.values.get(*row as usize * self.depth..).and_then(|rest| rest.get(..wide.len()))
            {
                H::widen(narrow, wide);
            }
        }
        wide
    }
}
