//! A weight matrix and the two things a decoder does with one: multiply rows by it, and look rows of it up. Knows where it
//! is computed, not how.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};

use crate::blocks::Blocks;
use crate::product::{RowsByRows, contiguous};
use crate::reader::Target;

/// The one face of all layouts that weights have outside of tensors: a matrix `[outs, depth]` that is computed with as it
/// is stored. What a row comes to does not depend on who shares the call.
pub(crate) trait MatrixKernel: Send + Sync {
    /// Rows.
    fn outs(&self) -> usize;

    /// Columns.
    fn depth(&self) -> usize;

    /// Bytes held.
    fn bytes(&self) -> u64;

    /// `x Wᵀ`: `[rows, depth]` → `[rows, outs]`.
    fn product(&self, x: &[f32], rows: usize) -> Vec<f32>;

    /// The rows of those numbers as f32, one behind the other. Numbers are below [`Self::outs`].
    fn rows(&self, rows: &[u32]) -> Vec<f32>;
}

/// A weight `[out, in]`.
#[derive(Clone)]
pub(crate) enum Matrix {
    /// On any device, in the type the device computes in.
    Tensor(Tensor),
    /// In the host's memory, as its file has it.
    Stored(Arc<dyn MatrixKernel>),
    /// On a device with memory of its own, in blocks as its file has it.
    Blocks(Blocks),
}

impl Matrix {
    /// `x Wᵀ`: `[rows, in]` → `[rows, out]`.
    pub(crate) fn product(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Tensor(weight) if x.device().is_cpu() => x.apply_op2_no_bwd(weight, &RowsByRows),
            // Weights that came as they are stored may be of another type than those around them.
            Self::Tensor(weight) if weight.dtype() != x.dtype() => x.matmul(&weight.to_dtype(x.dtype())?.t()?),
            Self::Tensor(weight) => x.matmul(&weight.t()?),
            Self::Blocks(blocks) => blocks.product(x),
            Self::Stored(kernel) => x.apply_op1_no_bwd(&ByKernel(kernel.as_ref())),
        }
    }

    /// Rows by number, in the type and on the device of what computes with them: `[numbers, in]`.
    pub(crate) fn rows(&self, numbers: &[u32], target: &Target) -> Result<Tensor> {
        let Target { device, dtype, .. } = target;
        let given = || Tensor::from_vec(numbers.to_vec(), numbers.len(), device);
        match self {
            Self::Tensor(weight) => weight.index_select(&given()?, 0),
            Self::Blocks(blocks) => blocks.rows(&given()?, *dtype),
            Self::Stored(kernel) => {
                let values = kernel.rows(numbers);
                let width = values.len() / numbers.len().max(1);
                Tensor::from_vec(values, (numbers.len(), width), device)
            }
        }
    }
}

/// candle's way to run code of one's own on a tensor's memory.
struct ByKernel<'a>(&'a dyn MatrixKernel);

impl CustomOp1 for ByKernel<'_> {
    fn name(&self) -> &'static str {
        "by-kernel"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, _) = layout.shape().dims2()?;
        let y = self.0.product(contiguous(storage, layout)?, rows);
        if y.len() != rows * self.0.outs() {
            bail!("a product has {} results for {rows} rows of {}", y.len(), self.0.outs());
        }
        Ok((CpuStorage::F32(y), Shape::from((rows, self.0.outs()))))
    }
}
