//! Products of many rows of activations. Quants are unpacked once for all rows: a part of a tile at a time becomes
//! bytes and factors, which stay in the first cache while the strips of activations pass.
//!
//! Every result is that of the other kernels to the bit: the same integers, and floats added in the same order.

use std::borrow::Cow;
use std::hint::black_box;
use std::marker::PhantomData;

use pulp::NullaryFnOnce;

use super::blocks::Quants;
use crate::activations::Strips;
use crate::lanes::{LANES, Lanes, SIGNED, WithLanes};
use crate::ran::ran;

/// Elements of the depth that are unpacked together. With their factors they take less than half of a first cache.
const DEPTH_TOGETHER: usize = 512;

/// Rows of activations that use the unpacked part of a tile. Their elements of [`DEPTH_TOGETHER`] stay in the second
/// cache while the tiles change.
const ROWS_TOGETHER: usize = 128;

/// Sixteen rows' quants that share a factor for each row: a group, or half of one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct UnpackedPiece<const UNITS: usize> {
    pub(super) quants: [[u8; 64]; UNITS],
    /// The factor of the quants.
    pub(super) scale: [f32; LANES],
    /// The constant that is added to each element.
    pub(super) added: [f32; LANES],
}

impl<const UNITS: usize> UnpackedPiece<UNITS> {
    const ZERO: Self = Self { quants: [[0; 64]; UNITS], scale: [0.0; LANES], added: [0.0; LANES] };
}

/// A block type that can be unpacked.
pub(super) trait Unpack {
    /// Bytes of a row's block.
    const BYTES: usize;
    /// Groups of a block.
    const GROUPS: usize;
    const QUANTS: Quants;
    /// Which of the loops multiplies the pieces.
    type Loop: StripLoop;
    /// The group and the half of each piece, in the order in which they are added. A piece of a whole group has half 0.
    const PIECES: &'static [(usize, usize)];

    /// Unpacks the blocks of sixteen rows. `UNITS` is that of the type.
    fn unpack<L: Lanes, const UNITS: usize>(lanes: L, block: &[u8], pieces: &mut [UnpackedPiece<UNITS>]);
}

/// The activations of a product, with the factors that the block type needs.
pub(in crate::quantised) struct StripInput<'a> {
    strips: &'a Strips,
    /// In the order of the pieces, `[strips, pieces, height]`: scales, the beginning of exact sums, and the factor of
    /// constants that are added.
    scales: Cow<'a, [f32]>,
    starts: Vec<i32>,
    sums: Vec<f32>,
}

/// The activations that a block type is multiplied with, from those of all types.
pub(super) struct PrepareStrips<'a, P> {
    pub(super) strips: &'a Strips,
    pub(super) kind: PhantomData<P>,
}

impl<'a, P: Unpack> WithLanes for PrepareStrips<'a, P> {
    type Output = StripInput<'a>;

    fn call<L: Lanes>(self, _: L) -> StripInput<'a> {
        let strips = self.strips;
        let (all, excess) = (strips.scales(), P::QUANTS.excess::<L>());
        let whole = P::Loop::UNITS == 8;
        let starts = |sums: [i32; 2], half: usize| -excess * if whole { sums[0] + sums[1] } else { sums[half] };
        let scaled =
            |sums: [i32; 2], half: usize, scale: f32| scale * if whole { sums[0] + sums[1] } else { sums[half] } as f32;
        let in_order = whole && P::PIECES.iter().enumerate().all(|(number, (group, _))| number == *group);
        if in_order {
            return StripInput {
                strips,
                scales: Cow::Borrowed(all),
                starts: strips.sums().iter().map(|sums| starts(*sums, 0)).collect(),
                sums: strips.sums().iter().zip(all).map(|(sums, scale)| scaled(*sums, 0, *scale)).collect(),
            };
        }
        let length = all.len() / P::GROUPS * P::PIECES.len();
        let mut scales = Vec::with_capacity(length);
        let (mut begins, mut sums) = (Vec::with_capacity(length), Vec::with_capacity(length));
        let height = strips.height();
        for first in (0..strips.count() * strips.groups()).step_by(P::GROUPS) {
            for (group, half) in P::PIECES {
                let rows = (first + group) * height..(first + group + 1) * height;
                let (of_rows, sums_of_rows) = (&all[rows.clone()], &strips.sums()[rows]);
                scales.extend_from_slice(of_rows);
                begins.extend(sums_of_rows.iter().map(|sums| starts(*sums, *half)));
                sums.extend(sums_of_rows.iter().zip(of_rows).map(|(sums, scale)| scaled(*sums, *half, *scale)));
            }
        }
        StripInput { strips, scales: Cow::Owned(scales), starts: begins, sums }
    }
}

/// The product of some tiles with strips of activations.
pub(super) struct ManyRows<'a, 'y, P> {
    /// Tiles, one behind the other.
    pub(super) tiles: &'a [u8],
    pub(super) tile_bytes: usize,
    pub(super) x: &'a StripInput<'a>,
    /// The results of each row of activations: as many as the tiles have rows.
    pub(super) y: &'a mut [&'y mut [f32]],
    pub(super) kind: PhantomData<P>,
}

/// The loop for the pieces of some block types: one for all types whose numbers are alike.
pub(super) trait StripLoop {
    /// Units of four elements of a piece: 8 or 4.
    const UNITS: usize;

    fn multiply<L: Lanes, P: Unpack>(lanes: L, work: ManyRows<'_, '_, P>);
}

/// The loop for pieces of `UNITS` units whose quants are at most `MOST`, as for [`Lanes::dots`], with or without a
/// constant that is added to the elements of a piece.
pub(super) struct PieceLoop<const UNITS: usize, const MOST: u8, const ADDS: bool>;

impl<const UNITS: usize, const MOST: u8, const ADDS: bool> StripLoop for PieceLoop<UNITS, MOST, ADDS> {
    const UNITS: usize = UNITS;

    #[inline(always)]
    fn multiply<L: Lanes, P: Unpack>(lanes: L, work: ManyRows<'_, '_, P>) {
        match L::STRIP {
            16 => work.multiply::<L, UNITS, MOST, ADDS, 16>(lanes),
            6 => work.multiply::<L, UNITS, MOST, ADDS, 6>(lanes),
            4 => work.multiply::<L, UNITS, MOST, ADDS, 4>(lanes),
            _ => work.multiply::<L, UNITS, MOST, ADDS, 1>(lanes),
        }
    }
}

impl<P: Unpack> WithLanes for ManyRows<'_, '_, P> {
    type Output = ();

    fn call<L: Lanes>(self, lanes: L) {
        P::Loop::multiply(lanes, self);
    }
}

impl<P: Unpack> ManyRows<'_, '_, P> {
    #[inline(always)]
    fn multiply<L: Lanes, const UNITS: usize, const MOST: u8, const ADDS: bool, const R: usize>(self, lanes: L) {
        ran(|| format!("{} unpacked ×{R}", L::NAME));
        let Self { tiles, tile_bytes, x, y, .. } = self;
        let block_bytes = P::BYTES * LANES;
        let blocks_together = DEPTH_TOGETHER / (32 * P::GROUPS);
        let together = (ROWS_TOGETHER / R).max(1);
        let tiles_together = if L::TWO_TILES { 2 } else { 1 };
        let of_tile = blocks_together * P::PIECES.len();
        let mut pieces = vec![UnpackedPiece::<UNITS>::ZERO; tiles_together * of_tile];
        for (y, begin) in y.chunks_mut(together * R).zip((0..).step_by(together)) {
            for first in (0..tile_bytes / block_bytes).step_by(blocks_together) {
                let part = first * block_bytes..tile_bytes.min((first + blocks_together) * block_bytes);
                let used = part.len() / block_bytes * P::PIECES.len();
                for (number, tiles) in tiles.chunks(tiles_together * tile_bytes).enumerate() {
                    for (tile, pieces) in tiles.chunks_exact(tile_bytes).zip(pieces.chunks_exact_mut(of_tile)) {
                        let blocks = &tile[part.clone()];
                        let pieces = &mut pieces[..used];
                        lanes.vectorize(UnpackBlocks { lanes, blocks, pieces, kind: PhantomData::<P> });
                    }
                    let (one, two) = pieces.split_at(of_tile);
                    let (order, at) = (P::PIECES, number * tiles_together * LANES);
                    for (strip, y) in y.chunks_mut(R).enumerate() {
                        let x = x.part::<P, R>(begin + strip, first);
                        // Two tiles are multiplied only for sets that have registers for both.
                        if L::TWO_TILES && tiles.len() > tile_bytes {
                            let pieces = [&one[..used], &two[..used]];
                            lanes.with_tiles(MultiplyStrip::<L, 2, UNITS, MOST, ADDS, R> {
                                lanes,
                                pieces,
                                order,
                                x,
                                y,
                                at,
                            });
                        } else {
                            let pieces = [&one[..used]];
                            lanes.with_tiles(MultiplyStrip::<L, 1, UNITS, MOST, ADDS, R> {
                                lanes,
                                pieces,
                                order,
                                x,
                                y,
                                at,
                            });
                        }
                    }
                }
            }
        }
    }
}

impl StripInput<'_> {
    /// A strip's activations from a block on.
    fn part<P: Unpack, const R: usize>(&self, strip: usize, first_block: usize) -> StripPart<'_, R> {
        let blocks = self.strips.groups() / P::GROUPS;
        let first = (strip * blocks + first_block) * P::PIECES.len();
        StripPart {
            words: self.strips.words(strip).get(first_block * P::GROUPS..).unwrap_or_default(),
            scales: self.scales.as_chunks().0.get(first..).unwrap_or_default(),
            starts: self.starts.as_chunks().0.get(first..).unwrap_or_default(),
            sums: self.sums.as_chunks().0.get(first..).unwrap_or_default(),
        }
    }
}

/// The activations of a strip from some place on, in the order of the pieces.
struct StripPart<'a, const R: usize> {
    /// By groups.
    words: &'a [[[i32; 8]; R]],
    scales: &'a [[f32; R]],
    starts: &'a [[i32; R]],
    sums: &'a [[f32; R]],
}

struct UnpackBlocks<'a, L, P, const UNITS: usize> {
    lanes: L,
    blocks: &'a [u8],
    pieces: &'a mut [UnpackedPiece<UNITS>],
    kind: PhantomData<P>,
}

impl<L: Lanes, P: Unpack, const UNITS: usize> NullaryFnOnce for UnpackBlocks<'_, L, P, UNITS> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { lanes, blocks, pieces, .. } = self;
        for (block, pieces) in blocks.chunks_exact(P::BYTES * LANES).zip(pieces.chunks_exact_mut(P::PIECES.len())) {
            P::unpack(lanes, block, pieces);
        }
    }
}

/// Adds the products of unpacked pieces with a strip to its results.
struct MultiplyStrip<
    'a,
    'y,
    L,
    const TILES: usize,
    const UNITS: usize,
    const MOST: u8,
    const ADDS: bool,
    const R: usize,
> {
    lanes: L,
    /// The same pieces of each tile.
    pieces: [&'a [UnpackedPiece<UNITS>]; TILES],
    /// The group and the half of a block's pieces.
    order: &'static [(usize, usize)],
    x: StripPart<'a, R>,
    /// The results of the strip's rows, which may be fewer than `R`.
    y: &'a mut [&'y mut [f32]],
    /// The first of a row's results, sixteen of each tile.
    at: usize,
}

impl<L: Lanes, const TILES: usize, const UNITS: usize, const MOST: u8, const ADDS: bool, const R: usize> NullaryFnOnce
    for MultiplyStrip<'_, '_, L, TILES, UNITS, MOST, ADDS, R>
{
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the indices run over several arrays at once")]
    fn call(self) {
        let Self { lanes, pieces, order, x, y, at } = self;
        let mut sums = [[lanes.splat_float(0.0); R]; TILES];
        for tile in 0..TILES {
            for (sum, y) in sums[tile].iter_mut().zip(y.iter()) {
                *sum = lanes.load_floats(y[at + tile * LANES..].first_chunk().unwrap_or(&[0.0; LANES]));
            }
        }
        let groups_of_block = order.len() * UNITS / 8;
        // A loop whose length the compiler knows is unrolled. Where products need few instructions, it then keeps more
        // values than there are registers, and signed quants need many.
        let units = if MOST == SIGNED { UNITS } else { black_box(UNITS) };
        let mut rows = x.scales.iter().zip(x.starts.iter().zip(x.sums));
        for block in 0..pieces[0].len() / order.len() {
            for (number, (group, half)) in order.iter().enumerate() {
                let Some((scales, (starts, of_rows))) = rows.next() else { return };
                let mut here = [&UnpackedPiece::ZERO; TILES];
                let mut quants: [&[[u8; 64]]; TILES] = [&[]; TILES];
                for tile in 0..TILES {
                    here[tile] = &pieces[tile][block * order.len() + number];
                    quants[tile] = &here[tile].quants[..units];
                }
                let words = &x.words[block * groups_of_block + group];
                let dots = lanes.dots::<TILES, R, MOST>(starts, quants, words, half * UNITS);
                for tile in 0..TILES {
                    let scale = lanes.load_floats(&here[tile].scale);
                    for r in 0..R {
                        let factor = lanes.mul(scale, lanes.splat_float(scales[r]));
                        sums[tile][r] = lanes.mul_add(lanes.floats(dots[tile][r]), factor, sums[tile][r]);
                    }
                    if ADDS {
                        let added = lanes.load_floats(&here[tile].added);
                        for r in 0..R {
                            sums[tile][r] = lanes.mul_add(added, lanes.splat_float(of_rows[r]), sums[tile][r]);
                        }
                    }
                }
            }
        }
        for tile in 0..TILES {
            for (sum, y) in sums[tile].iter().zip(y.iter_mut()) {
                if let Some(y) = y[at + tile * LANES..].first_chunk_mut() {
                    lanes.store(*sum, y);
                }
            }
        }
    }
}
