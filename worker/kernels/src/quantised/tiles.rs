//! A matrix in tiles of sixteen rows, whose blocks' bytes are interleaved. One vector instruction works on the same few
//! elements of all sixteen rows, and no sum runs across lanes. The number of bytes is that of the file, and their order
//! is the same on all machines.
//!
//! Rows that fill no tile keep their order. They are interleaved with rows of zeros for each product.

use bytes::Bytes;
use rayon::prelude::*;

use super::fields::{Field, fields};
use super::formats::Format;
use super::interleave::{interleave, row_of};
use super::products::{StripInput, multiply_tile, multiply_tiles, prepare_strips};
use crate::activations::Activations;
use crate::cores::{WORTH_SHARING, cores};
use crate::lanes::{Instructions, LANES};

/// The form of a matrix in tiles.
#[derive(Clone, Copy)]
pub(super) struct TileLayout {
    format: Format,
    fields: &'static [Field],
    /// The bytes of one row.
    row_bytes: usize,
    instructions: Instructions,
}

impl TileLayout {
    /// The form of a matrix with this number of columns, which is a multiple of the blocks' length.
    pub(super) fn new(instructions: Instructions, format: Format, depth: usize) -> Self {
        let row_bytes = depth / format.block_len() * format.block_bytes();
        Self { format, fields: fields(format), row_bytes, instructions }
    }

    fn tile_bytes(&self) -> usize {
        LANES * self.row_bytes
    }

    /// Copies rows of blocks, in the layout of a file, into tiles in other memory of the same size. Each row is passed
    /// to `check` once; the first `false` ends the copy and is returned.
    pub(super) fn copy(&self, blocks: &[u8], into: &mut [u8], check: impl Fn(&[u8]) -> bool + Sync) -> bool {
        if self.row_bytes == 0 {
            return true;
        }
        let copy = |(tile, rows): (&mut [u8], &[u8])| {
            if rows.len() == self.tile_bytes() {
                self.interleave(rows, tile);
            } else {
                tile.copy_from_slice(rows);
            }
            check(rows)
        };
        into.par_chunks_mut(self.tile_bytes()).zip(blocks.par_chunks(self.tile_bytes())).all(copy)
    }

    /// Interleaves rows of blocks in place.
    pub(super) fn arrange(&self, blocks: &mut [u8]) {
        if self.row_bytes == 0 {
            return;
        }
        let mut rows = vec![0; self.tile_bytes()];
        for tile in blocks.chunks_exact_mut(self.tile_bytes()) {
            rows.copy_from_slice(tile);
            self.interleave(&rows, tile);
        }
    }

    fn interleave(&self, rows: &[u8], tile: &mut [u8]) {
        interleave(self.instructions, self.fields, self.format.block_bytes(), rows, tile);
    }
}

/// A matrix `[outs, depth]` in tiles.
pub(super) struct Tiles {
    layout: TileLayout,
    bytes: Bytes,
}

impl Tiles {
    /// Tiles of bytes in the order of [`TileLayout::arrange`]: those of whole rows.
    pub(super) fn from_arranged(layout: TileLayout, bytes: Bytes) -> Self {
        Self { layout, bytes }
    }

    /// Activations in the form in which the matrix is multiplied with them.
    pub(super) fn quantise(&self, x: &[f32], rows: usize, depth: usize) -> Activations {
        Activations::quantise_by(self.layout.instructions, x, rows, depth)
    }

    /// Bytes of all rows.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The whole tiles, and the rows after them.
    fn parts(&self) -> (&[u8], &[u8]) {
        let tile_bytes = self.layout.tile_bytes().max(1);
        self.bytes.split_at(self.bytes.len() / tile_bytes * tile_bytes)
    }

    /// The blocks of one row in the layout of the file; empty for a row outside of the matrix.
    pub(super) fn row(&self, row: usize) -> Vec<u8> {
        let TileLayout { format, fields, row_bytes, .. } = self.layout;
        let (tiles, rest) = self.parts();
        let (tile, lane) = (row / LANES * self.layout.tile_bytes(), row % LANES);
        if let Some(tile) = tiles.get(tile..).and_then(|from| from.get(..self.layout.tile_bytes())) {
            return row_of(fields, format.block_bytes(), tile, lane);
        }
        let of_rest = (row * row_bytes).checked_sub(tiles.len()).and_then(|start| rest.get(start..));
        of_rest.and_then(|from| from.get(..row_bytes)).unwrap_or_default().to_vec()
    }

    /// The product `x Wᵀ`, of shape `[rows, outs]`.
    pub(super) fn product(&self, x: &Activations) -> Vec<f32> {
        let (rows, tile_bytes) = (x.rows(), self.layout.tile_bytes());
        if self.bytes.is_empty() {
            return Vec::new();
        }
        let (tiles, rest) = self.parts();
        let rest_rows = rest.len() / self.layout.row_bytes;
        let count = tiles.len() / tile_bytes;
        let outs = count * LANES + rest_rows;
        let mut y = vec![0.0; rows * outs];
        let shared = cores() > 1 && rows * outs * x.depth() >= WORTH_SHARING;
        // There are a few more parts than threads, so that a slow part does not delay all others.
        let height = if shared { count.div_ceil(4 * cores()) } else { count }.max(1);
        let part = |tiles| TilePart { tiles, y: Vec::with_capacity(rows) };
        let mut parts: Vec<TilePart<'_>> = tiles.chunks(height * tile_bytes).map(part).collect();
        let mut ends: Vec<&mut [f32]> = Vec::with_capacity(rows);
        for row in y.chunks_exact_mut(outs) {
            let (of_tiles, of_rest) = row.split_at_mut(count * LANES);
            for (part, y) in parts.iter_mut().zip(of_tiles.chunks_mut(height * LANES)) {
                part.y.push(y);
            }
            ends.push(of_rest);
        }
        let strips = x.strips().map(|strips| prepare_strips(self.layout.instructions, self.layout.format, strips));
        let x = match &strips {
            Some(strips) => TileInput::Strips(strips),
            None => TileInput::Rows(x),
        };
        let run = |part: &mut TilePart<'_>| self.multiply(part, x);
        if shared {
            parts.par_iter_mut().with_max_len(1).for_each(run);
        } else {
            parts.iter_mut().for_each(run);
        }
        if rest_rows > 0 {
            self.multiply_rest(rest, x, ends);
        }
        y
    }

    fn multiply(&self, TilePart { tiles, y }: &mut TilePart<'_>, x: TileInput<'_>) {
        let TileLayout { instructions, format, .. } = self.layout;
        let tile_bytes = self.layout.tile_bytes();
        match x {
            TileInput::Strips(x) => multiply_tiles(instructions, format, (tiles, tile_bytes), x, y),
            TileInput::Rows(x) => {
                for (number, tile) in tiles.chunks_exact(tile_bytes).enumerate() {
                    multiply_tile(instructions, format, tile, x, 0..x.rows(), (number * LANES, y));
                }
            }
        }
    }

    /// Multiplies rows that fill no tile; `y` has a result of each for each row of activations.
    fn multiply_rest(&self, rest: &[u8], x: TileInput<'_>, y: Vec<&mut [f32]>) {
        let mut rows = vec![0; self.layout.tile_bytes()];
        rows[..rest.len()].copy_from_slice(rest);
        let mut tile = vec![0; rows.len()];
        self.layout.interleave(&rows, &mut tile);
        let mut wide = vec![0.0; y.len() * LANES];
        let part = TilePart { tiles: &tile, y: wide.chunks_exact_mut(LANES).collect() };
        self.multiply(&mut { part }, x);
        for (y, wide) in y.into_iter().zip(wide.chunks_exact(LANES)) {
            let count = y.len();
            y.copy_from_slice(&wide[..count]);
        }
    }
}

/// The activations of a product.
#[derive(Clone, Copy)]
enum TileInput<'a> {
    Rows(&'a Activations),
    Strips(&'a StripInput<'a>),
}

/// Some tiles, and the output of their products.
struct TilePart<'a> {
    tiles: &'a [u8],
    /// The results for each row of activations: as many as the tiles have rows.
    y: Vec<&'a mut [f32]>,
}
