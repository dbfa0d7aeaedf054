//! Products with matrices in quantised blocks. Few rows are multiplied with the blocks themselves. For many, a part of
//! a matrix at a time becomes floats, which stay in the GPU's second cache until they are multiplied.

use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::cuda_backend::cudarc::driver::LaunchConfig;
use candle_core::{DType, Device, DeviceLocation, Result, Tensor, bail};
use model_boss_weights::gguf::TensorType;

use super::arguments::{MATRICES, MultiplyRows, WidenBlocks};
use super::launch::{Gpu, WARP, address, int};
use crate::device::rows::{Beside, SiluForm};
use crate::matrix::blocks::DeviceBlocks;

/// As in `kernels/blocks.cuh` and `kernels/multiply_blocks.cuh`.
const CHUNK: usize = 256;
const WIDEN_THREADS: u32 = 256;
const WEIGHTS_OF_THREAD: usize = 8;
const TILE_OUTS: usize = 16;
const TILE_ROWS: usize = 8;
const SUMS: usize = 4;
/// Rows that a product with blocks has at most. With more, the floats of a matrix are worth making.
pub(super) const MOST_ROWS: usize = 2 * TILE_ROWS;
/// Warps that divide the depth: more where a product has too few outputs to employ a GPU.
const WARPS: usize = 8;
const MOST_WARPS: usize = 16;
const FEW_TILES: usize = 256;
/// Weights that are floats at one time.
const WIDENED: usize = 16 << 20;
const LEAST_WIDENED: usize = 1 << 20;

macro_rules! texts {
    ($($kind:ident)*) => {
        [$((TensorType::$kind, include_str!(concat!(env!("OUT_DIR"), "/blocks_", stringify!($kind), ".ptx")))),*]
    };
}

/// The kernels of each type of blocks.
pub(super) const TEXTS: [(TensorType, &str); 13] =
    texts! { Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS };

fn text_of(kind: TensorType) -> Result<&'static str> {
    match TEXTS.iter().find(|(of, _)| *of == kind) {
        Some((_, text)) => Ok(text),
        None => bail!("no kernels for {kind}"),
    }
}

/// Memory on each GPU for weights as floats. Recorded steps have its address, so it is there from the load on.
fn widened() -> MutexGuard<'static, Vec<(DeviceLocation, Tensor)>> {
    static WIDENED: Mutex<Vec<(DeviceLocation, Tensor)>> = Mutex::new(Vec::new());
    WIDENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the memory that products of many rows work in, for a matrix of so many elements. Called before any step.
pub(crate) fn settle_blocks(elements: usize, device: &Device) -> Result<()> {
    let (mut widened, here) = (widened(), device.location());
    let needed = elements.clamp(LEAST_WIDENED, WIDENED);
    if widened.iter().any(|(on, memory)| *on == here && memory.elem_count() >= needed) {
        return Ok(());
    }
    let memory = Tensor::zeros(needed, DType::BF16, device)?;
    widened.retain(|(on, _)| *on != here);
    widened.push((here, memory));
    Ok(())
}

/// The products `x Wᵀ` of few rows with matrices of one type of blocks, and what is done beside them, in one launch;
/// none where the kernel has no use.
pub(crate) fn block_products(x: &Tensor, blocks: &[&DeviceBlocks], beside: &Beside<'_>) -> Result<Option<Vec<Tensor>>> {
    let (rows, depth) = x.dims2()?;
    let gated = beside.gate.is_some();
    let Some(kind) = blocks.first().map(|blocks| blocks.layout.kind) else { return Ok(None) };
    let others = beside.norm.map(|(weight, _)| weight).into_iter().chain(beside.residual);
    let mut others = others.chain(beside.biases.iter().copied().flatten());
    if !(1..=MOST_ROWS).contains(&rows)
        || blocks.len() > MATRICES
        || x.dtype() != DType::BF16
        || others.any(|other| other.dtype() != x.dtype() || !other.is_contiguous())
        || beside.residual.is_some() && blocks.len() > 1
        || gated && (blocks.len() != 2 || blocks[0].layout.shape != blocks[1].layout.shape)
    {
        return Ok(None);
    }
    let gpu = Gpu::of(x)?;
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
    if !(arguments.x | arguments.norm).is_multiple_of(8) {
        return Ok(None);
    }
    let (mut results, mut tiles) = (Vec::with_capacity(blocks.len()), 0);
    for (at, DeviceBlocks { bytes, layout }) in blocks.iter().enumerate() {
        let [outs, of_depth] = layout.shape;
        if of_depth != depth {
            bail!("rows of {depth} numbers have no product with a matrix of {of_depth}");
        }
        arguments.weights[at] = address(bytes)?;
        arguments.biases[at] = optional(beside.biases.get(at).copied().flatten())?;
        arguments.outs[at] = int(outs)?;
        if !gated || at == 0 {
            tiles += outs.div_ceil(if gated { TILE_OUTS / 2 } else { TILE_OUTS });
            let result = gpu.empty((rows, outs), x.dtype())?;
            arguments.results[at] = address(&result)?;
            results.push(result);
        }
    }
    let chunks = depth.div_ceil(CHUNK);
    let most = if tiles < FEW_TILES { MOST_WARPS } else { WARPS };
    // The chunks of the busiest warp, and the fewest warps that have no more.
    let warps = chunks.div_ceil(chunks.div_ceil(most));
    let of_rows = rows.div_ceil(TILE_ROWS);
    let stages = if chunks > warps { 2 } else { 1 };
    let floats = warps * of_rows * (SUMS * WARP as usize + TILE_ROWS);
    let config = LaunchConfig {
        grid_dim: (tiles as u32, 1, 1),
        block_dim: (warps as u32 * WARP, 1, 1),
        shared_mem_bytes: (floats * size_of::<f32>() + warps * stages * TILE_OUTS * room_of_row(kind)) as u32,
    };
    let kernel = match (gated, beside.norm.is_some()) {
        (false, false) => "multiply",
        (false, true) => "multiply_normed",
        (true, false) => "multiply_gated",
        (true, true) => "multiply_gated_normed",
    };
    gpu.launch_of(&format!("{kernel}_{kind}_{of_rows}"), kind.name(), text_of(kind)?, config, &arguments)?;
    Ok(Some(results))
}

/// Bytes of shared memory for one row of a chunk.
fn room_of_row(kind: TensorType) -> usize {
    let bytes = CHUNK / kind.block_len() as usize * kind.block_bytes() as usize;
    (bytes + 30) / 16 * 16
}

/// The product `x Wᵀ` of any number of rows.
pub(crate) fn block_product(x: &Tensor, blocks: &DeviceBlocks) -> Result<Tensor> {
    if !matches!(x.dtype(), DType::BF16 | DType::F32) {
        return block_product(&x.to_dtype(DType::F32)?, blocks)?.to_dtype(x.dtype());
    }
    let (gpu, x) = (Gpu::of(x)?, x.contiguous()?);
    let [outs, depth] = blocks.layout.shape;
    let rows = x.dim(0)?;
    let result = gpu.empty((rows, outs), x.dtype())?;
    let widened = widened();
    let Some((_, memory)) = widened.iter().find(|(on, _)| *on == x.device().location()) else {
        bail!("no memory for a product with blocks")
    };
    let room = memory.elem_count() * memory.dtype().size_in_bytes() / x.dtype().size_in_bytes();
    let fits = room / depth;
    let at_once = if fits > TILE_OUTS { fits - fits % TILE_OUTS } else { fits }.min(outs);
    if at_once == 0 {
        bail!("no memory for a product with rows of {depth} weights");
    }
    for first in (0..outs).step_by(at_once) {
        let count = at_once.min(outs - first);
        widen(&gpu, blocks, (first, None), count, (address(memory)?, x.dtype()))?;
        let sizes = GemmSizes { outs: int(count)?, rows: int(rows)?, depth: int(depth)?, stride: int(outs)? };
        let to = address(&result)? + (first * x.dtype().size_in_bytes()) as u64;
        multiply_widened(&gpu, x.dtype(), &sizes, [address(memory)?, address(&x)?, to])?;
    }
    Ok(result)
}

/// The rows with these numbers, as a tensor: `[numbers, depth]`.
pub(crate) fn block_rows(blocks: &DeviceBlocks, numbers: &Tensor, dtype: DType) -> Result<Tensor> {
    if !matches!(dtype, DType::BF16 | DType::F32) {
        return block_rows(blocks, numbers, DType::F32)?.to_dtype(dtype);
    }
    let (gpu, numbers) = (Gpu::of(numbers)?, numbers.contiguous()?);
    let count = numbers.elem_count();
    let rows = gpu.empty((count, blocks.layout.shape[1]), dtype)?;
    widen(&gpu, blocks, (0, Some(address(&numbers)?)), count, (address(&rows)?, dtype))?;
    Ok(rows)
}

/// Writes rows of a matrix as floats: those with the numbers at an address, or those from the first on.
fn widen(
    gpu: &Gpu<'_>,
    blocks: &DeviceBlocks,
    (first, numbers): (usize, Option<u64>),
    count: usize,
    (out, dtype): (u64, DType),
) -> Result<()> {
    let ([_, depth], kind) = (blocks.layout.shape, blocks.layout.kind);
    let Some(before) = kind.bytes_of((first * depth) as u64) else { bail!("no row {first} of {kind}") };
    let arguments = WidenBlocks {
        weights: address(&blocks.bytes)? + before,
        numbers: numbers.unwrap_or_default(),
        out,
        depth: int(depth)?,
        count: int(count)?,
    };
    let config = LaunchConfig {
        grid_dim: ((count * depth / WEIGHTS_OF_THREAD).div_ceil(WIDEN_THREADS as usize) as u32, 1, 1),
        block_dim: (WIDEN_THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    let of = if dtype == DType::F32 { "f32" } else { "bf16" };
    gpu.launch_of(&format!("widen_{kind}_{of}"), kind.name(), text_of(kind)?, config, &arguments)
}

struct GemmSizes {
    outs: i32,
    rows: i32,
    depth: i32,
    /// Numbers from one row of the result to the next.
    stride: i32,
}

/// `x Wᵀ` of floats at the addresses of the weights, of x, and of the result.
fn multiply_widened(gpu: &Gpu<'_>, dtype: DType, sizes: &GemmSizes, [weights, x, to]: [u64; 3]) -> Result<()> {
    let kind = if dtype == DType::F32 { sys::cudaDataType_t::CUDA_R_32F } else { sys::cudaDataType_t::CUDA_R_16BF };
    let (one, zero) = (1.0_f32, 0.0_f32);
    let handle = gpu.cuda().cublas_handle();
    // SAFETY: cuBLAS has matrices by columns, so that a row of ours is a column of its own: the weights have `outs`
    // columns of `depth`, x has `rows` of `depth`, and the result has `rows` of `outs`, `stride` apart. The tensors of
    // these addresses have such shapes, on this device. Frees and other kernels follow on the same stream.
    #[allow(unsafe_code)]
    let multiplied = unsafe {
        result::gemm_ex(
            *handle.handle(),
            sys::cublasOperation_t::CUBLAS_OP_T,
            sys::cublasOperation_t::CUBLAS_OP_N,
            sizes.outs,
            sizes.rows,
            sizes.depth,
            std::ptr::from_ref(&one).cast(),
            weights as *const _,
            kind,
            sizes.depth,
            x as *const _,
            kind,
            sizes.depth,
            std::ptr::from_ref(&zero).cast(),
            to as *mut _,
            kind,
            sizes.stride,
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
        )
    };
    multiplied.map_err(candle_core::Error::wrap)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bytes::BytesMut;
    use half::bf16;
    use model_boss_kernels::MatrixLayout;

    use super::*;
    use crate::matrix::blocks::KINDS;

    /// Blocks of any bytes whose factors are of a usual size, and the floats that the CPU's kernels take them for.
    fn any_blocks(kind: TensorType, shape: [usize; 2]) -> (Vec<u8>, Vec<f32>) {
        let mut state = 5_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let mut bytes: Vec<u8> = (0..kind.bytes_of((shape[0] * shape[1]) as u64).unwrap()).map(|_| byte()).collect();
        for block in bytes.chunks_mut(kind.block_bytes() as usize) {
            let factors: &[usize] = match kind {
                TensorType::MXFP4 => &[],
                TensorType::Q2_K => &[80, 82],
                TensorType::Q3_K => &[108],
                TensorType::Q6_K => &[208],
                TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
                _ => &[0],
            };
            factors.iter().for_each(|at| block[at + 1] = block[at + 1] & 0x87 | 0x20);
            if kind == TensorType::MXFP4 {
                block[0] = 120 + block[0] % 8;
            }
        }
        let kernel = MatrixLayout { kind, shape }.copied(&bytes, BytesMut::zeroed(bytes.len())).unwrap();
        (bytes, kernel.rows(&(0..shape[0] as u32).collect::<Vec<_>>()))
    }

    fn any_rows(rows: usize, depth: usize) -> Vec<bf16> {
        (0..rows * depth).map(|at| bf16::from_f32((at * 7_919 % 2_003) as f32 / 1_001.0 - 1.0)).collect()
    }

    /// Runs where `MODEL_BOSS_TEST_DEVICE` names a GPU. Prints the bytes that products read in a second.
    #[test]
    fn gp_2_blocks_are_multiplied_on_a_gpu_as_their_floats() {
        let Some(index) = std::env::var("MODEL_BOSS_TEST_DEVICE").ok().and_then(|name| name.strip_prefix("cuda:")?.parse().ok())
        else {
            eprintln!("skipped: MODEL_BOSS_TEST_DEVICE names no GPU");
            return;
        };
        let device = super::super::open(index).unwrap();
        for kind in KINDS {
            let layout = MatrixLayout { kind, shape: [1_000, 1_280] };
            let [outs, depth] = layout.shape;
            let (bytes, floats) = any_blocks(kind, layout.shape);
            let blocks = DeviceBlocks::place(layout, &bytes, &device).unwrap();
            let numbers = Tensor::new(&[7_u32, 0, 999], &device).unwrap();
            let rows = blocks.rows(&numbers, DType::F32).unwrap().to_vec2::<f32>().unwrap();
            for (row, from) in rows.iter().zip([7, 0, 999]) {
                assert_eq!(row[..], floats[from * depth..(from + 1) * depth], "{kind}: row {from}");
            }
            for rows in [1, 5, 8, 12, 16, 17, 40] {
                let x = any_rows(rows, depth);
                let got = Tensor::from_vec(x.clone(), (rows, depth), &device).unwrap();
                let got = blocks.product(&got).unwrap().to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
                for (row, got) in got.iter().enumerate() {
                    let x = &x[row * depth..(row + 1) * depth];
                    for (out, got) in got.iter().enumerate() {
                        let terms = x.iter().zip(&floats[out * depth..]).map(|(x, weight)| x.to_f32() * weight);
                        let (sum, squares) = terms.fold((0.0, 0.0), |(sum, squares), term| (sum + term, squares + term * term));
                        let allowed = 6e-3 * (sum.abs() + squares.sqrt()) + 1e-3;
                        assert!((got - sum).abs() < allowed, "{kind}, {rows} rows: {got} in place of {sum} at {row}, {out}");
                    }
                }
            }
            report_rates(kind, &device);
        }
    }

    /// The rates of products with matrices that the second cache does not hold.
    fn report_rates(kind: TensorType, device: &Device) {
        let layout = MatrixLayout { kind, shape: [8_192, 8_192] };
        let matrices: Vec<DeviceBlocks> = (0..4).map(|_| DeviceBlocks::zeros(layout, device).unwrap()).collect();
        let bytes = kind.bytes_of(8_192 * 8_192).unwrap() as f64;
        let rates: Vec<String> = [1, 8, 16, 17, 32, 1024]
            .map(|rows| {
                let x = Tensor::from_vec(any_rows(rows, 8_192), (rows, 8_192), device).unwrap();
                let round = || matrices.iter().for_each(|blocks| drop(blocks.product(&x).unwrap()));
                round();
                device.synchronize().unwrap();
                let begun = Instant::now();
                (0..16).for_each(|_| round());
                device.synchronize().unwrap();
                format!("{rows} rows {:.0}", 64.0 * bytes / begun.elapsed().as_secs_f64() / 1e9)
            })
            .into();
        eprintln!("RATE {kind}: GB/s of {}", rates.join(", "));
    }
}
