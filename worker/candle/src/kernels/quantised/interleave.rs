//! Interleaving sixteen rows of blocks into one tile, with every piece of a block beside the same piece of the other
//! rows. All weights of a model are interleaved when they are loaded or streamed, so pieces are moved by whole
//! registers. The module uses the fields of blocks, not their values.

use super::fields::Field;
use super::vnni::Vnni;

/// Interleaves `rows`, stored one after another, into `tile`; both have the same size.
pub(super) fn interleave(_: Vnni, fields: &'static [Field], block_bytes: usize, rows: &[u8], tile: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a `Vnni` exists only on a machine with all features that the function is compiled for.
    #[allow(unsafe_code)]
    unsafe {
        kernels::interleave(fields, block_bytes, rows, tile);
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{fields:?} {block_bytes} {} {}", rows.len(), tile.len());
}

#[cfg(target_arch = "x86_64")]
mod kernels {
    use std::arch::x86_64::*;

    use pulp::cast;

    use super::super::fields::LANES;
    use super::Field;

    // Loops are used in place of closures over arrays. Closures are compiled for any machine, so code for this one
    // would be called and not inlined.

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn interleave(fields: &'static [Field], block_bytes: usize, rows: &[u8], tile: &mut [u8]) {
        let row_bytes = rows.len() / LANES;
        for (column, tile) in tile.chunks_exact_mut(LANES * block_bytes).enumerate() {
            let mut blocks: [&[u8]; LANES] = [&[]; LANES];
            for (lane, block) in blocks.iter_mut().enumerate() {
                *block = &rows[lane * row_bytes + column * block_bytes..][..block_bytes];
            }
            for &(start, len, size) in fields {
                // In the tile, each earlier byte of the block occurs once for each of the sixteen rows.
                let tile = &mut tile[start * LANES..(start + len) * LANES];
                match size {
                    1 => bytes(&blocks, start, tile),
                    2 => pieces::<2>(&blocks, start, tile),
                    _ => words(&blocks, start, tile),
                }
            }
        }
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
    use super::super::fields::LANES;
    use super::*;

    /// The definition of the order, piece by piece.
    fn plain(fields: &[Field], block_bytes: usize, rows: &[u8]) -> Vec<u8> {
        let row_bytes = rows.len() / LANES;
        let mut tile = Vec::new();
        for column in (0..row_bytes).step_by(block_bytes) {
            for (start, len, size) in fields {
                for piece in (0..len / size).map(|piece| start + piece * size) {
                    tile.extend((0..LANES).flat_map(|lane| &rows[lane * row_bytes + column + piece..][..*size]));
                }
            }
        }
        tile
    }

    #[test]
    fn registers_move_what_goes_one_by_one() {
        let Some(instructions) = Vnni::detect() else { return };
        let layouts: [(usize, &[Field]); 3] = [
            (34, &[(0, 2, 2), (2, 32, 4)]),
            (144, &[(0, 2, 2), (2, 2, 2), (4, 12, 1), (16, 128, 4)]),
            // This layout has a field of bytes at the very end of the block.
            (210, &[(0, 128, 4), (128, 64, 4), (192, 2, 2), (194, 16, 1)]),
        ];
        for (block_bytes, fields) in layouts {
            let rows: Vec<u8> =
                (0..LANES * 3 * block_bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
            let mut tile = vec![0; rows.len()];
            interleave(instructions, fields, block_bytes, &rows, &mut tile);
            assert!(tile == plain(fields, block_bytes, &rows), "blocks of {block_bytes}");
        }
    }
}
