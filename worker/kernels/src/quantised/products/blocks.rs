//! The product of one block, and what block types share.

use std::ops::Range;

use crate::activations::Chunk8;
use crate::lanes::{LANES, Lanes};

/// The distance in bytes by which memory is prefetched, into the second cache. With less, or into the first cache,
/// types whose blocks are read at several places at once wait for memory (Q6_K three times as long).
const BYTES_AHEAD: usize = 16 << 10;

/// The quants of IQ4_NL and IQ4_XS, by their numbers (ggml's `kvalues_iq4nl`).
pub(super) const IQ4_NL: [i8; 16] = model_boss_weights::gguf::IQ4_NL_VALUES;

/// The product of one block of each of sixteen rows.
pub(super) trait BlockProduct {
    /// Bytes of a row's block.
    const BYTES: usize;
    /// Groups of 32 elements of a block.
    const GROUPS: usize;

    /// Adds the products with the groups of `x` from `group` on.
    fn add<L: Lanes, const R: usize>(lanes: L, block: &[u8], x: [&Chunk8; R], group: usize, sums: &mut [L::Floats; R]);
}

/// The numbers that the quants of a block type are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Quants {
    /// At most 63, with an excess that is subtracted from each.
    Unsigned { excess: i32 },
    /// Signed numbers of 8 bits; see [`Lanes::BIASED`].
    Signed,
}

impl Quants {
    /// The beginning of an exact sum: what the excess of the quants adds, subtracted. `offset` is −32 times the sum of
    /// the activations.
    #[inline(always)]
    pub(super) fn start<L: Lanes>(self, lanes: L, offset: i32) -> L::Ints {
        lanes.splat_int(match self {
            Self::Unsigned { excess: 0 } => 0,
            // A multiple of 32 is divided.
            Self::Unsigned { excess } => (offset * excess) >> 5,
            Self::Signed if L::BIASED => offset << 2,
            Self::Signed => 0,
        })
    }

    /// The number that is added to each quant before it is multiplied.
    #[inline(always)]
    pub(super) fn excess<L: Lanes>(self) -> i32 {
        match self {
            Self::Unsigned { excess } => excess,
            Self::Signed if L::BIASED => 128,
            Self::Signed => 0,
        }
    }

    #[inline(always)]
    pub(super) fn dot<L: Lanes>(self, lanes: L, sum: L::Ints, quants: [L::Bytes; 2], words: [i32; 2]) -> L::Ints {
        match self {
            Self::Unsigned { .. } => lanes.dot(sum, quants, words),
            Self::Signed => lanes.dot_wide(sum, quants, words),
        }
    }
}

/// Prefetches a part of what a product with `R` rows reads some blocks later. The processor prefetches too, but stops
/// at the end of each page.
#[inline(always)]
pub(super) fn ask_ahead<L: Lanes, const R: usize>(lanes: L, block: &[u8], bytes: Range<usize>) {
    // With more rows of activations, the tile is in the cache after the first strip.
    if R <= 2 {
        let ahead = block.as_ptr().wrapping_add(BYTES_AHEAD);
        for line in bytes.step_by(64) {
            lanes.prefetch(ahead.wrapping_add(line));
        }
    }
}

/// A table of signed quants, as [`Lanes::dot_wide`] takes them.
#[inline(always)]
pub(super) fn table<L: Lanes>(table: &[i8; 16]) -> [u8; 16] {
    let bias = if L::BIASED { 0x80 } else { 0 };
    let mut out = [0; 16];
    for (out, quant) in out.iter_mut().zip(table) {
        *out = quant.cast_unsigned() ^ bias;
    }
    out
}

/// The bytes at an offset. Blocks are whole, so they always exist.
#[inline(always)]
pub(super) fn at<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block.get(at..).and_then(|rest| rest.first_chunk()).unwrap_or(&[0; N])
}

/// The same four bytes of each row: those at `offset` of its block.
#[inline(always)]
pub(super) fn word<L: Lanes>(lanes: L, block: &[u8], offset: usize) -> L::Bytes {
    lanes.load(at(block, offset * LANES))
}

/// The same byte of each row.
#[inline(always)]
pub(super) fn byte<L: Lanes>(lanes: L, block: &[u8], offset: usize) -> L::Narrow {
    lanes.load_narrow(at(block, offset * LANES))
}

/// The same f16 of each row.
#[inline(always)]
pub(super) fn half<L: Lanes>(lanes: L, block: &[u8], offset: usize) -> L::Floats {
    lanes.halves(at(block, offset * LANES))
}

/// Bit `place` of each byte, as bit 4.
#[inline(always)]
pub(super) fn fifth<L: Lanes>(lanes: L, bytes: L::Bytes, place: usize) -> L::Bytes {
    match place {
        4.. => lanes.shift_right(bytes, place as u32 - 4, 16),
        _ => lanes.shift_left(bytes, 4 - place as u32, 16),
    }
}
