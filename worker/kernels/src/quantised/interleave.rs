//! Interleaving sixteen rows of blocks into one tile, with every piece of a block beside the same piece of the other
//! rows. All weights of a model are interleaved when they are loaded or streamed, so with AVX-512 pieces are moved by
//! whole registers. The module uses the fields of blocks, not their values.

use pulp::NullaryFnOnce;

use super::fields::{Field, TilePiece, places, spread_bits};
use crate::lanes::{Instructions, LANES};
#[cfg(any(test, target_arch = "x86_64"))]
use model_boss_protocol::InstructionSet;

/// Interleaves `rows`, stored one after another, into `tile`; both have the same size.
pub(super) fn interleave(
    instructions: Instructions,
    fields: &'static [Field],
    block_bytes: usize,
    rows: &[u8],
    tile: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    if matches!(instructions.set(), InstructionSet::Avx512 | InstructionSet::Avx512Vnni | InstructionSet::Amx) {
        // SAFETY: an `Instructions` of these sets exists only on a machine with all features that the function is
        // compiled for.
        #[allow(unsafe_code)]
        unsafe {
            return registers::interleave(fields, block_bytes, rows, tile);
        }
    }
    instructions.run_plain(Interleave { fields, block_bytes, rows, tile });
}

/// The blocks of all rows at one column.
#[inline(always)]
fn blocks_at(rows: &[u8], block_bytes: usize, column: usize) -> [&[u8]; LANES] {
    let row_bytes = rows.len() / LANES;
    let mut blocks: [&[u8]; LANES] = [&[]; LANES];
    for (lane, block) in blocks.iter_mut().enumerate() {
        *block = &rows[lane * row_bytes + column * block_bytes..][..block_bytes];
    }
    blocks
}

/// Interleaves pieces of `SIZE` bytes: the first piece of every row, then the second of every row, and so on.
#[inline(always)]
fn pieces<const SIZE: usize>(blocks: &[&[u8]; LANES], start: usize, tile: &mut [u8]) {
    for (piece, tile) in tile.as_chunks_mut::<SIZE>().0.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        for (out, block) in tile.iter_mut().zip(blocks) {
            if let Some(bytes) = block.get(start + piece * SIZE..).and_then(|rest| rest.first_chunk()) {
                *out = *bytes;
            }
        }
    }
}

/// Reorders the bits of words.
#[inline(always)]
fn spread(words: &mut [u8]) {
    for word in words.as_chunks_mut::<4>().0 {
        *word = spread_bits(u32::from_le_bytes(*word)).to_le_bytes();
    }
}

/// Interleaving by plain loops.
struct Interleave<'a> {
    fields: &'static [Field],
    block_bytes: usize,
    rows: &'a [u8],
    tile: &'a mut [u8],
}

impl NullaryFnOnce for Interleave<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (column, tile) in self.tile.chunks_exact_mut(LANES * self.block_bytes).enumerate() {
            let blocks = blocks_at(self.rows, self.block_bytes, column);
            for &Field { start, len, piece } in self.fields {
                // In the tile, each earlier byte of the block occurs once for each of the sixteen rows.
                let tile = &mut tile[start * LANES..(start + len) * LANES];
                match piece {
                    TilePiece::Byte => pieces::<1>(&blocks, start, tile),
                    TilePiece::Half => pieces::<2>(&blocks, start, tile),
                    TilePiece::Word => pieces::<4>(&blocks, start, tile),
                    TilePiece::Bits => {
                        pieces::<4>(&blocks, start, tile);
                        spread(tile);
                    }
                }
            }
        }
    }
}

/// The blocks of one row of a tile, in the layout of the file.
pub(super) fn row_of(fields: &'static [Field], block_bytes: usize, tile: &[u8], lane: usize) -> Vec<u8> {
    let mut blocks = vec![0; tile.len() / LANES];
    for (block, tile) in blocks.chunks_exact_mut(block_bytes).zip(tile.chunks_exact(LANES * block_bytes)) {
        for (of_block, of_tile, piece) in places(fields, lane) {
            let size = piece.bytes();
            let (block, tile) = (&mut block[of_block..of_block + size], &tile[of_tile..of_tile + size]);
            block.copy_from_slice(tile);
            if let (TilePiece::Bits, Some(word)) = (piece, block.first_chunk_mut::<4>()) {
                *word = super::fields::gathered_bits(u32::from_le_bytes(*word)).to_le_bytes();
            }
        }
    }
    blocks
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::x86_64::*;

    use pulp::cast;

    use super::{Field, LANES, TilePiece, blocks_at, pieces, spread};

    // Loops are used in place of closures over arrays. Closures are compiled for any machine, so code for this one
    // would be called and not inlined.

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn interleave(fields: &'static [Field], block_bytes: usize, rows: &[u8], tile: &mut [u8]) {
        for (column, tile) in tile.chunks_exact_mut(LANES * block_bytes).enumerate() {
            let blocks = blocks_at(rows, block_bytes, column);
            for &Field { start, len, piece } in fields {
                // In the tile, each earlier byte of the block occurs once for each of the sixteen rows.
                let tile = &mut tile[start * LANES..(start + len) * LANES];
                match piece {
                    TilePiece::Byte => bytes(&blocks, start, tile),
                    TilePiece::Half => pieces::<2>(&blocks, start, tile),
                    TilePiece::Word => words(&blocks, start, tile),
                    TilePiece::Bits => {
                        pieces::<4>(&blocks, start, tile);
                        spread(tile);
                    }
                }
            }
        }
    }

    /// Interleaves pieces of four bytes: sixteen pieces of each row at a time, as a square that is transposed.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn words(blocks: &[&[u8]; LANES], start: usize, tile: &mut [u8]) {
        let (squares, rest) = tile.as_chunks_mut::<{ 64 * LANES }>();
        let mut at = start;
        for square in squares {
            let mut rows = [_mm512_setzero_si512(); LANES];
            for (row, block) in rows.iter_mut().zip(blocks) {
                if let Some(bytes) = block.get(at..).and_then(|rest| rest.first_chunk::<64>()) {
                    // SAFETY: the read has exactly the length of its source, and needs no alignment.
                    #[allow(unsafe_code)]
                    unsafe {
                        *row = _mm512_loadu_si512(bytes.as_ptr().cast());
                    }
                }
            }
            turn_words(&mut rows);
            for (out, column) in square.as_chunks_mut::<64>().0.iter_mut().zip(rows) {
                // SAFETY: the write has exactly the length of its target, and needs no alignment.
                #[allow(unsafe_code)]
                unsafe {
                    _mm512_storeu_si512(out.as_mut_ptr().cast(), column);
                }
            }
            at += 64;
        }
        pieces::<4>(blocks, at, rest);
    }

    /// Transposes sixteen rows of sixteen words: within each quarter of a register first, then quarters among
    /// registers.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn turn_words(square: &mut [__m512i; LANES]) {
        for i in (0..LANES).step_by(4) {
            let [a, b, c, d] = [square[i], square[i + 1], square[i + 2], square[i + 3]];
            let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (low2, high2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            // Quarter `q` of register `i + k` now holds column `4 q + k` of these four rows.
            square[i] = _mm512_unpacklo_epi64(low, low2);
            square[i + 1] = _mm512_unpackhi_epi64(low, low2);
            square[i + 2] = _mm512_unpacklo_epi64(high, high2);
            square[i + 3] = _mm512_unpackhi_epi64(high, high2);
        }
        // Masks that select the even quarters of two registers, and the odd ones.
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        for k in 0..4 {
            let [a, b, c, d] = [square[k], square[4 + k], square[8 + k], square[12 + k]];
            let even = (_mm512_shuffle_i32x4::<EVEN>(a, b), _mm512_shuffle_i32x4::<EVEN>(c, d));
            let odd = (_mm512_shuffle_i32x4::<ODD>(a, b), _mm512_shuffle_i32x4::<ODD>(c, d));
            square[k] = _mm512_shuffle_i32x4::<EVEN>(even.0, even.1);
            square[4 + k] = _mm512_shuffle_i32x4::<EVEN>(odd.0, odd.1);
            square[8 + k] = _mm512_shuffle_i32x4::<ODD>(even.0, even.1);
            square[12 + k] = _mm512_shuffle_i32x4::<ODD>(odd.0, odd.1);
        }
    }

    /// Interleaves pieces of one byte. No field has more than sixteen of them.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn bytes(blocks: &[&[u8]; LANES], start: usize, tile: &mut [u8]) {
        let mut square = [_mm_setzero_si128(); LANES];
        for (row, block) in square.iter_mut().zip(blocks) {
            let field = &block[start..];
            *row = match field.first_chunk::<16>() {
                Some(bytes) => cast(*bytes),
                None => {
                    let mut few = [0_u8; 16];
                    few[..field.len()].copy_from_slice(field);
                    cast(few)
                }
            };
        }
        // The position of a byte has eight bits: those of its row and those of its column. Each round rotates them by
        // one.
        for _ in 0..4 {
            let before = square;
            for i in 0..LANES / 2 {
                square[2 * i] = _mm_unpacklo_epi8(before[i], before[i + 8]);
                square[2 * i + 1] = _mm_unpackhi_epi8(before[i], before[i + 8]);
            }
        }
        for (out, column) in tile.as_chunks_mut::<LANES>().0.iter_mut().zip(square) {
            *out = cast(column);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::fields;
    use super::super::formats::Format;
    use super::*;

    /// The definition of the order, piece by piece.
    fn plain(fields: &[Field], block_bytes: usize, rows: &[u8]) -> Vec<u8> {
        let row_bytes = rows.len() / LANES;
        let mut tile = Vec::new();
        for column in (0..row_bytes).step_by(block_bytes) {
            for Field { start, len, piece } in fields {
                let size = piece.bytes();
                for at in (0..len / size).map(|number| start + number * size) {
                    let pieces = (0..LANES).map(|lane| &rows[lane * row_bytes + column + at..][..size]);
                    for bytes in pieces {
                        match piece {
                            TilePiece::Bits => {
                                let word = u32::from_le_bytes(*bytes.first_chunk().unwrap());
                                tile.extend(spread_bits(word).to_le_bytes());
                            }
                            _ => tile.extend(bytes),
                        }
                    }
                }
            }
        }
        tile
    }

    #[test]
    fn every_instruction_set_moves_pieces_to_their_places_and_back() {
        for kind in Format::kinds() {
            let format = Format::of(kind).unwrap();
            let (fields, block_bytes) = (fields(format), format.block_bytes());
            let rows: Vec<u8> =
                (0..LANES * 3 * block_bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
            let expected = plain(fields, block_bytes, &rows);
            for set in InstructionSet::available() {
                let mut tile = vec![0; rows.len()];
                interleave(Instructions::of(set).unwrap(), fields, block_bytes, &rows, &mut tile);
                assert!(tile == expected, "{kind} by {set}");
            }
            let row_bytes = 3 * block_bytes;
            for lane in 0..LANES {
                assert_eq!(
                    row_of(fields, block_bytes, &expected, lane),
                    rows[lane * row_bytes..][..row_bytes],
                    "{kind}"
                );
            }
        }
    }
}
