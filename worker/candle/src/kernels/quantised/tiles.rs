//! A matrix in tiles of sixteen rows, whose blocks' bytes are interleaved. One vector instruction works on the same few
//! elements of all sixteen rows, and no sum runs across lanes. The number of bytes is that of the file. Tiles are used
//! for block types and machines with a product in [`super::vnni`].

use bytes::Bytes;
use rayon::prelude::*;

use super::fields::{Field, LANES, fields, places};
use super::formats::Format;
use super::interleave::interleave;
use super::vnni::{self, Vnni};
use crate::kernels::activations::Activations;
use crate::kernels::product::WORTH_SHARING;

/// Rows of activations that use a part of the matrix together. They stay in the cache while its tiles change.
const ROWS_TOGETHER: usize = 64;

/// A matrix `[outs, depth]` in tiles.
pub(super) struct Tiles {
    format: Format,
    fields: &'static [Field],
    bytes: Bytes,
    /// The bytes of one tile over the whole depth.
    tile_bytes: usize,
    instructions: Vnni,
}

impl Tiles {
    /// Copies rows of blocks, in the layout of a file, into tiles in other memory of the same size. The result is
    /// `None` if this format has no tiles. Each row is passed to `check` once; the first `false` ends the copy and is
    /// returned.
    pub(super) fn copy(
        format: Format,
        blocks: &[u8],
        row_bytes: usize,
        into: &mut [u8],
        check: impl Fn(&[u8]) -> bool + Sync,
    ) -> Option<bool> {
        let fields = fields(format).filter(|_| Self::fit(format, blocks.len(), row_bytes))?;
        let (instructions, tile_bytes) = (Vnni::detect()?, LANES * row_bytes);
        let copy = |(tile, rows): (&mut [u8], &[u8])| {
            interleave(instructions, fields, format.block_bytes(), rows, tile);
            check(rows)
        };
        Some(into.par_chunks_mut(tile_bytes).zip(blocks.par_chunks(tile_bytes)).all(copy))
    }

    /// Tiles of bytes in the order of [`Self::arrange`]. Returns the bytes if the format has no tiles.
    pub(super) fn from_arranged(format: Format, bytes: Bytes, row_bytes: usize) -> Result<Self, Bytes> {
        match (fields(format), Vnni::detect()) {
            (Some(fields), Some(instructions)) if Self::fit(format, bytes.len(), row_bytes) => {
                Ok(Self { format, fields, bytes, tile_bytes: LANES * row_bytes, instructions })
            }
            _ => Err(bytes),
        }
    }

    /// Interleaves rows of blocks in place, if the format has tiles.
    pub(super) fn arrange(format: Format, blocks: &mut [u8], row_bytes: usize) {
        let fields = fields(format).filter(|_| Self::fit(format, blocks.len(), row_bytes));
        let (Some(fields), Some(instructions)) = (fields, Vnni::detect()) else { return };
        let mut rows = vec![0; LANES * row_bytes];
        for tile in blocks.chunks_exact_mut(LANES * row_bytes) {
            rows.copy_from_slice(tile);
            interleave(instructions, fields, format.block_bytes(), &rows, tile);
        }
    }

    /// Whether a matrix of `bytes` is kept in tiles on this machine.
    pub(super) fn fit(format: Format, bytes: usize, row_bytes: usize) -> bool {
        let tile_bytes = LANES * row_bytes;
        fields(format).is_some() && Vnni::detect().is_some() && tile_bytes > 0 && bytes.is_multiple_of(tile_bytes)
    }

    /// Bytes of all tiles.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The blocks of one row in the layout of the file; empty for a row outside of the matrix.
    pub(super) fn row(&self, row: usize) -> Vec<u8> {
        let (tile, lane) = (row / LANES, row % LANES);
        let Some(tile) = self.bytes.get(tile * self.tile_bytes..).and_then(|rest| rest.get(..self.tile_bytes)) else {
            return Vec::new();
        };
        let block_bytes = self.format.block_bytes();
        let mut blocks = vec![0; self.tile_bytes / LANES];
        for (block, tile) in blocks.chunks_exact_mut(block_bytes).zip(tile.chunks_exact(LANES * block_bytes)) {
            for (of_block, of_tile, size) in places(self.fields, lane) {
                block[of_block..of_block + size].copy_from_slice(&tile[of_tile..of_tile + size]);
            }
        }
        blocks
    }

    /// The product `x Wᵀ`, of shape `[rows, outs]`.
    pub(super) fn product(&self, x: &Activations) -> Vec<f32> {
        let rows = x.rows();
        let tiles = self.bytes.len() / self.tile_bytes;
        let outs = tiles * LANES;
        let mut y = vec![0.0; rows * outs];
        let shared = rows * outs * x.depth() >= WORTH_SHARING;
        // There are a few more parts than threads, so that a slow part does not delay all others.
        let height = if shared { tiles.div_ceil(4 * rayon::current_num_threads()) } else { tiles };
        let part = |tiles| TilePart { tiles, y: Vec::with_capacity(rows) };
        let mut parts: Vec<TilePart<'_>> = self.bytes.chunks(height * self.tile_bytes).map(part).collect();
        for row in y.chunks_exact_mut(outs) {
            for (part, y) in parts.iter_mut().zip(row.chunks_mut(height * LANES)) {
                part.y.push(y);
            }
        }
        let run = |TilePart { tiles, y }: &mut TilePart<'_>| {
            for first in (0..rows).step_by(ROWS_TOGETHER) {
                let together = first..(first + ROWS_TOGETHER).min(rows);
                for (number, tile) in tiles.chunks_exact(self.tile_bytes).enumerate() {
                    let place = (number * LANES, &mut y[together.clone()]);
                    vnni::tile(self.instructions, self.format, tile, x, together.clone(), place);
                }
            }
        };
        if shared {
            parts.par_iter_mut().with_max_len(1).for_each(run);
        } else {
            parts.iter_mut().for_each(run);
        }
        y
    }
}

/// Some tiles, and the output of their products.
struct TilePart<'a> {
    tiles: &'a [u8],
    /// The results for each row of activations: as many as the tiles have rows.
    y: Vec<&'a mut [f32]>,
}
