//! Matrices of 16-bit floats on the CPU, computed with as they are stored. They take half the memory of f32, and half
//! the bytes to read for each token. Products equal those of the same weights as f32, to the bit. Some rows at a time
//! are converted to f32, and multiplied while they are in the cache.

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use model_boss_weights::store::HostBuffer;
use pulp::bytemuck;
use rayon::prelude::*;

use crate::kernel::{MatrixKernel, ProductInput};
use crate::product::{WORTH_SHARING, block, transposed};

/// Rows that are converted to f32 together.
const WIDENED_ROWS: usize = 8;

/// Bytes that are copied together.
const COPIED_BYTES: usize = 256 << 10;

/// A 16-bit float.
pub(crate) trait Half: Copy + Send + Sync {
    /// The elements with these bits.
    fn of_bits(bits: &[u16]) -> &[Self];
    /// The mask of the exponent's bits. In infinity and NaN all of them are set.
    const EXPONENT: u16;

    /// Converts `narrow` to `wide`, which have the same length.
    fn widen(narrow: &[Self], wide: &mut [f32]);
}

impl Half for f16 {
    const EXPONENT: u16 = 0x7C00;

    fn of_bits(bits: &[u16]) -> &[Self] {
        bits.reinterpret_cast()
    }

    fn widen(narrow: &[Self], wide: &mut [f32]) {
        narrow.convert_to_f32_slice(wide);
    }
}

impl Half for bf16 {
    const EXPONENT: u16 = 0x7F80;

    fn of_bits(bits: &[u16]) -> &[Self] {
        bits.reinterpret_cast()
    }

    fn widen(narrow: &[Self], wide: &mut [f32]) {
        for (narrow, wide) in narrow.iter().zip(wide) {
            *wide = f32::from_bits(u32::from(narrow.to_bits()) << 16);
        }
    }
}

/// A matrix `[outs, depth]`.
pub(crate) struct Halves<H> {
    /// The elements' bytes, aligned for 16 bits.
    values: Bytes,
    outs: usize,
    depth: usize,
    kind: PhantomData<H>,
}

// Files are little-endian, and elements are used in their stored form.
const _: () = assert!(cfg!(target_endian = "little"), "weights are read in place on little-endian machines only");

impl<H: Half> Halves<H> {
    /// Copies a file's bytes to memory of the same size, and checks them in the same pass. The error describes the
    /// bytes' fault.
    pub(crate) fn copied(shape: [usize; 2], bytes: &[u8], mut into: BytesMut) -> Result<Self, String> {
        let parts = into.par_chunks_mut(COPIED_BYTES).zip(bytes.par_chunks(COPIED_BYTES));
        let finite = parts.all(|(into, bytes)| {
            into.copy_from_slice(bytes);
            are_finite::<H>(bytes)
        });
        if !finite {
            return Err("holds NaN or infinity".to_owned());
        }
        Self::from_checked(shape, into.freeze())
    }

    /// A matrix of bytes that were checked before. They are copied only if they are not aligned.
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

/// Whether little-endian halves have neither infinity nor NaN. Elements are checked in groups without an early end, so
/// that compilers use vector instructions.
pub(crate) fn are_finite<H: Half>(bytes: &[u8]) -> bool {
    let not = |half: &[u8; 2]| u16::from_le_bytes(*half) & H::EXPONENT == H::EXPONENT;
    bytes.chunks(1024).all(|some| !some.as_chunks().0.iter().fold(false, |any, half| any | not(half)))
}

/// A copy of the bytes that begins on a page.
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

    fn multiply(&self, x: &ProductInput<'_>) -> Vec<f32> {
        let (x, rows) = (x.values, x.rows);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_searched_for_nan_and_infinity_as_stored() {
        for bits in 0..=u16::MAX {
            // One invalid element among many is found at any position.
            let mut bytes = [0; 3000];
            let at = usize::from(bits) % 1500 * 2;
            bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
            assert_eq!(are_finite::<f16>(&bytes), f16::from_bits(bits).is_finite(), "f16 {bits:#x}");
            assert_eq!(are_finite::<bf16>(&bytes), bf16::from_bits(bits).is_finite(), "bf16 {bits:#x}");
        }
    }

    #[test]
    fn copies_are_checked_and_those_that_are_no_matrix_refused() {
        let ones: Vec<u8> = (0..12).flat_map(|_| f16::ONE.to_le_bytes()).collect();
        let copied = |shape, bytes: &[u8]| Halves::<f16>::copied(shape, bytes, BytesMut::zeroed(bytes.len()));
        assert_eq!(copied([3, 4], &ones).ok().unwrap().product(&[1.0; 4], 1), [4.0; 3]);
        assert!(copied([3, 5], &ones).err().unwrap().contains("no 3 x 5"));
        let infinite = [&ones[2..], &f16::INFINITY.to_le_bytes()].concat();
        assert!(copied([3, 4], &infinite).err().unwrap().contains("infinity"));
    }
}
