//! The arguments of products of few rows, for the kernels of floats and those of blocks.

use candle_core::{Result, Tensor, bail};

use super::arguments::{MATRICES, MultiplyRows};
use super::launch::{Gpu, address, int};
use crate::device::rows::{Beside, SiluForm};

/// A product of few rows with matrices that share them, as kernels are told of it.
pub(super) struct FewRows {
    pub(super) x: Tensor,
    pub(super) arguments: MultiplyRows,
    /// `[rows, outs]` of each matrix, or what passes the gate.
    pub(super) results: Vec<Tensor>,
    /// The beginning of the kernel's name.
    pub(super) kernel: &'static str,
}

impl FewRows {
    /// `x`: `[rows, depth]`; of each matrix its memory, and `[outs, depth]`.
    pub(super) fn of(
        gpu: &Gpu<'_>,
        x: &Tensor,
        matrices: &[(&Tensor, [usize; 2])],
        beside: &Beside<'_>,
    ) -> Result<Self> {
        let (rows, depth) = x.dims2()?;
        let x = x.contiguous()?;
        let optional = |x: Option<&Tensor>| x.map_or(Ok(0), address);
        let SiluForm { limit, slope } = beside.gate.unwrap_or_default();
        let mut arguments = MultiplyRows {
            x: address(&x)?,
            weights: [0; MATRICES],
            biases: [0; MATRICES],
            results: [0; MATRICES],
            norm: optional(beside.norm.map(|(weight, _)| weight))?,
            residual: optional(beside.residual)?,
            eps: beside.norm.map_or(0.0, |(_, eps)| eps),
            limit,
            slope,
            outs: [0; MATRICES],
            depth: int(depth)?,
            rows: int(rows)?,
        };
        let gated = beside.gate.is_some();
        let mut results = Vec::with_capacity(matrices.len());
        for (at, (weights, [outs, of_depth])) in matrices.iter().enumerate() {
            if *of_depth != depth {
                bail!("rows of {depth} numbers have no product with a matrix of {of_depth}");
            }
            arguments.weights[at] = address(weights)?;
            arguments.biases[at] = optional(beside.biases.get(at).copied().flatten())?;
            arguments.outs[at] = int(*outs)?;
            if !gated || at == 0 {
                let result = gpu.empty((rows, *outs), x.dtype())?;
                arguments.results[at] = address(&result)?;
                results.push(result);
            }
        }
        let kernel = match (gated, beside.norm.is_some()) {
            (false, false) => "multiply",
            (false, true) => "multiply_normed",
            (true, false) => "multiply_gated",
            (true, true) => "multiply_gated_normed",
        };
        Ok(Self { x, arguments, results, kernel })
    }
}
