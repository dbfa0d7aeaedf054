//! Products of few rows with matrices, and operations on a layer's stream, by this project's own kernels.

use std::ops::RangeInclusive;

use candle_core::cuda_backend::cudarc::driver::LaunchConfig;
use candle_core::{DType, Result, Tensor};
use model_boss_weights::gguf::TensorType;

use super::arguments::{AddNorm, MATRICES, SiluGate};
use super::blocks::few_rows;
use super::launch::{Gpu, SHARED_BYTES, WARP, address, int, type_name};
use super::multiplied::FewRows;
use crate::device::rows::{Beside, SiluForm};

/// As in `kernels/multiply.cuh` and `kernels/stream.cuh`.
const WARPS: usize = 4;
const ADD_NORM_THREADS: u32 = 256;
const GATE_THREADS: u32 = 256;
/// Rows that a product by [`products`] has at most. With more, each weight's arithmetic costs more than its read.
pub(super) const MOST_ROWS: usize = 4;
/// Rows of bf16 that tensor cores multiply faster, beside their reads. With more cuBLAS is faster.
const ROWS_ON_TENSOR_CORES: RangeInclusive<usize> = 2..=8;
/// The products `x Wᵀ` of few rows with matrices of their type, and what is done beside them, in one launch; none where
/// the kernel has no use.
pub(crate) fn products(x: &Tensor, weights: &[&Tensor], beside: &Beside<'_>) -> Result<Option<Vec<Tensor>>> {
    let (rows, depth) = x.dims2()?;
    let numbers_together = 16 / x.dtype().size_in_bytes().max(1);
    let gated = beside.gate.is_some();
    // A pair of outputs belongs to one matrix.
    let fits = |(at, weight): (usize, &&Tensor)| {
        let whole =
            gated || rows == 1 || at + 1 == weights.len() || weight.dim(0).is_ok_and(|outs| outs.is_multiple_of(2));
        weight.dtype() == x.dtype() && weight.is_contiguous() && whole
    };
    let others = beside.norm.map(|(weight, _)| weight).into_iter().chain(beside.residual);
    let mut others = others.chain(beside.biases.iter().copied().flatten());
    let few = (1..=*ROWS_ON_TENSOR_CORES.end()).contains(&rows) && (1..=MATRICES).contains(&weights.len());
    if !few
        || !x.device().is_cuda()
        || type_name(x.dtype()).is_none()
        || !depth.is_multiple_of(numbers_together)
        || !weights.iter().enumerate().all(fits)
        || others.any(|other| other.dtype() != x.dtype() || !other.is_contiguous())
        || beside.residual.is_some() && weights.len() > 1
        || gated && (weights.len() != 2 || weights[0].dims() != weights[1].dims())
    {
        return Ok(None);
    }
    let shapes = weights.iter().map(|weight| weight.dims2().map(|(outs, depth)| (*weight, [outs, depth])));
    let matrices = shapes.collect::<Result<Vec<_>>>()?;
    if x.dtype() == DType::BF16
        && ROWS_ON_TENSOR_CORES.contains(&rows)
        && let Some(products) = few_rows(x, TensorType::BF16, &matrices, beside)?
    {
        return Ok(Some(products));
    }
    if rows > MOST_ROWS {
        return Ok(None);
    }
    let gpu = Gpu::of(x)?;
    let FewRows { x, arguments, results, kernel } = FewRows::of(&gpu, x, &matrices, beside)?;
    let outs: usize = matrices.iter().map(|(_, [outs, _])| outs).sum();
    let in_vectors = arguments.weights.iter().fold(arguments.x | arguments.norm, |all, at| all | at);
    if !in_vectors.is_multiple_of(16) {
        return Ok(None);
    }
    let config = LaunchConfig {
        grid_dim: (outs.div_ceil(WARPS * if rows == 1 && !gated { 1 } else { 2 }) as u32, 1, 1),
        block_dim: (4 * WARP, 1, 1),
        shared_mem_bytes: 0,
    };
    gpu.launch(kernel, &x, &format!("_{}", rows.next_power_of_two()), config, &arguments)?;
    Ok(Some(results))
}

/// `x + y`, and its root-mean-square norm: `[rows, width]` each.
pub(crate) fn add_norm(x: &Tensor, y: &Tensor, weight: &Tensor, eps: f32) -> Result<Option<(Tensor, Tensor)>> {
    let (rows, width) = x.dims2()?;
    let shared = (WARP as usize + width) * size_of::<f32>();
    let alike = [y, weight].iter().all(|other| other.dtype() == x.dtype());
    if !x.device().is_cuda() || type_name(x.dtype()).is_none() || shared > SHARED_BYTES || !alike {
        return Ok(None);
    }
    let gpu = Gpu::of(x)?;
    let (x, y) = (x.contiguous()?, y.contiguous()?);
    let [sum, normed] = [gpu.empty((rows, width), x.dtype())?, gpu.empty((rows, width), x.dtype())?];
    let arguments = AddNorm {
        x: address(&x)?,
        y: address(&y)?,
        weight: address(weight)?,
        sum: address(&sum)?,
        normed: address(&normed)?,
        eps,
        width: int(width)?,
    };
    let config = LaunchConfig {
        grid_dim: (rows as u32, 1, 1),
        block_dim: (ADD_NORM_THREADS, 1, 1),
        shared_mem_bytes: shared as u32,
    };
    gpu.launch("add_norm", &x, "", config, &arguments)?;
    Ok(Some((sum, normed)))
}

/// `silu(gate) * up`, element by element.
pub(crate) fn silu_gate(gate: &Tensor, up: &Tensor, form: SiluForm) -> Result<Option<Tensor>> {
    let alike = gate.dtype() == up.dtype() && gate.shape() == up.shape();
    if !gate.device().is_cuda() || type_name(gate.dtype()).is_none() || !alike {
        return Ok(None);
    }
    let gpu = Gpu::of(gate)?;
    let (gate, up) = (gate.contiguous()?, up.contiguous()?);
    let out = gpu.empty(gate.shape(), gate.dtype())?;
    let count = gate.elem_count();
    let SiluForm { limit, slope } = form;
    let (gate_at, up_at, out_at, of) = (address(&gate)?, address(&up)?, address(&out)?, i64::from(int(count)?));
    let arguments = SiluGate { gate: gate_at, up: up_at, out: out_at, count: of, limit, slope };
    let config = LaunchConfig {
        grid_dim: (count.div_ceil(GATE_THREADS as usize) as u32, 1, 1),
        block_dim: (GATE_THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    gpu.launch("silu_gate", &gate, "", config, &arguments)?;
    Ok(Some(out))
}
