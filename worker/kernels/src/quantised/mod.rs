//! Matrices of quantised blocks on the CPU, multiplied in their stored form.
//!
//! Both sides of a product become small integers: activations are rounded to 8 bits with a scale per 32 of them, and
//! weights are the integers that they are stored as. Matrices are stored in [`tiles`] of sixteen rows, and
//! [`products`] multiplies a tile by the machine's instructions. A row's result does not depend on the other rows of
//! the step.

mod fields;
mod formats;
mod interleave;
mod products;
mod tiles;

use bytes::{Bytes, BytesMut};
use model_boss_weights::gguf::{TensorType, dequantise};

pub(crate) use formats::Format;

use tiles::{TileLayout, Tiles};

use crate::kernel::{MatrixKernel, ProductInput};
use crate::lanes::Instructions;

const NOT_FINITE: &str = "holds NaN or infinity";

/// The name of the order of bytes that products need.
const TILES: &str = "tiles16";

/// A matrix `[outs, depth]` in blocks along its depth.
pub(crate) struct Quantised {
    format: Format,
    tiles: Tiles,
    outs: usize,
    depth: usize,
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
        let layout = TileLayout::new(Instructions::current(), format, shape[1]);
        let finite = layout.copy(blocks, &mut into, |rows| format.scales_are_finite(rows));
        if finite { Self::from_arranged(kind, shape, into.freeze()) } else { Err(NOT_FINITE.to_owned()) }
    }

    /// A matrix of bytes in the order of [`Self::arrange`]; they are not copied.
    pub(crate) fn from_arranged(kind: TensorType, shape: [usize; 2], blocks: Bytes) -> Result<Self, String> {
        Self::with_instructions(Instructions::current(), kind, shape, blocks)
    }

    pub(crate) fn with_instructions(
        instructions: Instructions,
        kind: TensorType,
        shape: [usize; 2],
        blocks: Bytes,
    ) -> Result<Self, String> {
        let format = Self::fits(kind, shape, blocks.len())?;
        let [outs, depth] = shape;
        let tiles = Tiles::from_arranged(TileLayout::new(instructions, format, depth), blocks);
        Ok(Self { format, tiles, outs, depth })
    }

    /// Reorders a file's bytes in place, into the order that products need.
    pub(crate) fn arrange(kind: TensorType, shape: [usize; 2], blocks: &mut [u8]) {
        if let Some(format) = Format::of(kind) {
            TileLayout::new(Instructions::current(), format, shape[1]).arrange(blocks);
        }
    }

    /// The name of the order that [`Self::arrange`] makes.
    pub(crate) fn arrangement() -> &'static str {
        TILES
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
}

impl MatrixKernel for Quantised {
    fn outs(&self) -> usize {
        self.outs
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn bytes(&self) -> u64 {
        self.tiles.len() as u64
    }

    fn rounds(&self) -> bool {
        true
    }

    fn multiply(&self, x: &ProductInput<'_>) -> Vec<f32> {
        match &x.rounded {
            Some(x) if self.outs > 0 => self.tiles.product(x),
            _ => vec![0.0; self.outs * x.rows],
        }
    }

    fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        let rounded = (!x.is_empty()).then(|| self.tiles.quantise(x, rows, self.depth));
        self.multiply(&ProductInput { values: x, rows, rounded })
    }

    fn rows(&self, rows: &[u32]) -> Vec<f32> {
        let mut values = vec![0.0; rows.len() * self.depth];
        for (row, values) in rows.iter().zip(values.chunks_mut(self.depth.max(1))) {
            // Sizes were checked when the matrix was made. The values of a row outside of it stay 0.
            let _ = dequantise(self.format.kind(), &self.tiles.row(*row as usize), values);
        }
        values
    }
}

#[cfg(test)]
mod tests;
