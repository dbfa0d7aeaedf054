//! A few rows of a matrix of floats, from which elements are loaded for products.

use pulp::bytemuck::Zeroable;

use super::kinds::FloatKind;
use super::rows::{groups, padded};
use crate::lanes::{LANES, Lanes};

/// The distance in bytes by which memory is prefetched. The processor prefetches too, but stops at the end of each
/// page.
const BYTES_AHEAD: usize = 16 << 10;

/// Some rows of a matrix.
pub(super) trait MatrixRows<L: Lanes, const OUTS: usize> {
    /// Part `PART` of sixteen elements of a row.
    fn load_part<const PART: usize>(&self, lanes: L, step: usize, out: usize) -> L::Part;
    /// The same of the elements behind the last whole step, if there are any, with zeros behind them.
    fn last_part<const PART: usize>(&self, lanes: L, out: usize) -> L::Part;
    /// Steps without the last elements.
    fn whole_steps(&self) -> usize;
}

/// Rows as they are stored.
pub(super) struct StoredOuts<'a, K: FloatKind, const OUTS: usize> {
    rows: [&'a [K::Group]; OUTS],
    /// The last elements. They are copied before the loops: a call between these would cost them the registers.
    rest: [K::Group; OUTS],
}

impl<'a, K: FloatKind, const OUTS: usize> StoredOuts<'a, K, OUTS> {
    #[inline(always)]
    pub(super) fn new(rows: [&'a [u8]; OUTS]) -> Self {
        let mut stored = Self { rows: [&[]; OUTS], rest: [K::Group::zeroed(); OUTS] };
        for (out, row) in rows.into_iter().enumerate() {
            let (whole, rest) = groups::<K>(row);
            stored.rows[out] = whole;
            if !rest.is_empty() {
                stored.rest[out] = padded::<K>(rest);
            }
        }
        stored
    }

    /// Sixteen elements of a row. Those that are read soon are asked for.
    #[inline(always)]
    pub(super) fn load<L: Lanes>(&self, lanes: L, step: usize, out: usize) -> L::Floats {
        let group = &self.rows[out][step / K::STEPS];
        ask_ahead::<L, K>(lanes, group);
        K::load(lanes, group, step % K::STEPS)
    }

    /// The elements behind the last whole step, with zeros behind them.
    #[inline(always)]
    pub(super) fn last<L: Lanes>(&self, lanes: L, out: usize) -> L::Floats {
        K::load(lanes, &self.rest[out], 0)
    }

    /// Steps without the last elements.
    #[inline(always)]
    pub(super) fn steps(&self) -> usize {
        self.rows[0].len() * K::STEPS
    }
}

#[inline(always)]
fn ask_ahead<L: Lanes, K: FloatKind>(lanes: L, group: &K::Group) {
    lanes.prefetch((&raw const *group).cast::<u8>().wrapping_add(BYTES_AHEAD));
}

// The other parts of a load are not used, and compilers leave them out.
impl<L: Lanes, K: FloatKind, const OUTS: usize> MatrixRows<L, OUTS> for StoredOuts<'_, K, OUTS> {
    #[inline(always)]
    fn load_part<const PART: usize>(&self, lanes: L, step: usize, out: usize) -> L::Part {
        let group = &self.rows[out][step / K::STEPS];
        if PART == 0 {
            ask_ahead::<L, K>(lanes, group);
        }
        lanes.part(K::load(lanes, group, step % K::STEPS), PART)
    }

    #[inline(always)]
    fn last_part<const PART: usize>(&self, lanes: L, out: usize) -> L::Part {
        lanes.part(self.last(lanes, out), PART)
    }

    #[inline(always)]
    fn whole_steps(&self) -> usize {
        self.steps()
    }
}

/// Rows beside each other, as [`super::packed::pack`] writes them.
pub(super) struct PackedOuts<'a, const OUTS: usize>(pub(super) &'a [f32]);

impl<L: Lanes, const OUTS: usize> MatrixRows<L, OUTS> for PackedOuts<'_, OUTS> {
    #[inline(always)]
    fn load_part<const PART: usize>(&self, lanes: L, step: usize, out: usize) -> L::Part {
        let area = self.0.len() / L::PARTS;
        lanes.load_part(&self.0[PART * area + (step * OUTS + out) * (LANES / L::PARTS)..])
    }

    #[inline(always)]
    fn last_part<const PART: usize>(&self, lanes: L, _: usize) -> L::Part {
        lanes.part(lanes.splat_float(0.0), PART)
    }

    #[inline(always)]
    fn whole_steps(&self) -> usize {
        self.0.len() / (OUTS * LANES)
    }
}
