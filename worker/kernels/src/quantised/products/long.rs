//! Block types of 256 elements, in eight groups of 32.

use std::marker::PhantomData;

use super::blocks::{BlockProduct, IQ4_NL, Quants, ask_ahead, byte, fifth, half, table, word};
use super::unpacked::{PieceLoop, StripLoop, Unpack, UnpackedPiece};
use crate::activations::{Chunk8, GROUPS};
use crate::lanes::{LANES, Lanes, SIGNED};

/// The product of a block type of 256 elements.
pub(super) struct LongBlocks<F>(PhantomData<F>);

/// Units of four elements of a group.
pub(super) const UNITS: usize = 8;

/// A block type of 256 elements.
pub(super) trait LongFormat {
    /// The loop for unpacked quants.
    type Loop: StripLoop;

    const BYTES: usize;
    const QUANTS: Quants;
    /// Units that share a scale: those of a group, or of half a group.
    const SCALED_UNITS: usize;
    /// Whether each element has a minimum subtracted. As many share a minimum as share a scale.
    const MINS: bool;
    /// The groups whose quants are made together.
    const PAIRS: [[usize; 2]; 4];

    /// The fields that are read once for a block.
    type Head<L: Lanes>: Copy;

    fn head<L: Lanes>(lanes: L, block: &[u8]) -> Self::Head<L>;

    /// The factor of the quants of a group, or of one of its halves.
    fn scale<L: Lanes>(lanes: L, head: &Self::Head<L>, block: &[u8], group: usize, half: usize) -> L::Floats;

    /// The minimum that is subtracted from each element of a group, or of one of its halves.
    #[inline(always)]
    fn min<L: Lanes>(lanes: L, _: &Self::Head<L>, _: &[u8], _group: usize, _half: usize) -> L::Floats {
        lanes.splat_float(0.0)
    }

    /// The quants of a unit of both groups of a pair.
    fn quants<L: Lanes, const PAIR: usize>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2];
}

impl<F: LongFormat> BlockProduct for LongBlocks<F> {
    const BYTES: usize = F::BYTES;
    const GROUPS: usize = GROUPS;

    #[inline(always)]
    fn add<L: Lanes, const R: usize>(lanes: L, block: &[u8], x: [&Chunk8; R], _: usize, sums: &mut [L::Floats; R]) {
        let head = F::head(lanes, block);
        let product = PairProduct::<L, F, R> { lanes, block, x, head };
        product.add::<0>(sums);
        product.add::<1>(sums);
        product.add::<2>(sums);
        product.add::<3>(sums);
    }
}

impl<F: LongFormat> Unpack for LongBlocks<F> {
    type Loop = F::Loop;

    const BYTES: usize = F::BYTES;
    const GROUPS: usize = GROUPS;
    const QUANTS: Quants = F::QUANTS;
    const PIECES: &'static [(usize, usize)] =
        if F::SCALED_UNITS == UNITS { &order::<1, 8>(F::PAIRS) } else { &order::<2, 16>(F::PAIRS) };

    #[inline(always)]
    fn unpack<L: Lanes, const PIECE: usize>(lanes: L, block: &[u8], pieces: &mut [UnpackedPiece<PIECE>]) {
        let head = F::head(lanes, block);
        unpack_pair::<L, F, 0, PIECE>(lanes, &head, block, pieces);
        unpack_pair::<L, F, 1, PIECE>(lanes, &head, block, pieces);
        unpack_pair::<L, F, 2, PIECE>(lanes, &head, block, pieces);
        unpack_pair::<L, F, 3, PIECE>(lanes, &head, block, pieces);
    }
}

/// The order in which products add groups, or their halves: both groups of a pair, half by half.
const fn order<const HALVES: usize, const PIECES: usize>(pairs: [[usize; 2]; 4]) -> [(usize, usize); PIECES] {
    let mut order = [(0, 0); PIECES];
    let mut at = 0;
    while at < PIECES {
        order[at] = (pairs[at / (2 * HALVES)][at % 2], at / 2 % HALVES);
        at += 1;
    }
    order
}

#[inline(always)]
fn unpack_pair<L: Lanes, F: LongFormat, const PAIR: usize, const PIECE: usize>(
    lanes: L,
    head: &F::Head<L>,
    block: &[u8],
    pieces: &mut [UnpackedPiece<PIECE>],
) {
    let halves = UNITS / PIECE;
    let pieces = &mut pieces[2 * halves * PAIR..][..2 * halves];
    for half in 0..halves {
        for unit in 0..PIECE {
            let quants = F::quants::<L, PAIR>(lanes, block, half * PIECE + unit);
            lanes.store_bytes(quants[0], &mut pieces[2 * half].quants[unit]);
            lanes.store_bytes(quants[1], &mut pieces[2 * half + 1].quants[unit]);
        }
        for n in 0..2 {
            let (g, piece) = (F::PAIRS[PAIR][n], &mut pieces[2 * half + n]);
            lanes.store(F::scale(lanes, head, block, g, half), &mut piece.scale);
            if F::MINS {
                let min = F::min(lanes, head, block, g, half);
                lanes.store(lanes.mul(min, lanes.splat_float(-1.0)), &mut piece.added);
            }
        }
    }
}

struct PairProduct<'a, L: Lanes, F: LongFormat, const R: usize> {
    lanes: L,
    block: &'a [u8],
    x: [&'a Chunk8; R],
    head: F::Head<L>,
}

impl<L: Lanes, F: LongFormat, const R: usize> PairProduct<'_, L, F, R> {
    #[inline(always)]
    fn add<const PAIR: usize>(&self, sums: &mut [L::Floats; R]) {
        // A quarter at a time: more requests at once than the processor keeps would stop it.
        let quarter = F::BYTES * LANES / 4;
        ask_ahead::<L, R>(self.lanes, self.block, PAIR * quarter..(PAIR + 1) * quarter);
        // The order of the sums is the same in both branches.
        let halves = UNITS / F::SCALED_UNITS;
        for half in 0..halves {
            if L::PAIRS && R <= 4 {
                self.half::<PAIR, 2>(half, 0, sums);
            } else {
                self.half::<PAIR, 1>(half, 0, sums);
                self.half::<PAIR, 1>(half, 1, sums);
            }
        }
    }

    /// Adds the products of `N` groups of a pair, from the group `first` of it on: those of one scale each.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn half<const PAIR: usize, const N: usize>(&self, half: usize, first: usize, sums: &mut [L::Floats; R]) {
        let Self { lanes, block, x, head } = self;
        let (lanes, whole) = (*lanes, F::SCALED_UNITS == UNITS);
        let mut dots = [[lanes.splat_int(0); R]; N];
        for n in 0..N {
            let g = F::PAIRS[PAIR][first + n];
            for r in 0..R {
                let offset = match whole {
                    true => x[r].offsets[2 * g] + x[r].offsets[2 * g + 1],
                    false => x[r].offsets[2 * g + half],
                };
                dots[n][r] = F::QUANTS.start(lanes, offset);
            }
        }
        for two in 0..F::SCALED_UNITS / 2 {
            let unit = half * F::SCALED_UNITS + 2 * two;
            let (a, b) = (F::quants::<L, PAIR>(lanes, block, unit), F::quants::<L, PAIR>(lanes, block, unit + 1));
            for n in 0..N {
                let g = F::PAIRS[PAIR][first + n];
                for r in 0..R {
                    let words = [x[r].words[g][unit], x[r].words[g][unit + 1]];
                    dots[n][r] = F::QUANTS.dot(lanes, dots[n][r], [a[first + n], b[first + n]], words);
                }
            }
        }
        for n in 0..N {
            let g = F::PAIRS[PAIR][first + n];
            let scale = F::scale(lanes, head, block, g, half);
            for r in 0..R {
                let factor = lanes.mul(scale, lanes.splat_float(x[r].scales[g]));
                sums[r] = lanes.mul_add(lanes.floats(dots[n][r]), factor, sums[r]);
            }
            if F::MINS {
                let min = F::min(lanes, head, block, g, half);
                for r in 0..R {
                    let sum = if whole { x[r].group_sums[g] } else { x[r].half_sums[2 * g + half] };
                    sums[r] = lanes.neg_mul_add(min, lanes.splat_float(sum), sums[r]);
                }
            }
        }
    }
}

/// Groups beside each other.
pub(super) const NEIGHBOURS: [[usize; 2]; 4] = [[0, 1], [2, 3], [4, 5], [6, 7]];

/// Two bits of a word at `offset`, for the groups `2 PAIR` and `2 PAIR + 1`: four groups share a byte.
#[inline(always)]
pub(super) fn two_bits<L: Lanes, const PAIR: usize>(lanes: L, block: &[u8], offset: usize) -> [L::Bytes; 2] {
    let bytes = word(lanes, block, offset);
    match PAIR % 2 {
        0 => [lanes.and(bytes, lanes.splat(3)), lanes.shift_right(bytes, 2, 3)],
        _ => [lanes.shift_right(bytes, 4, 3), lanes.shift_right(bytes, 6, 3)],
    }
}

pub(super) struct Q2K;

impl LongFormat for Q2K {
    type Loop = PieceLoop<4, 15, true>;

    const BYTES: usize = 84;
    const QUANTS: Quants = Quants::Unsigned { excess: 0 };
    const SCALED_UNITS: usize = UNITS / 2;
    const MINS: bool = true;
    const PAIRS: [[usize; 2]; 4] = NEIGHBOURS;

    /// The scale of scales and that of minimums.
    type Head<L: Lanes> = [L::Floats; 2];

    #[inline(always)]
    fn head<L: Lanes>(lanes: L, block: &[u8]) -> [L::Floats; 2] {
        [half(lanes, block, 80), half(lanes, block, 82)]
    }

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, head: &[L::Floats; 2], block: &[u8], group: usize, half: usize) -> L::Floats {
        let scale = lanes.narrow_right(byte(lanes, block, 2 * group + half), 0, 15);
        lanes.mul(head[0], lanes.floats(lanes.unsigned(scale)))
    }

    #[inline(always)]
    fn min<L: Lanes>(lanes: L, head: &[L::Floats; 2], block: &[u8], group: usize, half: usize) -> L::Floats {
        let min = lanes.narrow_right(byte(lanes, block, 2 * group + half), 4, 15);
        lanes.mul(head[1], lanes.floats(lanes.unsigned(min)))
    }

    #[inline(always)]
    fn quants<L: Lanes, const PAIR: usize>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        two_bits::<L, PAIR>(lanes, block, 16 + 32 * (PAIR / 2) + 4 * unit)
    }
}

pub(super) struct Q3K;

impl LongFormat for Q3K {
    type Loop = PieceLoop<4, 15, false>;

    const BYTES: usize = 110;
    const QUANTS: Quants = Quants::Unsigned { excess: 4 };
    const SCALED_UNITS: usize = UNITS / 2;
    const MINS: bool = false;
    const PAIRS: [[usize; 2]; 4] = NEIGHBOURS;

    /// The scale of scales.
    type Head<L: Lanes> = L::Floats;

    #[inline(always)]
    fn head<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 108)
    }

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, head: &L::Floats, block: &[u8], group: usize, half: usize) -> L::Floats {
        let number = 2 * group + half;
        let low = lanes.narrow_right(byte(lanes, block, 96 + number % 8), 4 * (number as u32 / 8), 15);
        let top = byte(lanes, block, 104 + number % 4);
        let top = match number / 4 {
            0 => lanes.narrow_left(top, 4, 0x30),
            1 => lanes.narrow_left(top, 2, 0x30),
            2 => lanes.narrow_right(top, 0, 0x30),
            _ => lanes.narrow_right(top, 2, 0x30),
        };
        let scale = lanes.add_ints(lanes.unsigned(lanes.narrow_or(low, top)), lanes.splat_int(-32));
        lanes.mul(*head, lanes.floats(scale))
    }

    #[inline(always)]
    fn quants<L: Lanes, const PAIR: usize>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        let [first, second] = two_bits::<L, PAIR>(lanes, block, 32 + 32 * (PAIR / 2) + 4 * unit);
        let high = word(lanes, block, 4 * unit);
        // Bit `g` belongs to group `g`, and becomes bit 2.
        let (a, b) = match PAIR {
            0 => (lanes.shift_left(high, 2, 4), lanes.shift_left(high, 1, 4)),
            1 => (lanes.and(high, lanes.splat(4)), lanes.shift_right(high, 1, 4)),
            2 => (lanes.shift_right(high, 2, 4), lanes.shift_right(high, 3, 4)),
            _ => (lanes.shift_right(high, 4, 4), lanes.shift_right(high, 5, 4)),
        };
        [lanes.or(first, a), lanes.or(second, b)]
    }
}

/// The head of Q4_K and Q5_K: two factors, and a scale and a minimum of 6 bits for each group.
#[derive(Clone, Copy)]
pub(super) struct SixBitHead<L: Lanes> {
    factors: [L::Floats; 2],
    scales: [L::Narrow; GROUPS],
    mins: [L::Narrow; GROUPS],
}

impl<L: Lanes> SixBitHead<L> {
    #[inline(always)]
    fn new(lanes: L, block: &[u8]) -> Self {
        let none = byte(lanes, block, 4);
        let (mut scales, mut mins) = ([none; GROUPS], [none; GROUPS]);
        for j in 0..4 {
            let (a, b, c) = (byte(lanes, block, 4 + j), byte(lanes, block, 8 + j), byte(lanes, block, 12 + j));
            scales[j] = lanes.narrow_right(a, 0, 63);
            mins[j] = lanes.narrow_right(b, 0, 63);
            scales[4 + j] = lanes.narrow_or(lanes.narrow_right(c, 0, 15), lanes.narrow_right(a, 2, 0x30));
            mins[4 + j] = lanes.narrow_or(lanes.narrow_right(c, 4, 15), lanes.narrow_right(b, 2, 0x30));
        }
        Self { factors: [half(lanes, block, 0), half(lanes, block, 2)], scales, mins }
    }

    #[inline(always)]
    fn scale(&self, lanes: L, group: usize) -> L::Floats {
        lanes.mul(self.factors[0], lanes.floats(lanes.unsigned(self.scales[group])))
    }

    #[inline(always)]
    fn min(&self, lanes: L, group: usize) -> L::Floats {
        lanes.mul(self.factors[1], lanes.floats(lanes.unsigned(self.mins[group])))
    }
}

pub(super) struct Q4K;

impl LongFormat for Q4K {
    type Loop = PieceLoop<8, 15, true>;

    const BYTES: usize = 144;
    const QUANTS: Quants = Quants::Unsigned { excess: 0 };
    const SCALED_UNITS: usize = UNITS;
    const MINS: bool = true;
    const PAIRS: [[usize; 2]; 4] = NEIGHBOURS;

    type Head<L: Lanes> = SixBitHead<L>;

    #[inline(always)]
    fn head<L: Lanes>(lanes: L, block: &[u8]) -> SixBitHead<L> {
        SixBitHead::new(lanes, block)
    }

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, head: &SixBitHead<L>, _: &[u8], group: usize, _: usize) -> L::Floats {
        head.scale(lanes, group)
    }

    #[inline(always)]
    fn min<L: Lanes>(lanes: L, head: &SixBitHead<L>, _: &[u8], group: usize, _: usize) -> L::Floats {
        head.min(lanes, group)
    }

    #[inline(always)]
    fn quants<L: Lanes, const PAIR: usize>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        let bytes = word(lanes, block, 16 + 32 * PAIR + 4 * unit);
        [lanes.and(bytes, lanes.splat(15)), lanes.shift_right(bytes, 4, 15)]
    }
}

pub(super) struct Q5K;

impl LongFormat for Q5K {
    type Loop = PieceLoop<8, 31, true>;

    const BYTES: usize = 176;
    const QUANTS: Quants = Quants::Unsigned { excess: 0 };
    const SCALED_UNITS: usize = UNITS;
    const MINS: bool = true;
    const PAIRS: [[usize; 2]; 4] = NEIGHBOURS;

    type Head<L: Lanes> = SixBitHead<L>;

    #[inline(always)]
    fn head<L: Lanes>(lanes: L, block: &[u8]) -> SixBitHead<L> {
        SixBitHead::new(lanes, block)
    }

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, head: &SixBitHead<L>, _: &[u8], group: usize, _: usize) -> L::Floats {
        head.scale(lanes, group)
    }

    #[inline(always)]
    fn min<L: Lanes>(lanes: L, head: &SixBitHead<L>, _: &[u8], group: usize, _: usize) -> L::Floats {
        head.min(lanes, group)
    }

    #[inline(always)]
    fn quants<L: Lanes, const PAIR: usize>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        let bytes = word(lanes, block, 48 + 32 * PAIR + 4 * unit);
        let high = word(lanes, block, 16 + 4 * unit);
        [
            lanes.or(lanes.and(bytes, lanes.splat(15)), fifth(lanes, high, 2 * PAIR)),
            lanes.or(lanes.shift_right(bytes, 4, 15), fifth(lanes, high, 2 * PAIR + 1)),
        ]
    }
}

pub(super) struct Q6K;

impl LongFormat for Q6K {
    type Loop = PieceLoop<4, 63, false>;

    const BYTES: usize = 210;
    const QUANTS: Quants = Quants::Unsigned { excess: 32 };
    const SCALED_UNITS: usize = UNITS / 2;
    const MINS: bool = false;
    /// The first and the third group of a half have their low bits in the same bytes, and so have the second and the
    /// fourth.
    const PAIRS: [[usize; 2]; 4] = [[0, 2], [1, 3], [4, 6], [5, 7]];

    /// The scale of scales.
    type Head<L: Lanes> = L::Floats;

    #[inline(always)]
    fn head<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 208)
    }

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, head: &L::Floats, block: &[u8], group: usize, half: usize) -> L::Floats {
        let scale = lanes.signed(byte(lanes, block, 192 + 2 * group + half));
        lanes.mul(*head, lanes.floats(scale))
    }

    #[inline(always)]
    fn quants<L: Lanes, const PAIR: usize>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        let bytes = word(lanes, block, 64 * (PAIR / 2) + 32 * (PAIR % 2) + 4 * unit);
        let tops = word(lanes, block, 128 + 32 * (PAIR / 2) + 4 * unit);
        let tops = match PAIR % 2 {
            0 => [lanes.shift_left(tops, 4, 0x30), lanes.and(tops, lanes.splat(0x30))],
            _ => [lanes.shift_left(tops, 2, 0x30), lanes.shift_right(tops, 2, 0x30)],
        };
        [lanes.or(lanes.and(bytes, lanes.splat(15)), tops[0]), lanes.or(lanes.shift_right(bytes, 4, 15), tops[1])]
    }
}

pub(super) struct Iq4Xs;

impl LongFormat for Iq4Xs {
    type Loop = PieceLoop<8, SIGNED, false>;

    const BYTES: usize = 136;
    const QUANTS: Quants = Quants::Signed;
    const SCALED_UNITS: usize = UNITS;
    const MINS: bool = false;
    const PAIRS: [[usize; 2]; 4] = NEIGHBOURS;

    /// The scale of scales.
    type Head<L: Lanes> = L::Floats;

    #[inline(always)]
    fn head<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 0)
    }

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, head: &L::Floats, block: &[u8], group: usize, _: usize) -> L::Floats {
        let low = lanes.narrow_right(byte(lanes, block, 4 + group / 2), 4 * (group as u32 % 2), 15);
        let top = byte(lanes, block, 2 + group / 4);
        let top = match group % 4 {
            0 => lanes.narrow_left(top, 4, 0x30),
            1 => lanes.narrow_left(top, 2, 0x30),
            2 => lanes.narrow_right(top, 0, 0x30),
            _ => lanes.narrow_right(top, 2, 0x30),
        };
        let scale = lanes.add_ints(lanes.unsigned(lanes.narrow_or(low, top)), lanes.splat_int(-32));
        lanes.mul(*head, lanes.floats(scale))
    }

    #[inline(always)]
    fn quants<L: Lanes, const PAIR: usize>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        [looked_up(lanes, block, 2 * PAIR, unit), looked_up(lanes, block, 2 * PAIR + 1, unit)]
    }
}

/// The quants of a unit of a group: low nibbles first, as in a block of IQ4_NL.
#[inline(always)]
fn looked_up<L: Lanes>(lanes: L, block: &[u8], group: usize, unit: usize) -> L::Bytes {
    let bytes = word(lanes, block, 8 + 16 * group + 4 * (unit % 4));
    let numbers = lanes.shift_right(bytes, if unit < 4 { 0 } else { 4 }, 15);
    lanes.look_up(numbers, &table::<L>(&IQ4_NL))
}
