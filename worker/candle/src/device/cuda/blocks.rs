//! Products with matrices in quantised blocks. Few rows are multiplied with the blocks themselves. For many, a part of
//! a matrix at a time becomes floats, which stay in the GPU's second cache until they are multiplied.

use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::cuda_backend::cudarc::driver::LaunchConfig;
use candle_core::{DType, Device, DeviceLocation, Result, Tensor, bail};
use model_boss_weights::gguf::TensorType;

use super::arguments::{MATRICES, WidenBlocks};
use super::launch::{Gpu, GpuLimits, WARP, address, int};
use super::multiplied::FewRows;
use crate::device::blocks::DeviceBlocks;
use crate::device::rows::Beside;

/// As in `kernels/blocks.cuh` and `kernels/multiply_blocks.cuh`.
const CHUNK: usize = 256;
const STEP: usize = 32;
const WIDEN_THREADS: u32 = 256;
const WEIGHTS_OF_THREAD: usize = 8;
const TILE_OUTS: usize = 16;
const TILE_ROWS: usize = 8;
const SUMS: usize = 4;
/// Rows that a product with blocks has at most. With more, the floats of a matrix are worth making.
pub(super) const MOST_ROWS: usize = 4 * TILE_ROWS;
/// Rows that a norm is computed of beside the product: of more by itself, once.
const MOST_NORMED: usize = TILE_ROWS;
/// Warps that divide the depth, if there is shared memory for them. A multiprocessor has registers for as many.
const MOST_WARPS: [usize; 3] = [16, 8, 4];
/// Shared memory that the system takes for a block of threads.
const SHARED_OF_BLOCK: usize = 1 << 10;
/// Weights that are floats at one time.
const WIDENED: usize = 16 << 20;
const LEAST_WIDENED: usize = 1 << 20;

macro_rules! texts {
    ($($kind:ident)*) => {
        [$((TensorType::$kind, include_str!(concat!(env!("OUT_DIR"), "/blocks_", stringify!($kind), ".ptx")))),*]
    };
}

/// The kernels of each type of blocks, and of matrices of bf16.
pub(super) const TEXTS: [(TensorType, &str); 14] =
    texts! { Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS BF16 };

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
    let Some(kind) = blocks.first().map(|blocks| blocks.layout.kind) else { return Ok(None) };
    let matrices: Vec<_> = blocks.iter().map(|blocks| (&blocks.bytes, blocks.layout.shape)).collect();
    few_rows(x, kind, &matrices, beside)
}

/// The same with matrices in memory of a GPU as they are, of one type and of these shapes.
pub(super) fn few_rows(
    x: &Tensor,
    kind: TensorType,
    matrices: &[(&Tensor, [usize; 2])],
    beside: &Beside<'_>,
) -> Result<Option<Vec<Tensor>>> {
    let (rows, depth) = x.dims2()?;
    let gated = beside.gate.is_some();
    let others = beside.norm.map(|(weight, _)| weight).into_iter().chain(beside.residual);
    let mut others = others.chain(beside.biases.iter().copied().flatten());
    if !(1..=MOST_ROWS).contains(&rows)
        || !(1..=MATRICES).contains(&matrices.len())
        || x.dtype() != DType::BF16
        || others.any(|other| other.dtype() != x.dtype() || !other.is_contiguous())
        || beside.norm.is_some() && rows > MOST_NORMED
        || beside.residual.is_some() && matrices.len() > 1
        || gated && (matrices.len() != 2 || matrices[0].1 != matrices[1].1)
        || !depth.is_multiple_of(STEP)
    {
        return Ok(None);
    }
    let gpu = Gpu::of(x)?;
    let FewRows { x: _x, arguments, results, kernel } = FewRows::of(&gpu, x, matrices, beside)?;
    if !(arguments.x | arguments.norm).is_multiple_of(8) {
        return Ok(None);
    }
    let (written, of_tile) = if gated { (1, TILE_OUTS / 2) } else { (matrices.len(), TILE_OUTS) };
    let tiles = matrices.iter().take(written).map(|(_, [outs, _])| outs.div_ceil(of_tile)).sum();
    let of_rows = rows.div_ceil(TILE_ROWS).next_power_of_two();
    let Some(config) = config_of(kind, depth, (tiles, of_rows), &gpu.limits()?) else { return Ok(None) };
    gpu.launch_of(&format!("{kernel}_{kind}_{of_rows}"), kind.name(), text_of(kind)?, config, &arguments)?;
    Ok(Some(results))
}

/// The blocks of threads for so many tiles of outputs, and of rows: as many as run at once, each with the same number
/// of tiles or one less. None without shared memory for them.
fn config_of(
    kind: TensorType,
    depth: usize,
    (tiles, of_rows): (usize, usize),
    limits: &GpuLimits,
) -> Option<LaunchConfig> {
    let chunks = depth.div_ceil(CHUNK);
    let bytes_of_chunk = kind.bytes_of(CHUNK as u64)? as usize;
    let room_of_row = (bytes_of_chunk + 30) / 16 * 16;
    let stages = if room_of_row <= 192 { 3 } else { 2 };
    let buffers = if of_rows == 1 { 2 } else { 1 };
    let floats_of_warp = buffers * of_rows * SUMS * WARP as usize + TILE_ROWS;
    let bytes_of_warp = floats_of_warp * size_of::<f32>() + stages * TILE_OUTS * room_of_row;
    MOST_WARPS.into_iter().find_map(|most| {
        // The fewest warps with no more chunks for the busiest.
        let warps = chunks.div_ceil(chunks.div_ceil(most));
        let bytes = warps * bytes_of_warp;
        if bytes > limits.shared_bytes_of_block {
            return None;
        }
        let at_once = (MOST_WARPS[0] / warps).min(limits.shared_bytes / (bytes + SHARED_OF_BLOCK)).max(1);
        let of_each = tiles.div_ceil(at_once * limits.multiprocessors).max(1);
        Some(LaunchConfig {
            grid_dim: (tiles.div_ceil(of_each) as u32, 1, 1),
            block_dim: (warps as u32 * WARP, 1, 1),
            shared_mem_bytes: bytes as u32,
        })
    })
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
    use std::io::Write;
    use std::time::Instant;

    use bytes::BytesMut;
    use half::bf16;
    use model_boss_kernels::MatrixLayout;

    use super::*;
    use crate::device::blocks::KINDS;

    #[test]
    fn gp_2_blocks_of_threads_have_the_same_work_and_fit() {
        let h100 = GpuLimits { multiprocessors: 132, shared_bytes: 228 << 10, shared_bytes_of_block: 227 << 10 };
        let of = |kind, depth, tiles, limits| {
            let config = config_of(kind, depth, tiles, limits).unwrap();
            (config.grid_dim.0, config.block_dim.0 / WARP)
        };
        // Eight chunks: two blocks of eight warps each have four tiles.
        assert_eq!(of(TensorType::Q4_K, 2_048, (1_024, 1), &h100), (256, 8));
        assert_eq!(of(TensorType::Q4_K, 8_192, (128, 1), &h100), (128, 16));
        assert_eq!(of(TensorType::Q8_0, 3_072, (10, 4), &h100), (10, 12));
        // Twenty chunks have ten warps with two each.
        assert_eq!(of(TensorType::Q6_K, 5_120, (320, 1), &h100).1, 10);
        // A GPU with less shared memory has fewer warps.
        let smaller = GpuLimits { multiprocessors: 82, shared_bytes: 100 << 10, shared_bytes_of_block: 99 << 10 };
        assert_eq!(of(TensorType::Q8_0, 8_192, (512, 1), &smaller), (74, 8));
    }

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

    /// A line in the file that `scripts/gpu-check` names.
    fn report(line: &str) {
        let Some(path) = std::env::var_os("MODEL_BOSS_TEST_REPORT") else { return };
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }

    fn any_rows(rows: usize, depth: usize) -> Vec<bf16> {
        (0..rows * depth).map(|at| bf16::from_f32((at * 7_919 % 2_003) as f32 / 1_001.0 - 1.0)).collect()
    }

    /// Runs where `MODEL_BOSS_TEST_DEVICE` names a GPU. Reports the bytes that products read in a second.
    #[test]
    fn gp_2_blocks_are_multiplied_on_a_gpu_as_their_floats() {
        let named = std::env::var("MODEL_BOSS_TEST_DEVICE").ok();
        let Some(index) = named.and_then(|name| name.strip_prefix("cuda:")?.parse().ok()) else {
            return;
        };
        let device = super::super::open(index).unwrap();
        for kind in KINDS {
            let layout = MatrixLayout { kind, shape: [1_000, 1_280] };
            let depth = layout.shape[1];
            let (bytes, floats) = any_blocks(kind, layout.shape);
            let blocks = DeviceBlocks::place(layout, &bytes, &device).unwrap();
            let numbers = Tensor::new(&[7_u32, 0, 999], &device).unwrap();
            let rows = blocks.rows(&numbers, DType::F32).unwrap().to_vec2::<f32>().unwrap();
            for (row, from) in rows.iter().zip([7, 0, 999]) {
                assert_eq!(row[..], floats[from * depth..(from + 1) * depth], "{kind}: row {from}");
            }
            for rows in [1, 5, 8, 12, 16, 29, 40] {
                let x = any_rows(rows, depth);
                let got = Tensor::from_vec(x.clone(), (rows, depth), &device).unwrap();
                let got = blocks.product(&got).unwrap().to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
                for (row, got) in got.iter().enumerate() {
                    let x = &x[row * depth..(row + 1) * depth];
                    for (out, got) in got.iter().enumerate() {
                        let terms = x.iter().zip(&floats[out * depth..]).map(|(x, weight)| x.to_f32() * weight);
                        let add = |(sum, squares), term| (sum + term, squares + term * term);
                        let (sum, squares): (f32, f32) = terms.fold((0.0, 0.0), add);
                        let allowed = 1.2e-2 * (sum.abs() + squares.sqrt()) + 1e-3;
                        let at = format!("{kind}, {rows} rows, at {row}, {out}");
                        assert!((got - sum).abs() < allowed, "{at}: {got} in place of {sum}");
                    }
                }
            }
            report_rates(kind, &device);
        }
        plain_matrices(&device);
    }

    /// Matrices of bf16, which the same kernel multiplies.
    fn plain_matrices(device: &Device) {
        let [outs, depth] = [500, 1_312];
        let weights = any_rows(outs, depth);
        let matrix = Tensor::from_vec(weights.clone(), (outs, depth), device).unwrap();
        for rows in [1, 7, 13, 32] {
            let x = any_rows(rows, depth);
            let got = Tensor::from_vec(x.clone(), (rows, depth), device).unwrap();
            let beside = Beside::default();
            let got = few_rows(&got, TensorType::BF16, &[(&matrix, [outs, depth])], &beside).unwrap().unwrap();
            let got = got[0].to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
            for (row, got) in got.iter().enumerate() {
                for (out, got) in got.iter().enumerate() {
                    let terms = x[row * depth..(row + 1) * depth].iter().zip(&weights[out * depth..]);
                    let sum: f32 = terms.map(|(x, weight)| x.to_f32() * weight.to_f32()).sum();
                    assert!((got - sum).abs() < 5e-3 * sum.abs() + 0.05, "{rows} rows: {got} in place of {sum}");
                }
            }
        }
    }

    /// The rates of products with matrices that the second cache does not hold.
    fn report_rates(kind: TensorType, device: &Device) {
        let layout = MatrixLayout { kind, shape: [8_192, 8_192] };
        let matrices: Vec<DeviceBlocks> = (0..4).map(|_| DeviceBlocks::zeros(layout, device).unwrap()).collect();
        let bytes = kind.bytes_of(8_192 * 8_192).unwrap() as f64;
        let rates: Vec<String> = [1, 8, 16, 32, 33, 1024]
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
        report(&format!("RATE {kind}: GB/s of {}", rates.join(", ")));
    }
}
