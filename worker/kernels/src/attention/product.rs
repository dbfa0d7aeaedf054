//! The product of a few rows with a panel, whose elements are widened on their way into a register. It is written once
//! for all instruction sets.

use pulp::NullaryFnOnce;
use pulp::bytemuck::cast_ref;

use super::kernel::{Groups, Panel, Product, ScaledPanel};
use super::widen::{PanelSpread, from_halves};
use crate::attention::element::GROUP;
use crate::lanes::{Instructions, LANES, Lanes, WithLanes};
use crate::ran::ran;

// A vector of a row has one scale.
const _: () = assert!(GROUP.is_multiple_of(LANES));

/// Most rows of a product that takes other elements than floats. With more rows, widening those once is less work.
const MOST_ROWS: usize = 24;

/// The number of bytes by which memory is prefetched. The processor prefetches by itself too, but stops at the end of
/// each page.
const BYTES_AHEAD: usize = 4 << 10;

/// Bytes that a core's caches take from memory at once.
const CACHE_LINE: usize = 64;

/// Whether products with `rows` rows take keys and values page by page, as they are stored. With more rows it is less
/// work to make one piece of a block's pages first.
pub(super) fn takes_as_stored(rows: usize) -> bool {
    rows <= MOST_ROWS
}

/// Computes a product.
pub(crate) fn multiply(instructions: Instructions, product: Product<'_>) {
    instructions.run_floats(product);
}

/// Widens a panel.
pub(super) fn spread(instructions: Instructions, spread: PanelSpread<'_>) {
    instructions.run_floats(spread);
}

impl WithLanes for PanelSpread<'_> {
    type Output = ();

    fn call<L: Lanes>(self, lanes: L) {
        let Panel::Halves(bits) = self.rows else { return lanes.vectorize(self) };
        let Self { width, wide, stride, .. } = self;
        lanes.vectorize(SpreadHalves { lanes, bits, width, wide, stride });
    }
}

/// Asks for parts of memory that are read soon.
pub(super) fn ask_for<'a>(instructions: Instructions, parts: impl Iterator<Item = &'a [u8]>) {
    instructions.run_floats(AskedFor(parts));
}

struct AskedFor<I>(I);

impl<'a, I: Iterator<Item = &'a [u8]>> WithLanes for AskedFor<I> {
    type Output = ();

    fn call<L: Lanes>(self, lanes: L) {
        for part in self.0 {
            part.chunks(CACHE_LINE).for_each(|line| lanes.prefetch(line.as_ptr()));
        }
    }
}

struct SpreadHalves<'a, L> {
    lanes: L,
    bits: &'a [u16],
    width: usize,
    wide: &'a mut [f32],
    stride: usize,
}

impl<L: Lanes> NullaryFnOnce for SpreadHalves<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { lanes, bits, width, wide, stride } = self;
        for (bits, wide) in bits.chunks_exact(width.max(1)).zip(wide.chunks_mut(stride)) {
            let ((bits, bits_left), (wide, wide_left)) =
                (bits.as_chunks::<LANES>(), wide[..width].as_chunks_mut::<LANES>());
            for (bits, wide) in bits.iter().zip(wide) {
                lanes.store(lanes.halves(cast_ref(bits)), wide);
            }
            if !bits_left.is_empty() {
                from_halves(bits_left, wide_left);
            }
        }
    }
}

/// The elements of a panel, of which a product knows when it is compiled: each kind has loops of its own.
const FLOATS: u8 = 0;
const HALVES: u8 = 1;
const BRAINS: u8 = 2;
const SCALED_COLUMNS: u8 = 3;
const SCALED_ROWS: u8 = 4;

/// A panel; parts that its kind does not have are empty.
#[derive(Clone, Copy, Default)]
struct PanelParts<'a> {
    floats: &'a [f32],
    bits: &'a [u16],
    quants: &'a [i8],
    scales: &'a [u16],
}

impl WithLanes for Product<'_> {
    type Output = ();

    fn call<L: Lanes>(mut self, lanes: L) {
        let none = PanelParts::default();
        match self.b {
            Panel::Floats(floats) => all_rows::<L, FLOATS>(lanes, &mut self, PanelParts { floats, ..none }),
            Panel::Halves(bits) => all_rows::<L, HALVES>(lanes, &mut self, PanelParts { bits, ..none }),
            Panel::Brains(bits) => all_rows::<L, BRAINS>(lanes, &mut self, PanelParts { bits, ..none }),
            Panel::Scaled(ScaledPanel { quants, scales, groups }) => {
                let parts = PanelParts { quants, scales, ..none };
                match groups {
                    Groups::Columns => all_rows::<L, SCALED_COLUMNS>(lanes, &mut self, parts),
                    Groups::Rows => all_rows::<L, SCALED_ROWS>(lanes, &mut self, parts),
                }
            }
        }
    }
}

fn all_rows<L: Lanes, const KIND: u8>(lanes: L, product: &mut Product<'_>, b: PanelParts<'_>) {
    let mut row = 0;
    while row < product.rows {
        row += match (product.rows - row).min(L::SUMS) {
            1 => rows_of::<L, KIND, 1>(lanes, product, b, row),
            2 => rows_of::<L, KIND, 2>(lanes, product, b, row),
            3 => rows_of::<L, KIND, 3>(lanes, product, b, row),
            4 => rows_of::<L, KIND, 4>(lanes, product, b, row),
            5 => rows_of::<L, KIND, 5>(lanes, product, b, row),
            _ => rows_of::<L, KIND, 6>(lanes, product, b, row),
        };
    }
}

/// Computes `R` rows; returns `R`.
fn rows_of<L: Lanes, const KIND: u8, const R: usize>(
    lanes: L,
    product: &mut Product<'_>,
    b: PanelParts<'_>,
    row: usize,
) -> usize {
    if R <= L::SUMS {
        ran(|| format!("{} ×{R}", L::NAME));
        lanes.vectorize(Rows::<L, KIND, R> { lanes, product, b, row });
    }
    R
}

struct Rows<'a, 'p, L, const KIND: u8, const R: usize> {
    lanes: L,
    product: &'a mut Product<'p>,
    b: PanelParts<'a>,
    row: usize,
}

impl<L: Lanes, const KIND: u8, const R: usize> NullaryFnOnce for Rows<'_, '_, L, KIND, R> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        // The running sums, and some vectors of the panel beside them, fill the registers.
        let most = (L::SUMS / R).clamp(1, 4);
        let mut column = 0;
        while column < self.product.width {
            column += match ((self.product.width - column) / LANES).min(most) {
                1 => self.strip::<1>(column),
                2 if most >= 2 => self.strip::<2>(column),
                3 if most >= 3 => self.strip::<3>(column),
                _ if most >= 4 => self.strip::<4>(column),
                _ => self.strip::<1>(column),
            };
        }
    }
}

impl<L: Lanes, const KIND: u8, const R: usize> Rows<'_, '_, L, KIND, R> {
    /// Computes `V` vectors of columns; returns the number of columns.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn strip<const V: usize>(&mut self, column: usize) -> usize {
        let Self { lanes, product, b, row } = self;
        let (lanes, row) = (*lanes, *row);
        let (depth, a_stride, c_stride) = (product.depth, product.a_stride, product.c_stride);
        let mut a: [&[f32]; R] = [&[]; R];
        let mut sums = [[lanes.splat_float(0.0); V]; R];
        for r in 0..R {
            a[r] = &product.a[(row + r) * a_stride..][..depth];
            let c = product.c[(row + r) * c_stride + column..][..V * LANES].as_chunks::<LANES>().0;
            for v in 0..V {
                sums[r][v] = lanes.load_floats(&c[v]);
            }
        }
        let mut scales = [lanes.splat_float(0.0); V];
        for k in 0..depth {
            let vectors = vectors::<L, KIND, V>(lanes, b, product.b_stride, k, column, &mut scales);
            for r in 0..R {
                let factor = lanes.splat_float(a[r][k]);
                for v in 0..V {
                    sums[r][v] = lanes.mul_add(factor, vectors[v], sums[r][v]);
                }
            }
        }
        for r in 0..R {
            let c = product.c[(row + r) * c_stride + column..][..V * LANES].as_chunks_mut::<LANES>().0;
            for v in 0..V {
                lanes.store(sums[r][v], &mut c[v]);
            }
        }
        V * LANES
    }
}

/// Some vectors of a row of a panel. `scales` are those of the group of columns that the row is in, kept from row to
/// row.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index runs over several arrays at once")]
fn vectors<L: Lanes, const KIND: u8, const V: usize>(
    lanes: L,
    b: &PanelParts<'_>,
    stride: usize,
    row: usize,
    column: usize,
    scales: &mut [L::Floats; V],
) -> [L::Floats; V] {
    let at = row * stride + column;
    let mut vectors = [lanes.splat_float(0.0); V];
    match KIND {
        FLOATS => {
            let floats = b.floats[at..][..V * LANES].as_chunks::<LANES>().0;
            for v in 0..V {
                vectors[v] = lanes.load_floats(&floats[v]);
            }
        }
        HALVES => {
            let halves = b.bits[at..][..V * LANES].as_chunks::<LANES>().0;
            ask_ahead(lanes, halves);
            for v in 0..V {
                vectors[v] = lanes.halves(cast_ref(&halves[v]));
            }
        }
        BRAINS => {
            let brains = b.bits[at..][..V * LANES].as_chunks::<LANES>().0;
            ask_ahead(lanes, brains);
            for v in 0..V {
                vectors[v] = lanes.brains(&brains[v]);
            }
        }
        _ => {
            if KIND == SCALED_COLUMNS && row.is_multiple_of(GROUP) {
                let of_group = b.scales[row / GROUP * stride + column..][..V * LANES].as_chunks::<LANES>().0;
                for v in 0..V {
                    scales[v] = lanes.halves(cast_ref(&of_group[v]));
                }
            }
            if KIND == SCALED_ROWS {
                let of_row = &b.scales[row * stride.div_ceil(GROUP)..][..stride.div_ceil(GROUP)];
                for v in 0..V {
                    let scale = of_row[(column + v * LANES) / GROUP];
                    scales[v] = lanes.halves(cast_ref(&[scale; LANES]));
                }
            }
            let quants = b.quants[at..][..V * LANES].as_chunks::<LANES>().0;
            ask_ahead(lanes, quants);
            for v in 0..V {
                let wide = lanes.floats(lanes.signed(lanes.load_narrow(cast_ref(&quants[v]))));
                vectors[v] = lanes.mul(wide, scales[v]);
            }
        }
    }
    vectors
}

#[inline(always)]
fn ask_ahead<L: Lanes, T>(lanes: L, part: &[[T; LANES]]) {
    let ahead = part.as_ptr().cast::<u8>().wrapping_add(BYTES_AHEAD);
    for line in (0..size_of_val(part)).step_by(CACHE_LINE) {
        lanes.prefetch(ahead.wrapping_add(line));
    }
}
