//! Block types of 32 elements.

use std::marker::PhantomData;

use super::blocks::{BlockProduct, IQ4_NL, Quants, ask_ahead, byte, fifth, half, table, word};
use super::unpacked::{PieceLoop, StripLoop, Unpack, UnpackedPiece};
use crate::activations::Chunk8;
use crate::lanes::{LANES, Lanes, SIGNED};

/// The product of a block type of 32 elements.
pub(super) struct ShortBlocks<F>(PhantomData<F>);

/// A block type of 32 elements.
pub(super) trait ShortFormat {
    /// The loop for unpacked quants.
    type Loop: StripLoop;

    const BYTES: usize;
    const QUANTS: Quants;
    /// Whether each element has a constant added.
    const ADDS: bool;

    /// The factor of the quants.
    fn scale<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats;

    /// The constant that is added to each element.
    #[inline(always)]
    fn added<L: Lanes>(lanes: L, _: &[u8]) -> L::Floats {
        lanes.splat_float(0.0)
    }

    /// The quants of the elements from `4 unit` on, and of those 16 later; `unit` is below 4.
    fn quants<L: Lanes>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2];
}

impl<F: ShortFormat> BlockProduct for ShortBlocks<F> {
    const BYTES: usize = F::BYTES;
    const GROUPS: usize = 1;

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn add<L: Lanes, const R: usize>(lanes: L, block: &[u8], x: [&Chunk8; R], group: usize, sums: &mut [L::Floats; R]) {
        ask_ahead::<L, R>(lanes, block, 0..F::BYTES * LANES);
        let mut dots = [lanes.splat_int(0); R];
        for r in 0..R {
            dots[r] = F::QUANTS.start(lanes, x[r].offsets[2 * group] + x[r].offsets[2 * group + 1]);
        }
        for pair in 0..2 {
            let ([a, c], [b, d]) = (F::quants(lanes, block, 2 * pair), F::quants(lanes, block, 2 * pair + 1));
            for r in 0..R {
                let words = &x[r].words[group];
                let first = F::QUANTS.dot(lanes, dots[r], [a, b], [words[2 * pair], words[2 * pair + 1]]);
                dots[r] = F::QUANTS.dot(lanes, first, [c, d], [words[4 + 2 * pair], words[5 + 2 * pair]]);
            }
        }
        let (scale, added) = (F::scale(lanes, block), F::added(lanes, block));
        for r in 0..R {
            let factor = lanes.mul(scale, lanes.splat_float(x[r].scales[group]));
            sums[r] = lanes.mul_add(lanes.floats(dots[r]), factor, sums[r]);
            if F::ADDS {
                sums[r] = lanes.mul_add(added, lanes.splat_float(x[r].group_sums[group]), sums[r]);
            }
        }
    }
}

impl<F: ShortFormat> Unpack for ShortBlocks<F> {
    type Loop = F::Loop;

    const BYTES: usize = F::BYTES;
    const GROUPS: usize = 1;
    const QUANTS: Quants = F::QUANTS;
    const PIECES: &'static [(usize, usize)] = &[(0, 0)];

    #[inline(always)]
    fn unpack<L: Lanes, const PIECE: usize>(lanes: L, block: &[u8], pieces: &mut [UnpackedPiece<PIECE>]) {
        for piece in pieces {
            for unit in 0..PIECE / 2 {
                let quants = F::quants(lanes, block, unit);
                lanes.store_bytes(quants[0], &mut piece.quants[unit]);
                lanes.store_bytes(quants[1], &mut piece.quants[PIECE / 2 + unit]);
            }
            lanes.store(F::scale(lanes, block), &mut piece.scale);
            if F::ADDS {
                lanes.store(F::added(lanes, block), &mut piece.added);
            }
        }
    }
}

/// The low and the high nibbles of a unit.
#[inline(always)]
fn nibbles<L: Lanes>(lanes: L, bytes: L::Bytes) -> [L::Bytes; 2] {
    [lanes.and(bytes, lanes.splat(15)), lanes.shift_right(bytes, 4, 15)]
}

/// The nibbles of a unit with their fifth bits; `high` is a word in the order of `TilePiece::Bits`.
#[inline(always)]
fn five_bits<L: Lanes>(lanes: L, bytes: L::Bytes, high: L::Bytes, unit: usize) -> [L::Bytes; 2] {
    let [first, second] = nibbles(lanes, bytes);
    [lanes.or(first, fifth(lanes, high, unit)), lanes.or(second, fifth(lanes, high, unit + 4))]
}

pub(super) struct Q4_0;

impl ShortFormat for Q4_0 {
    type Loop = PieceLoop<8, 15, false>;

    const BYTES: usize = 18;
    const QUANTS: Quants = Quants::Unsigned { excess: 8 };
    const ADDS: bool = false;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 0)
    }

    #[inline(always)]
    fn quants<L: Lanes>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        nibbles(lanes, word(lanes, block, 2 + 4 * unit))
    }
}

pub(super) struct Q4_1;

impl ShortFormat for Q4_1 {
    type Loop = PieceLoop<8, 15, true>;

    const BYTES: usize = 20;
    const QUANTS: Quants = Quants::Unsigned { excess: 0 };
    const ADDS: bool = true;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 0)
    }

    #[inline(always)]
    fn added<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 2)
    }

    #[inline(always)]
    fn quants<L: Lanes>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        nibbles(lanes, word(lanes, block, 4 + 4 * unit))
    }
}

pub(super) struct Q5_0;

impl ShortFormat for Q5_0 {
    type Loop = PieceLoop<8, 31, false>;

    const BYTES: usize = 22;
    const QUANTS: Quants = Quants::Unsigned { excess: 16 };
    const ADDS: bool = false;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 0)
    }

    #[inline(always)]
    fn quants<L: Lanes>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        five_bits(lanes, word(lanes, block, 6 + 4 * unit), word(lanes, block, 2), unit)
    }
}

pub(super) struct Q5_1;

impl ShortFormat for Q5_1 {
    type Loop = PieceLoop<8, 31, true>;

    const BYTES: usize = 24;
    const QUANTS: Quants = Quants::Unsigned { excess: 0 };
    const ADDS: bool = true;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 0)
    }

    #[inline(always)]
    fn added<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 2)
    }

    #[inline(always)]
    fn quants<L: Lanes>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        five_bits(lanes, word(lanes, block, 8 + 4 * unit), word(lanes, block, 4), unit)
    }
}

pub(super) struct Q8_0;

impl ShortFormat for Q8_0 {
    type Loop = PieceLoop<8, SIGNED, false>;

    const BYTES: usize = 34;
    const QUANTS: Quants = Quants::Signed;
    const ADDS: bool = false;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 0)
    }

    #[inline(always)]
    fn quants<L: Lanes>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        eight_bits(lanes, block, 2, unit)
    }
}

/// The quants of a unit that are bytes from a place on.
#[inline(always)]
fn eight_bits<L: Lanes>(lanes: L, block: &[u8], from: usize, unit: usize) -> [L::Bytes; 2] {
    let [first, second] = [word(lanes, block, from + 4 * unit), word(lanes, block, from + 16 + 4 * unit)];
    if L::BIASED {
        let bias = lanes.splat(0x80);
        [lanes.xor(first, bias), lanes.xor(second, bias)]
    } else {
        [first, second]
    }
}

pub(super) struct I8Affine;

impl ShortFormat for I8Affine {
    type Loop = PieceLoop<8, SIGNED, true>;

    const BYTES: usize = 38;
    const QUANTS: Quants = Quants::Signed;
    const ADDS: bool = true;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 0)
    }

    #[inline(always)]
    fn added<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        lanes.mul_add(half(lanes, block, 4), lanes.splat_float(1.0), half(lanes, block, 2))
    }

    #[inline(always)]
    fn quants<L: Lanes>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        eight_bits(lanes, block, 6, unit)
    }
}

pub(super) struct Iq4Nl;

impl ShortFormat for Iq4Nl {
    type Loop = PieceLoop<8, SIGNED, false>;

    const BYTES: usize = 18;
    const QUANTS: Quants = Quants::Signed;
    const ADDS: bool = false;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 0)
    }

    #[inline(always)]
    fn quants<L: Lanes>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        let [first, second] = nibbles(lanes, word(lanes, block, 2 + 4 * unit));
        let table = table::<L>(&IQ4_NL);
        [lanes.look_up(first, &table), lanes.look_up(second, &table)]
    }
}

pub(super) struct Mxfp4;

/// Twice the values of MXFP4's numbers (OCP Microscaling Formats v1.0, E2M1), plus 12.
const MXFP4: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

impl ShortFormat for Mxfp4 {
    type Loop = PieceLoop<8, 31, false>;

    const BYTES: usize = 17;
    const QUANTS: Quants = Quants::Unsigned { excess: 12 };
    const ADDS: bool = false;

    #[inline(always)]
    fn scale<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        lanes.powers(byte(lanes, block, 0))
    }

    #[inline(always)]
    fn quants<L: Lanes>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        let [first, second] = nibbles(lanes, word(lanes, block, 1 + 4 * unit));
        [lanes.look_up(first, &MXFP4), lanes.look_up(second, &MXFP4)]
    }
}
