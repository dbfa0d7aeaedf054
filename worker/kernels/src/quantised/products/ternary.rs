//! Block types of 256 elements that are −1, 0 or 1.

use super::blocks::{Quants, half, word};
use super::long::{LongFormat, NEIGHBOURS, UNITS, two_bits};
use super::unpacked::PieceLoop;
use crate::lanes::Lanes;

pub(super) struct Tq1_0;

impl LongFormat for Tq1_0 {
    type Loop = PieceLoop<8, 15, false>;

    const BYTES: usize = 54;
    const QUANTS: Quants = Quants::Unsigned { excess: 1 };
    const SCALED_UNITS: usize = UNITS;
    const MINS: bool = false;
    const PAIRS: [[usize; 2]; 4] = NEIGHBOURS;

    /// The scale.
    type Head<L: Lanes> = L::Floats;

    #[inline(always)]
    fn head<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 52)
    }

    #[inline(always)]
    fn scale<L: Lanes>(_: L, head: &L::Floats, _: &[u8], _: usize, _: usize) -> L::Floats {
        *head
    }

    #[inline(always)]
    fn quants<L: Lanes, const PAIR: usize>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        [digit(lanes, block, 2 * PAIR, unit), digit(lanes, block, 2 * PAIR + 1, unit)]
    }
}

/// A digit to base 3 of the bytes of a unit. The first 160 elements are in 32 bytes of five digits, the next 80 in 16
/// bytes, and the last 16 in four bytes of four digits. The first element has the highest digit.
#[inline(always)]
fn digit<L: Lanes>(lanes: L, block: &[u8], group: usize, unit: usize) -> L::Bytes {
    let (offset, digit) = match (group, unit) {
        (0..5, _) => (4 * unit, group),
        (7, 4..) => (48, unit - 4),
        _ => (32 + 4 * (unit % 4), 2 * (group - 5) + unit / 4),
    };
    let mut bytes = word(lanes, block, offset);
    // Multiplied by 3 modulo 256, a byte has lost its highest digit.
    for _ in 0..digit {
        bytes = lanes.add_bytes(bytes, lanes.add_bytes(bytes, bytes));
    }
    lanes.thirds(bytes)
}

pub(super) struct Tq2_0;

impl LongFormat for Tq2_0 {
    type Loop = PieceLoop<8, 15, false>;

    const BYTES: usize = 66;
    const QUANTS: Quants = Quants::Unsigned { excess: 1 };
    const SCALED_UNITS: usize = UNITS;
    const MINS: bool = false;
    const PAIRS: [[usize; 2]; 4] = NEIGHBOURS;

    /// The scale.
    type Head<L: Lanes> = L::Floats;

    #[inline(always)]
    fn head<L: Lanes>(lanes: L, block: &[u8]) -> L::Floats {
        half(lanes, block, 64)
    }

    #[inline(always)]
    fn scale<L: Lanes>(_: L, head: &L::Floats, _: &[u8], _: usize, _: usize) -> L::Floats {
        *head
    }

    #[inline(always)]
    fn quants<L: Lanes, const PAIR: usize>(lanes: L, block: &[u8], unit: usize) -> [L::Bytes; 2] {
        two_bits::<L, PAIR>(lanes, block, 32 * (PAIR / 2) + 4 * unit)
    }
}
