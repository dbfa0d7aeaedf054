//! The parts of a block type's blocks, and where they lie in a tile of sixteen rows.

use super::formats::Format;

/// Rows of a tile.
pub(super) const LANES: usize = 16;

/// A part of a block: where it starts, how long it is, and how many bytes of it stay together.
pub(super) type Field = (usize, usize, usize);

/// The parts of a block type's blocks, in their order; `None` for types without a product here.
pub(super) fn fields(format: Format) -> Option<&'static [Field]> {
    match format {
        // Scale; quants.
        Format::Q8_0 => Some(&[(0, 2, 2), (2, 32, 4)]),
        // Scale of scales, scale of minimums; scales and minimums; quants.
        Format::Q4K => Some(&[(0, 2, 2), (2, 2, 2), (4, 12, 1), (16, 128, 4)]),
        // Low bits, high bits; scales; scale of scales.
        Format::Q6K => Some(&[(0, 128, 4), (128, 64, 4), (192, 16, 1), (208, 2, 2)]),
        _ => None,
    }
}

/// Where the pieces of one row's block lie: in the block, in the tile, and how long they are.
pub(super) fn places(fields: &'static [Field], lane: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    fields.iter().flat_map(move |&(start, len, size)| {
        (0..len / size).map(move |piece| {
            // The bytes before it in a block are there sixteen times.
            (start + piece * size, (start + piece * size) * LANES + lane * size, size)
        })
    })
}
