//! Matrices of quantised blocks on the CPU, multiplied in their stored form.
//!
//! Both sides of a product become small integers: activations are rounded to 8 bits with a scale per 32 of them. Then
//! there are two implementations. The common block types on machines with AVX-512 are stored in [`tiles`] of sixteen
//! rows. All others are unpacked into one plain form ([`crate::kernels::unpacked`]), so that one inner loop serves
//! every block type. All rows of a step share the cost of unpacking. In both implementations, sums within 32 elements
//! are exact integers, and further sums have one fixed order. A row's result does not depend on the other rows of the
//! step.

mod dot;
mod fields;
mod formats;
mod interleave;
mod tiles;
mod vnni;

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use model_boss_weights::gguf::{TensorType, dequantise};
use rayon::prelude::*;

pub(crate) use formats::Format;

use dot::QuantisedRows;
use tiles::Tiles;

use crate::kernels::activations::Activations;
use crate::kernels::kernel::{MatrixKernel, ProductInput, ROWS};
use crate::kernels::product::{WORTH_SHARING, transposed};
use crate::kernels::unpacked::UnpackedChunk;

/// Rows of the matrix that are unpacked together. They stay in the cache while all rows of activations use them.
const UNPACKED_ROWS: usize = 8;

/// Blocks that are copied at a time, so that their check finds them in the cache.
const COPIED_BLOCKS: usize = 256;

const NOT_FINITE: &str = "holds NaN or infinity";

/// A matrix `[outs, depth]` in blocks along its depth.
pub(crate) struct Quantised {
    format: Format,
    blocks: OrderedBlocks,
    outs: usize,
    depth: usize,
}

/// The blocks' bytes, in one of two orders.
enum OrderedBlocks {
    /// The rows follow one another, as in the file.
    Rows(Bytes),
    /// The matrix is in tiles of sixteen rows.
    Tiles(Tiles),
}

impl Quantised {
    /// Copies a file's bytes into new memory. The error describes the bytes' fault.
    #[cfg(test)]
    pub(crate) fn new(kind: TensorType, shape: [usize; 2], blocks: &[u8]) -> Result<Self, String> {
        Self::copied(kind, shape, blocks, BytesMut::zeroed(blocks.len()))
    }

    /// Copies a file's bytes to memory of the same size, with check and reordering in the same pass. The error
    /// describes the bytes' fault.
    pub(crate) fn copied(
        kind: TensorType,
        shape: [usize; 2],
        blocks: &[u8],
        mut into: BytesMut,
    ) -> Result<Self, String> {
        let format = Self::fits(kind, shape, blocks.len())?;
        let row_bytes = shape[1] / format.block_len() * format.block_bytes();
        let finite = |blocks: &[u8]| format.scales_are_finite(blocks);
        let all_finite = Tiles::copy(format, blocks, row_bytes, &mut into, finite).unwrap_or_else(|| {
            let part = COPIED_BLOCKS * format.block_bytes();
            into.par_chunks_mut(part).zip(blocks.par_chunks(part)).all(|(into, blocks)| {
                into.copy_from_slice(blocks);
                finite(blocks)
            })
        });
        if all_finite { Self::from_arranged(kind, shape, into.freeze()) } else { Err(NOT_FINITE.to_owned()) }
    }

    /// A matrix of bytes in the order of [`Self::arrange`]; they are not copied.
    pub(crate) fn from_arranged(kind: TensorType, shape: [usize; 2], blocks: Bytes) -> Result<Self, String> {
        let format = Self::fits(kind, shape, blocks.len())?;
        let [outs, depth] = shape;
        let row_bytes = depth / format.block_len() * format.block_bytes();
        let blocks = match Tiles::from_arranged(format, blocks, row_bytes) {
            Ok(tiles) => OrderedBlocks::Tiles(tiles),
            Err(rows) => OrderedBlocks::Rows(rows),
        };
        Ok(Self { format, blocks, outs, depth })
    }

    /// Reorders a file's bytes in place, into the order that products need.
    pub(crate) fn arrange(kind: TensorType, shape: [usize; 2], blocks: &mut [u8]) {
        if let Some(format) = Format::of(kind) {
            Tiles::arrange(format, blocks, shape[1] / format.block_len() * format.block_bytes());
        }
    }

    /// The name of the order that [`Self::arrange`] makes on this machine.
    pub(crate) fn arrangement(kind: TensorType, shape: [usize; 2]) -> &'static str {
        let tiled = Format::of(kind).is_some_and(|format| {
            let row_bytes = shape[1] / format.block_len() * format.block_bytes();
            Tiles::fit(format, shape[0] * row_bytes, row_bytes)
        });
        if tiled { "tiles16" } else { ROWS }
    }

    /// Checks that products can use a file's bytes. The error describes the bytes' fault.
    pub(crate) fn check(kind: TensorType, shape: [usize; 2], blocks: &[u8]) -> Result<Format, String> {
        let format = Self::fits(kind, shape, blocks.len())?;
        if format.scales_are_finite(blocks) { Ok(format) } else { Err(NOT_FINITE.to_owned()) }
    }

    fn fits(kind: TensorType, [outs, depth]: [usize; 2], bytes: usize) -> Result<Format, String> {
        let format = Format::of(kind).ok_or_else(|| format!("is stored as {kind}, which has no product"))?;
        if outs.checked_mul(depth).and_then(|all| kind.bytes_of(all as u64)) != Some(bytes as u64) {
            return Err(format!("has {bytes} bytes, which are no {outs} x {depth} of {kind}"));
        }
        Ok(format)
    }

    fn row_bytes(&self) -> usize {
        self.depth / self.format.block_len() * self.format.block_bytes()
    }

    /// A row's blocks in the file's order of bytes; empty for a row outside of the matrix.
    fn row_blocks(&self, row: usize) -> Cow<'_, [u8]> {
        match &self.blocks {
            OrderedBlocks::Tiles(tiles) => tiles.row(row).into(),
            OrderedBlocks::Rows(blocks) => {
                let rest = blocks.get(row * self.row_bytes()..).unwrap_or_default();
                rest.get(..self.row_bytes()).unwrap_or_default().into()
            }
        }
    }

    fn by_rows(&self, blocks: &[u8], x: &Activations) -> Vec<f32> {
        let rows = x.rows();
        let mut by_out = vec![0.0; self.outs * rows];
        let run = |unpacked: &mut Vec<UnpackedChunk>, (y, blocks): (&mut [f32], &[u8])| {
            let rows_of = |y, blocks| QuantisedRows { format: self.format, row_bytes: self.row_bytes(), blocks, x, y };
            for (y, blocks) in y.chunks_mut(UNPACKED_ROWS * rows).zip(blocks.chunks(UNPACKED_ROWS * self.row_bytes())) {
                dot::rows(rows_of(y, blocks), unpacked);
            }
        };
        if rows * self.outs * self.depth < WORTH_SHARING {
            run(&mut Vec::new(), (&mut by_out, blocks));
        } else {
            // There are a few more parts than threads, so that a slow part does not delay all others.
            let part = self.outs.div_ceil(4 * rayon::current_num_threads()).next_multiple_of(UNPACKED_ROWS);
            by_out
                .par_chunks_mut(part * rows)
                .zip(blocks.par_chunks(part * self.row_bytes()))
                .for_each_init(Vec::new, run);
        }
        if rows == 1 { by_out } else { transposed(&by_out, self.outs, rows) }
    }
}

impl MatrixKernel for Quantised {
    fn outs(&self) -> usize {
        self.outs
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn bytes(&self) -> u64 {
        match &self.blocks {
            OrderedBlocks::Rows(blocks) => blocks.len() as u64,
            OrderedBlocks::Tiles(tiles) => tiles.len() as u64,
        }
    }

    fn rounds(&self) -> bool {
        true
    }

    fn multiply(&self, x: &ProductInput<'_>) -> Vec<f32> {
        match (&x.rounded, &self.blocks) {
            (Some(x), OrderedBlocks::Rows(blocks)) if self.outs > 0 => self.by_rows(blocks, x),
            (Some(x), OrderedBlocks::Tiles(tiles)) if self.outs > 0 => tiles.product(x),
            _ => vec![0.0; self.outs * x.rows],
        }
    }

    fn rows(&self, rows: &[u32]) -> Vec<f32> {
        let mut values = vec![0.0; rows.len() * self.depth];
        for (row, values) in rows.iter().zip(values.chunks_mut(self.depth.max(1))) {
            // Sizes were checked when the matrix was made. The values of a row outside of it stay 0.
            let _ = dequantise(self.format.kind(), &self.row_blocks(*row as usize), values);
        }
        values
    }
}

#[cfg(test)]
mod tests;
