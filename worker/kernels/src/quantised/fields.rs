//! The fields of a block type's blocks, and their places in a tile of sixteen rows.

use super::formats::Format;
use crate::lanes::LANES;

/// A field of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) piece: TilePiece,
}

/// The parts of a field that are never split. A tile has the same part of all rows beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TilePiece {
    Byte,
    /// Two bytes.
    Half,
    /// Four bytes.
    Word,
    /// Four bytes with a bit for each of 32 elements. A tile has those of the elements `4 u` to `4 u + 3` at one place
    /// `u` of each byte, where the products need them.
    Bits,
}

impl TilePiece {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word | Self::Bits => 4,
        }
    }
}

const fn field(start: usize, len: usize, piece: TilePiece) -> Field {
    Field { start, len, piece }
}

/// The fields of a block type's blocks, in their order. They cover the whole block.
pub(super) fn fields(format: Format) -> &'static [Field] {
    use TilePiece::{Bits, Byte, Half, Word};
    match format {
        // The scale; the quants.
        Format::Q4_0 | Format::Iq4Nl => const { &[field(0, 2, Half), field(2, 16, Word)] },
        Format::Q8_0 => const { &[field(0, 2, Half), field(2, 32, Word)] },
        Format::Mxfp4 => const { &[field(0, 1, Byte), field(1, 16, Word)] },
        // The scale and the minimum; the quants.
        Format::Q4_1 => const { &[field(0, 4, Half), field(4, 16, Word)] },
        // The scale; high bits; low bits.
        Format::Q5_0 => const { &[field(0, 2, Half), field(2, 4, Bits), field(6, 16, Word)] },
        // The scale and the minimum; high bits; low bits.
        Format::Q5_1 => const { &[field(0, 4, Half), field(4, 4, Bits), field(8, 16, Word)] },
        // Scales and minimums; quants; the scale of scales and that of minimums.
        Format::Q2K => const { &[field(0, 16, Byte), field(16, 64, Word), field(80, 4, Half)] },
        // High bits and low bits; scales; the scale of scales.
        Format::Q3K => const { &[field(0, 96, Word), field(96, 12, Byte), field(108, 2, Half)] },
        // The scale of scales and that of minimums; scales and minimums; quants.
        Format::Q4K => const { &[field(0, 4, Half), field(4, 12, Byte), field(16, 128, Word)] },
        // As Q4_K, with high bits before the low ones.
        Format::Q5K => const { &[field(0, 4, Half), field(4, 12, Byte), field(16, 160, Word)] },
        // Low bits and high bits; scales; the scale of scales.
        Format::Q6K => const { &[field(0, 192, Word), field(192, 16, Byte), field(208, 2, Half)] },
        // The scale of scales; high bits of scales, low bits of scales; quants.
        Format::Iq4Xs => const { &[field(0, 2, Half), field(2, 6, Byte), field(8, 128, Word)] },
        // The scale and both parts of the offset; the quants.
        Format::I8Affine => const { &[field(0, 6, Half), field(6, 32, Word)] },
        // The quants; the scale.
        Format::Tq1_0 => const { &[field(0, 52, Word), field(52, 2, Half)] },
        Format::Tq2_0 => const { &[field(0, 64, Word), field(64, 2, Half)] },
    }
}

/// The pieces of one row's block: the offset of each in the block, its offset in the tile, and its kind.
pub(super) fn places(fields: &'static [Field], lane: usize) -> impl Iterator<Item = (usize, usize, TilePiece)> {
    fields.iter().flat_map(move |&Field { start, len, piece }| {
        let size = piece.bytes();
        (0..len / size).map(move |number| {
            // In the tile, each earlier byte of the block occurs once for each of the sixteen rows.
            (start + number * size, (start + number * size) * LANES + lane * size, piece)
        })
    })
}

/// Reorders the bits of [`TilePiece::Bits`]: bit `4 u + k` becomes bit `8 k + u`.
#[inline(always)]
pub(super) fn spread_bits(word: u32) -> u32 {
    unshuffled(unshuffled(word))
}

/// The inverse of [`spread_bits`].
#[inline(always)]
pub(super) fn gathered_bits(word: u32) -> u32 {
    shuffled(shuffled(word))
}

/// Moves even bits to the lower half and odd bits to the upper half, in their order (Warren, *Hacker's Delight*, 7-2).
#[inline(always)]
fn unshuffled(word: u32) -> u32 {
    [(1, 0x2222_2222), (2, 0x0c0c_0c0c), (4, 0x00f0_00f0), (8, 0x0000_ff00)].into_iter().fold(word, exchanged)
}

#[inline(always)]
fn shuffled(word: u32) -> u32 {
    [(8, 0x0000_ff00), (4, 0x00f0_00f0), (2, 0x0c0c_0c0c), (1, 0x2222_2222)].into_iter().fold(word, exchanged)
}

/// Exchanges the bits of a mask with those that are `shift` places above.
#[inline(always)]
fn exchanged(word: u32, (shift, mask): (u32, u32)) -> u32 {
    let differing = (word ^ word >> shift) & mask;
    word ^ differing ^ differing << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cover_their_blocks() {
        for kind in Format::kinds() {
            let format = Format::of(kind).unwrap();
            let mut end = 0;
            for field in fields(format) {
                assert_eq!(field.start, end, "{kind}");
                assert_eq!(field.len % field.piece.bytes(), 0, "{kind}");
                end += field.len;
            }
            assert_eq!(end, format.block_bytes(), "{kind}");
        }
    }

    #[test]
    fn bits_lie_where_products_need_them() {
        for bit in 0..32 {
            let spread = spread_bits(1 << bit);
            assert_eq!(spread, 1 << (8 * (bit % 4) + bit / 4));
            assert_eq!(gathered_bits(spread), 1 << bit);
        }
        assert_eq!(gathered_bits(spread_bits(0x1234_5678)), 0x1234_5678);
    }
}
