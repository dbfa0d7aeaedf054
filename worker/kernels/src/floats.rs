//! Matrices of 32-bit floats on the CPU, in memory outside of tensors.

use bytes::Bytes;
use pulp::bytemuck;

use crate::halves::aligned;
use crate::kernel::{MatrixKernel, ProductInput};
use crate::product::{Sizes, product};

/// A matrix of 32-bit floats outside of a tensor. Its products are computed by the code for tensors, with the same
/// results.
pub(crate) struct Floats {
    /// The elements' bytes, aligned for 32 bits.
    values: Bytes,
    outs: usize,
    depth: usize,
}

impl Floats {
    pub(crate) fn new([outs, depth]: [usize; 2], bytes: Bytes) -> Result<Self, String> {
        if outs.checked_mul(4 * depth) != Some(bytes.len()) {
            return Err(format!("has {} bytes, which are no {outs} x {depth} of 32 bits", bytes.len()));
        }
        let askew = bytemuck::try_cast_slice::<u8, f32>(&bytes).is_err();
        Ok(Self { values: if askew { aligned(&bytes)? } else { bytes }, outs, depth })
    }

    fn values(&self) -> &[f32] {
        bytemuck::try_cast_slice(&self.values).unwrap_or_default()
    }
}

impl MatrixKernel for Floats {
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
        product(x.values, self.values(), Sizes { rows: x.rows, outs: self.outs, depth: self.depth })
    }

    fn rows(&self, rows: &[u32]) -> Vec<f32> {
        let values = self.values();
        let of_row = |row: &u32| values.get(*row as usize * self.depth..).and_then(|rest| rest.get(..self.depth));
        rows.iter().flat_map(|row| of_row(row).unwrap_or_default()).copied().collect()
    }
}
