//! This project's own kernels: operations of a decoder that a GPU's library has only as many small ones. Each function
//! is one launch, or two where keys are split. Shapes and formulas are beside the kernels, in the folder `kernels`.

use std::ops::Range;

use candle_core::cuda_backend::cudarc::driver::LaunchConfig;
use candle_core::{DType, Device, Result, Tensor, bail};
use model_boss_engine::BLOCK_TOKENS;

use super::arguments::{AttendPiece, AttendRows, PlaceRows, SoftenRows};
pub(crate) use super::blocks::{block_product, block_products, block_rows, settle_blocks};
use super::launch::{Gpu, MOST_SHARED_BYTES, SHARED_BYTES, WARP, address, int};
pub(crate) use super::products::{add_norm, products, silu_gate};
use crate::device::rows::{AttendedHeads, NewRows, StepTables};

/// As in `kernels/*.cuh`.
const PLACE_WARPS: u32 = 4;
const ATTEND_WARPS: usize = 8;
const SPLIT: usize = ATTEND_WARPS * BLOCK_TOKENS;
const SUMS_OF_LANE: usize = 32;
const PIECE_WARPS: u32 = 4;
const PIECE_ROWS: usize = 64;
/// Of values of at most 128 elements, else half as many.
const PIECE_KEYS: usize = 64;
const PIECE_BEHIND: usize = 8;
const PIECE_SIDE: usize = 16;
const SOFTEN_THREADS: u32 = 256;
/// The greatest widths of a value that kernels are made for.
const WIDTHS: [usize; 4] = [64, 128, 256, 512];
/// Bytes that a lane reads at once.
const VECTOR: usize = 16;
/// Query heads that a block of threads has together where keys and values are read in vectors.
const VECTOR_HEADS: usize = 4;
const WIDTHS_OF_PIECES: [usize; 3] = [64, 128, 256];
/// Whether the kernels serve attention of this shape, with keys and values of the type that the device computes in.
pub(crate) fn serve(device: &Device, head_dim: usize, value_dim: usize) -> bool {
    let shared = WIDTHS
        .iter()
        .find(|width| value_dim <= **width)
        .map(|width| shared_of_attend(head_dim, value_dim, heads_together(*width)));
    device.is_cuda() && shared.is_some_and(|bytes| bytes <= SHARED_BYTES)
}

/// Puts new keys and values into the caches, `[kv_heads, room, width]` each, and returns the queries `[rows, heads,
/// head_dim]`, scaled.
pub(crate) fn place(
    new: &NewRows<'_>,
    shape: &AttendedHeads,
    (keys, values): (&Tensor, &Tensor),
    tables: &StepTables,
) -> Result<Tensor> {
    let gpu = Gpu::of(new.query)?;
    let AttendedHeads { heads, kv_heads, head_dim, value_dim, .. } = *shape;
    let rows = new.query.dim(0)?;
    let query = gpu.empty((rows, heads, head_dim), new.query.dtype())?;
    let optional = |x: Option<&Tensor>| x.map_or(Ok(0), address);
    let (norms, angles) = (new.norms, new.angles);
    let arguments = PlaceRows {
        query: address(new.query)?,
        key: address(new.key)?,
        value: optional(new.value)?,
        query_norm: optional(norms.map(|norms| norms.query.0))?,
        key_norm: optional(norms.map(|norms| norms.key.0))?,
        cos: optional(angles.map(|angles| angles.cos))?,
        sin: optional(angles.map(|angles| angles.sin))?,
        places: tables.places()?,
        query_out: address(&query)?,
        keys: address(keys)?,
        values: address(values)?,
        query_eps: norms.map_or(0.0, |norms| norms.query.1),
        key_eps: norms.map_or(0.0, |norms| norms.key.1),
        scale: shape.scale,
        heads: int(heads)?,
        kv_heads: int(kv_heads)?,
        head_dim: int(head_dim)?,
        value_dim: int(value_dim)?,
        planes: angles.map_or(Ok(0), |angles| angles.cos.dim(1).and_then(int))?,
        first: int(angles.map_or(0, |angles| angles.first))?,
        halves: angles.is_some_and(|angles| angles.halves).into(),
        norm_behind: norms.is_some_and(|norms| norms.behind_rotation).into(),
        room: int(keys.dim(1)?)?,
    };
    let items = heads + kv_heads * (1 + usize::from(new.value.is_some()));
    let config = LaunchConfig {
        grid_dim: (rows as u32, items.div_ceil(PLACE_WARPS as usize) as u32, 1),
        block_dim: (PLACE_WARPS * WARP, 1, 1),
        shared_mem_bytes: PLACE_WARPS * (head_dim * size_of::<f32>()) as u32,
    };
    gpu.launch("place_rows", new.query, "", config, &arguments)?;
    Ok(query)
}

/// A result of attention that is not written yet: `[rows, heads * value_dim]`.
pub(crate) fn unwritten(query: &Tensor, shape: &AttendedHeads) -> Result<Tensor> {
    Gpu::of(query)?.empty((query.dim(0)?, shape.heads * shape.value_dim), query.dtype())
}

/// Attention of the rows that the tables let see something, `[rows, heads, head_dim]`, to their places in `out`.
pub(crate) fn attend(
    query: &Tensor,
    shape: &AttendedHeads,
    (keys, values): (&Tensor, &Tensor),
    tables: &StepTables,
    sinks: Option<&Tensor>,
    out: &Tensor,
) -> Result<()> {
    let gpu = Gpu::of(query)?;
    let AttendedHeads { heads, kv_heads, head_dim, value_dim, .. } = *shape;
    let Some(width) = WIDTHS.iter().find(|width| value_dim <= **width) else {
        bail!("no kernel for values of {value_dim} elements")
    };
    let rows = query.dim(0)?;
    let splits = tables.most_seen.div_ceil(SPLIT).max(1);
    let partial = match splits {
        1 => None,
        _ => Some(gpu.empty((rows, heads, splits, 2 + value_dim), DType::F32)?),
    };
    let arguments = AttendRows {
        query: address(query)?,
        keys: address(keys)?,
        values: address(values)?,
        sequence: tables.sequences()?,
        seen: tables.seen()?,
        blocks: tables.blocks()?,
        sinks: sinks.map_or(Ok(0), address)?,
        out: address(out)?,
        partial: partial.as_ref().map_or(Ok(0), address)?,
        softcap: shape.softcap,
        heads: int(heads)?,
        kv_heads: int(kv_heads)?,
        head_dim: int(head_dim)?,
        value_dim: int(value_dim)?,
        value_stride: int(values.dim(2)?)?,
        room: int(keys.dim(1)?)?,
        table: int(tables.table)?,
        window: int(shape.window)?,
        splits: int(splits)?,
    };
    let parts = (heads / kv_heads.max(1)).div_ceil(heads_together(*width));
    // Heads that share keys are together where there is work for the whole GPU.
    let is_short_of_work = rows * kv_heads * parts * splits < gpu.limits()?.multiprocessors;
    let numbers = VECTOR / query.dtype().size_in_bytes();
    let in_vectors = head_dim == *width
        && value_dim == *width
        && width / numbers <= WARP as usize
        && arguments.value_stride % int(numbers)? == 0
        && (arguments.query | arguments.keys | arguments.values).is_multiple_of(VECTOR as u64);
    let group = heads / kv_heads.max(1);
    let (kernel, form, parts, shared) = if in_vectors {
        let together = if is_short_of_work || group < 2 { 1 } else { VECTOR_HEADS };
        let floats = ATTEND_WARPS * together * (width + 2);
        let parts = kv_heads * group.div_ceil(together);
        ("attend_vectors", format!("_{width}_{together}"), parts, floats * size_of::<f32>())
    } else if is_short_of_work {
        ("attend_heads", format!("_{width}"), heads, shared_of_attend(head_dim, value_dim, 1))
    } else {
        let together = heads_together(*width);
        ("attend_rows", format!("_{width}"), kv_heads * parts, shared_of_attend(head_dim, value_dim, together))
    };
    let config = LaunchConfig {
        grid_dim: (rows as u32, parts as u32, splits as u32),
        block_dim: (ATTEND_WARPS as u32 * WARP, 1, 1),
        shared_mem_bytes: shared as u32,
    };
    gpu.launch(kernel, query, &form, config, &arguments)?;
    if partial.is_some() {
        let config =
            LaunchConfig { grid_dim: (rows as u32, heads as u32, 1), block_dim: (4 * WARP, 1, 1), shared_mem_bytes: 0 };
        gpu.launch("join_splits", query, "", config, &arguments)?;
    }
    Ok(())
}

/// Attention of a piece of a prompt to its places in `out`, on tensor cores; false where the kernel does not serve its
/// shape. The piece is that of the sequence with this number, and has these rows of the step.
pub(crate) fn attend_piece(
    query: &Tensor,
    shape: &AttendedHeads,
    (keys, values): (&Tensor, &Tensor),
    (tables, sequence): (&StepTables, usize),
    (rows, past): (Range<usize>, usize),
    sinks: Option<&Tensor>,
    out: &Tensor,
) -> Result<bool> {
    let AttendedHeads { heads, kv_heads, head_dim, value_dim, .. } = *shape;
    let width = WIDTHS_OF_PIECES.iter().find(|width| value_dim <= **width);
    let narrow = matches!(query.dtype(), DType::F16 | DType::BF16);
    let whole = head_dim.is_multiple_of(PIECE_SIDE) && value_dim.is_multiple_of(PIECE_SIDE);
    let value_stride = values.dim(2)?;
    let shared = |stages: usize| {
        let keys = if value_dim <= 128 { PIECE_KEYS } else { PIECE_KEYS / 2 };
        let (of_key, of_value) = (head_dim + PIECE_BEHIND, value_dim + PIECE_BEHIND);
        (PIECE_ROWS * of_key + stages * keys * (of_key + of_value)) * size_of::<u16>()
    };
    // The next keys come beside the products of those before, where both have room.
    let stages = [2, 1].into_iter().find(|stages| shared(*stages) <= MOST_SHARED_BYTES);
    let in_vectors = value_stride.is_multiple_of(VECTOR / size_of::<u16>());
    let (Some(width), true, true, true, Some(stages)) = (width, narrow, whole, in_vectors, stages) else {
        return Ok(false);
    };
    let arguments = AttendPiece {
        query: address(query)?,
        keys: address(keys)?,
        values: address(values)?,
        blocks: tables.blocks()? + (sequence * tables.table * size_of::<u32>()) as u64,
        sinks: sinks.map_or(Ok(0), address)?,
        out: address(out)?,
        softcap: shape.softcap,
        heads: int(heads)?,
        kv_heads: int(kv_heads)?,
        head_dim: int(head_dim)?,
        value_dim: int(value_dim)?,
        value_stride: int(value_stride)?,
        room: int(keys.dim(1)?)?,
        window: int(shape.window)?,
        first_row: int(rows.start)?,
        rows: int(rows.len())?,
        past: int(past)?,
        stages: int(stages)?,
    };
    let config = LaunchConfig {
        grid_dim: (rows.len().div_ceil(PIECE_ROWS) as u32, heads as u32, 1),
        block_dim: (PIECE_WARPS * WARP, 1, 1),
        shared_mem_bytes: shared(stages) as u32,
    };
    Gpu::of(query)?.launch("attend_piece", query, &format!("_{width}"), config, &arguments)?;
    Ok(true)
}

/// Softmax of scores `[heads, rows, keys]` in place, of rows behind `past` tokens.
pub(crate) fn soften(
    scores: &Tensor,
    rows: usize,
    past: usize,
    shape: &AttendedHeads,
    sinks: Option<&Tensor>,
) -> Result<()> {
    let keys = scores.dim(candle_core::D::Minus1)?;
    let arguments = SoftenRows {
        scores: address(scores)?,
        sinks: sinks.map_or(Ok(0), address)?,
        softcap: shape.softcap,
        rows: int(rows)?,
        keys: int(keys)?,
        past: int(past)?,
        window: int(shape.window)?,
    };
    let config = LaunchConfig {
        grid_dim: ((scores.elem_count() / keys.max(1)) as u32, 1, 1),
        block_dim: (SOFTEN_THREADS, 1, 1),
        shared_mem_bytes: WARP * size_of::<f32>() as u32,
    };
    Gpu::of(scores)?.launch("soften_rows", scores, "", config, &arguments)
}

impl StepTables {
    fn at(&self, first: usize) -> Result<u64> {
        Ok(address(&self.numbers)? + (first * size_of::<u32>()) as u64)
    }

    fn places(&self) -> Result<u64> {
        self.at(0)
    }

    fn sequences(&self) -> Result<u64> {
        self.at(self.rows)
    }

    fn seen(&self) -> Result<u64> {
        self.at(2 * self.rows)
    }

    fn blocks(&self) -> Result<u64> {
        self.at(3 * self.rows)
    }
}

/// Query heads that a block of threads serves, with values of at most this width.
fn heads_together(width: usize) -> usize {
    (SUMS_OF_LANE * WARP as usize / width).min(8)
}

fn shared_of_attend(head_dim: usize, value_dim: usize, heads: usize) -> usize {
    let weights = heads * head_dim + ATTEND_WARPS * heads * WARP as usize;
    (weights.max(ATTEND_WARPS * heads * value_dim) + 2 * ATTEND_WARPS * heads) * size_of::<f32>()
}

#[cfg(test)]
mod tests {
    use model_boss_weights::gguf::TensorType;

    use super::super::arguments::{AddNorm, MultiplyRows, SiluGate, WidenBlocks};
    use super::super::launch::TEXTS;
    use super::super::products::MOST_ROWS;
    use super::*;

    /// Bytes of the arguments of the kernel of this name, in the compiler's text.
    fn bytes_of(text: &str, kernel: &str) -> Option<usize> {
        let (_, entry) = text.split_once(&format!(".entry {kernel}("))?;
        let (_, size) = entry.split_once("_param_0[")?;
        size.split_once(']')?.0.parse().ok()
    }

    #[test]
    fn gp_2_every_kernel_of_blocks_has_its_name_and_the_arguments_that_it_is_given() {
        for (kind, text) in super::super::blocks::TEXTS {
            let check = |name: String, bytes: usize| assert_eq!(bytes_of(text, &name), Some(bytes), "{name}");
            for kernel in ["multiply", "multiply_gated"] {
                [1, 2, 4].iter().for_each(|tiles| check(format!("{kernel}_{kind}_{tiles}"), size_of::<MultiplyRows>()));
            }
            check(format!("multiply_normed_{kind}_1"), size_of::<MultiplyRows>());
            check(format!("multiply_gated_normed_{kind}_1"), size_of::<MultiplyRows>());
            if kind != TensorType::BF16 {
                ["f32", "bf16"].iter().for_each(|of| check(format!("widen_{kind}_{of}"), size_of::<WidenBlocks>()));
            }
        }
    }

    #[test]
    fn gp_2_every_kernel_has_its_name_and_the_arguments_that_it_is_given() {
        for (of, text) in TEXTS {
            let check = |kernel: &str, form: &str, bytes: usize| {
                let name = format!("{kernel}_{of}{form}");
                assert_eq!(bytes_of(text, &name), Some(bytes), "{name}");
            };
            check("place_rows", "", size_of::<PlaceRows>());
            check("join_splits", "", size_of::<AttendRows>());
            check("soften_rows", "", size_of::<SoftenRows>());
            check("add_norm", "", size_of::<AddNorm>());
            check("silu_gate", "", size_of::<SiluGate>());
            for rows in 1..=MOST_ROWS {
                for kernel in ["multiply", "multiply_normed", "multiply_gated", "multiply_gated_normed"] {
                    check(kernel, &format!("_{}", rows.next_power_of_two()), size_of::<MultiplyRows>());
                }
            }
            for width in WIDTHS {
                check("attend_rows", &format!("_{width}"), size_of::<AttendRows>());
                check("attend_heads", &format!("_{width}"), size_of::<AttendRows>());
            }
            for width in if of == "f32" { &WIDTHS[..2] } else { &WIDTHS[..3] } {
                [1, VECTOR_HEADS].iter().for_each(|heads| {
                    check("attend_vectors", &format!("_{width}_{heads}"), size_of::<AttendRows>());
                });
            }
            for width in WIDTHS_OF_PIECES.iter().filter(|_| of != "f32") {
                check("attend_piece", &format!("_{width}"), size_of::<AttendPiece>());
            }
        }
    }
}
