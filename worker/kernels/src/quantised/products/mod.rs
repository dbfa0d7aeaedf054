//! The inner loops: a tile of sixteen rows, multiplied with rows of activations. They are written once for all
//! instruction sets.
//!
//! Quants are multiplied as integers, and sums within a scale's elements are exact. Each lane then has one running sum
//! over the scales, in one order for any number of activations and any instruction set. So a row's result does not
//! depend on the other rows of the step, to the bit.

mod blocks;
mod long;
mod short;
mod ternary;
mod unpacked;

use std::marker::PhantomData;
use std::ops::Range;

use pulp::NullaryFnOnce;

use super::formats::Format;
use crate::activations::{Activations, Chunk8, GROUPS, Strips};
use crate::lanes::{Instructions, LANES, Lanes, WithLanes};
use crate::ran::ran;
use blocks::BlockProduct;
use long::{Iq4Xs, LongBlocks, Q2K, Q3K, Q4K, Q5K, Q6K};
use short::{I8Affine, Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, ShortBlocks};
use ternary::{Tq1_0, Tq2_0};
pub(super) use unpacked::StripInput;
use unpacked::{ManyRows, PrepareStrips};

/// Multiplies one tile with some rows of activations. `y` has the results of each row; those of this tile begin at an
/// offset.
pub(super) fn multiply_tile(
    instructions: Instructions,
    format: Format,
    tile: &[u8],
    x: &Activations,
    rows: Range<usize>,
    y: (usize, &mut [&mut [f32]]),
) {
    instructions.run_few(TileProduct { format, tile, x, rows, y });
}

struct TileProduct<'a, 'y> {
    format: Format,
    tile: &'a [u8],
    x: &'a Activations,
    rows: Range<usize>,
    y: (usize, &'a mut [&'y mut [f32]]),
}

/// Calls a macro's expression with the type of a format's blocks.
macro_rules! by_format {
    ($format:expr, $blocks:ident => $call:expr) => {
        match $format {
            Format::Q4_0 => by_format!(@ ShortBlocks<Q4_0>, $blocks => $call),
            Format::Q4_1 => by_format!(@ ShortBlocks<Q4_1>, $blocks => $call),
            Format::Q5_0 => by_format!(@ ShortBlocks<Q5_0>, $blocks => $call),
            Format::Q5_1 => by_format!(@ ShortBlocks<Q5_1>, $blocks => $call),
            Format::Q8_0 => by_format!(@ ShortBlocks<Q8_0>, $blocks => $call),
            Format::Iq4Nl => by_format!(@ ShortBlocks<Iq4Nl>, $blocks => $call),
            Format::Mxfp4 => by_format!(@ ShortBlocks<Mxfp4>, $blocks => $call),
            Format::Q2K => by_format!(@ LongBlocks<Q2K>, $blocks => $call),
            Format::Q3K => by_format!(@ LongBlocks<Q3K>, $blocks => $call),
            Format::Q4K => by_format!(@ LongBlocks<Q4K>, $blocks => $call),
            Format::Q5K => by_format!(@ LongBlocks<Q5K>, $blocks => $call),
            Format::Q6K => by_format!(@ LongBlocks<Q6K>, $blocks => $call),
            Format::Iq4Xs => by_format!(@ LongBlocks<Iq4Xs>, $blocks => $call),
            Format::Tq1_0 => by_format!(@ LongBlocks<Tq1_0>, $blocks => $call),
            Format::I8Affine => by_format!(@ ShortBlocks<I8Affine>, $blocks => $call),
            Format::Tq2_0 => by_format!(@ LongBlocks<Tq2_0>, $blocks => $call),
        }
    };
    (@ $type:ty, $blocks:ident => $call:expr) => {{
        type $blocks = $type;
        $call
    }};
}

impl WithLanes for TileProduct<'_, '_> {
    type Output = ();

    fn call<L: Lanes>(self, lanes: L) {
        by_format!(self.format, Blocks => self.by::<L, Blocks>(lanes));
    }
}

/// The activations of [`multiply_tiles`], as a format needs them.
pub(super) fn prepare_strips(instructions: Instructions, format: Format, strips: &Strips) -> StripInput<'_> {
    by_format!(format, Blocks => instructions.run(PrepareStrips { strips, kind: PhantomData::<Blocks> }))
}

/// Multiplies some tiles, one behind the other, with strips of activations. `y` has the results of each row: as many as
/// the tiles have rows, zeros before.
pub(super) fn multiply_tiles(
    instructions: Instructions,
    format: Format,
    (tiles, tile_bytes): (&[u8], usize),
    x: &StripInput<'_>,
    y: &mut [&mut [f32]],
) {
    by_format!(format, Blocks => instructions.run(ManyRows { tiles, tile_bytes, x, y, kind: PhantomData::<Blocks> }));
}

impl TileProduct<'_, '_> {
    /// Multiplies by the loop for the number of rows, the largest strips first.
    fn by<L: Lanes, P: BlockProduct>(self, lanes: L) {
        let Self { tile, x, rows, y: (at, y), .. } = self;
        let mut y = y.iter_mut().filter_map(|y| y.get_mut(at..).and_then(|rest| rest.first_chunk_mut()));
        let mut row = rows.start;
        while row < rows.end {
            row += match (rows.end - row).min(L::MOST_ROWS) {
                8.. => strip::<L, P, 8>(lanes, tile, x, row, &mut y),
                4.. => strip::<L, P, 4>(lanes, tile, x, row, &mut y),
                2.. => strip::<L, P, 2>(lanes, tile, x, row, &mut y),
                _ => strip::<L, P, 1>(lanes, tile, x, row, &mut y),
            };
        }
    }
}

/// Multiplies a tile with `R` rows of activations. Returns `R`.
fn strip<'y, L: Lanes, P: BlockProduct, const R: usize>(
    lanes: L,
    tile: &[u8],
    x: &Activations,
    row: usize,
    y: &mut impl Iterator<Item = &'y mut [f32; LANES]>,
) -> usize {
    if R > L::MOST_ROWS {
        return R;
    }
    ran(|| format!("{} ×{R}", L::NAME));
    let mut out = [[0.0; LANES]; R];
    let mut chunks: [&[Chunk8]; R] = [&[]; R];
    for (r, chunks) in chunks.iter_mut().enumerate() {
        *chunks = x.row(row + r);
    }
    lanes.vectorize(Strip { lanes, tile, x: chunks, y: &mut out, product: PhantomData::<P> });
    for (sums, y) in out.into_iter().zip(y) {
        *y = sums;
    }
    R
}

struct Strip<'a, L, P, const R: usize> {
    lanes: L,
    tile: &'a [u8],
    x: [&'a [Chunk8]; R],
    y: &'a mut [[f32; LANES]; R],
    product: PhantomData<P>,
}

impl<L: Lanes, P: BlockProduct, const R: usize> NullaryFnOnce for Strip<'_, L, P, R> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { lanes, tile, x, y, .. } = self;
        let mut sums = [lanes.splat_float(0.0); R];
        for (number, block) in tile.chunks_exact(P::BYTES * LANES).enumerate() {
            let (chunk, group) = (number * P::GROUPS / GROUPS, number * P::GROUPS % GROUPS);
            let mut chunks: [&Chunk8; R] = [&Chunk8::ZERO; R];
            for r in 0..R {
                chunks[r] = &x[r][chunk];
            }
            P::add(lanes, block, chunks, group, &mut sums);
        }
        for r in 0..R {
            lanes.store(sums[r], &mut y[r]);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use model_boss_protocol::InstructionSet;

    use crate::lanes::vnni_of_512;

    /// Machines with AVX-512 alone run AVX-VNNI's code in the other encoding.
    #[test]
    fn fa_4_avx_vnni_multiplies_as_plain_code_does_to_the_bit() {
        let Some(lanes) = vnni_of_512() else { return };
        let plain = Instructions::of(InstructionSet::Portable).unwrap();
        for kind in Format::kinds() {
            let format = Format::of(kind).unwrap();
            let depth = 3 * format.block_len();
            let mut tile: Vec<u8> = (0..LANES * 3 * format.block_bytes())
                .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 & 0xbb)
                .collect();
            tile.iter_mut().step_by(7).for_each(|byte| *byte = byte.wrapping_mul(5) & 0xbb);
            let x: Vec<f32> = (0..7 * depth).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
            let x = Activations::quantise_by(plain, &x, 7, depth);
            let mut results = [vec![[0.0; LANES]; 7], vec![[0.0; LANES]; 7]];
            let [expected, actual] = &mut results;
            let mut y: Vec<&mut [f32]> = expected.iter_mut().map(|y| &mut y[..]).collect();
            multiply_tile(plain, format, &tile, &x, 0..7, (0, &mut y));
            let mut y: Vec<&mut [f32]> = actual.iter_mut().map(|y| &mut y[..]).collect();
            TileProduct { format, tile: &tile, x: &x, rows: 0..7, y: (0, &mut y) }.call(lanes);
            let bits = |y: &[[f32; LANES]]| y.iter().flatten().map(|y| y.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(expected), bits(actual), "{kind}");
        }
    }
}
