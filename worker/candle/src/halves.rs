//! Matrices of 16-bit floats on the CPU, computed with as they are stored: half the memory of f32, and half the bytes to
//! read for each token. Products are those of the same weights as f32, to the bit: halves are widened some rows at a time,
//! while they are in the cache.

use std::marker::PhantomData;

use bytes::Bytes;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use model_boss_weights::store::HostBuffer;
use pulp::bytemuck;
use rayon::prelude::*;

use crate::matrix::MatrixKernel;
use crate::product::{WORTH_SHARING, block, transposed};

/// Rows widened together.
const WIDENED_ROWS: usize = 8;

/// A 16-bit float.
pub(crate) trait Half: Copy + Send + Sync {
    /// The numbers that have these bits.
    fn of_bits(bits: &[u16]) -> &[Self];
    /// Whether it is a number.
    fn is_finite(self) -> bool;
    /// Both are of the same length.
    fn widen(narrow: &[Self], wide: &mut [f32]);
}

impl Half for f16 {
    fn of_bits(bits: &[u16]) -> &[Self] {
        bits.reinterpret_cast()
    }

    fn is_finite(self) -> bool {
        Self::is_finite(self)
    }

    fn widen(narrow: &[Self], wide: &mut [f32]) {
        narrow.convert_to_f32_slice(wide);
    }
}

impl Half for bf16 {
    fn of_bits(bits: &[u16]) -> &[Self] {
        bits.reinterpret_cast()
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
    /// Aligned for 16 bits.
    values: Bytes,
    outs: usize,
    depth: usize,
    kind: PhantomData<H>,
}

// Files are little-endian, and numbers are computed with as they are stored.
const _: () = assert!(cfg!(target_endian = "little"), "weights are read in place on little-endian machines only");

impl<H: Half> Halves<H> {
    /// From a file's bytes. The error says what is wrong with them.
    pub(crate) fn new([outs, depth]: [usize; 2], bytes: &[u8]) -> Result<Self, String> {
        let matrix = Self::from_checked([outs, depth], aligned(bytes)?)?;
        if !matrix.values().iter().all(|value| value.is_finite()) {
            return Err("holds NaN or infinity".to_owned());
        }
        Ok(matrix)
    }

    /// From bytes that were found to hold numbers; they are copied only if they lie askew.
    pub(crate) fn from_checked([outs, depth]: [usize; 2], bytes: Bytes) -> Result<Self, String> {
        if outs.checked_mul(2 * depth) != Some(bytes.len()) {
            return Err(format!("has {} bytes, which are no {outs} x {depth} of 16 bits", bytes.len()));
        }
        let askew = bytemuck::try_cast_slice::<u8, u16>(&bytes).is_err();
        let values = if askew { aligned(&bytes)? } else { bytes };
        Ok(Self { values, outs, depth, kind: PhantomData })
    }

    fn values(&self) -> &[H] {
        H::of_bits(bytemuck::try_cast_slice(&self.values).unwrap_or_default())
    }
}

/// A copy that starts on a page.
pub(crate) fn aligned(bytes: &[u8]) -> Result<Bytes, String> {
    let mut copy = HostBuffer::new(bytes.len()).map_err(|error| format!("finds no memory: {error}"))?;
    copy[..bytes.len()].copy_from_slice(bytes);
    Ok(Bytes::from_owner(copy).slice(..bytes.len()))
}

impl<H: Half> MatrixKernel for Halves<H> {
    fn outs(&self) -> usize {
        self.outs
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn bytes(&self) -> u64 {
        self.values.len() as u64
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
        let values = self.values();
        if rows * values.len() < WORTH_SHARING {
            run(&mut Vec::new(), (&mut by_out, values));
        } else {
            let part = self.outs.div_ceil(4 * rayon::current_num_threads()).next_multiple_of(WIDENED_ROWS);
            by_out.par_chunks_mut(part * rows).zip(values.par_chunks(part * self.depth)).for_each_init(Vec::new, run);
        }
        if rows == 1 { by_out } else { transposed(&by_out, self.outs, rows) }
    }

    fn rows(&self, rows: &[u32]) -> Vec<f32> {
        let mut wide = vec![0.0; rows.len() * self.depth];
        for (row, wide) in rows.iter().zip(wide.chunks_mut(self.depth.max(1))) {
            if let Some(narrow) =
                self.values().get(*row as usize * self.depth..).and_then(|rest| rest.get(..wide.len()))
            {
                H::widen(narrow, wide);
            }
        }
        wide
    }
}
