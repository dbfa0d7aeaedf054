//! The fields of a block type's blocks, and their places in a tile of sixteen rows.

use super::formats::Format;

/// Rows of a tile.
pub(super) const LANES: usize = 16;

/// A field of a block: its offset, its length, and the length of its pieces, which are never split.
pub(super) type Field = (usize, usize, usize);

/// The fields of a block type's blocks, in their order; `None` for types without a product in tiles.
pub(super) fn fields(format: Format) -> Option<&'static [Field]> {
    match format {
        // Q8_0: the scale; the quants.
        Format::Q8_0 => Some(&[(0, 2, 2), (2, 32, 4)]),
        // Q4_K: the scale of scales and that of minimums; scales and minimums; quants.
        Format::Q4K => Some(&[(0, 2, 2), (2, 2, 2), (4, 12, 1), (16, 128, 4)]),
        // Q6_K: low bits, high bits; scales; the scale of scales.
        Format::Q6K => Some(&[(0, 128, 4), (128, 64, 4), (192, 16, 1), (208, 2, 2)]),
        _ => None,
    }
}

/// The pieces of one row's block: the offset of each in the block, its offset in the tile, and its length.
pub(super) fn places(fields: &'static [Field], lane: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    fields.iter().flat_map(move |&(start, len, size)| {
        (0..len / size).map(move |piece| {
            // In the tile, each earlier byte of the block occurs once for each of the sixteen rows.
            (start + piece * size, (start + piece * size) * LANES + lane * size, size)
        })
    })
}
